"""Tiny random checkpoints of families with a recurrent state (the gated delta rule, Mamba-2, short
convolutions), with reference logits from transformers in float32. Usage: goldens_delta.py OUTDIR [name,name]

The reference reads a whole text at once, in chunks. Its token-by-token form is compared too.
"""
import math, sys
import torch
import goldens_families as g

base = g.base
ROPE = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [2, 1, 1], "mrope_interleaved": True}


def text(arch, mt, **k):
    return base(arch, mt, rms_norm_eps=1e-6, tie_word_embeddings=False, hidden_size=64, num_hidden_layers=8, num_attention_heads=4, num_key_value_heads=2,
                head_dim=32, intermediate_size=96, full_attention_interval=4, rope_parameters=ROPE, attn_output_gate=True, attention_bias=False,
                linear_conv_kernel_dim=4, linear_key_head_dim=16, linear_value_head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4) | k


FAMILIES = {
    "qwen3_5": text("Qwen3_5ForCausalLM", "qwen3_5_text"),
    # KV heads stand for one or two of three key heads; keys and values differ in width; tied head
    "qwen3_5_uneven": text("Qwen3_5ForCausalLM", "qwen3_5_text", num_hidden_layers=4, linear_num_key_heads=3, linear_num_value_heads=3, linear_key_head_dim=24,
                           linear_value_head_dim=40, layer_types=["linear_attention", "full_attention", "full_attention", "linear_attention"], tie_word_embeddings=True),
}

EXPERTS = dict(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=48, num_hidden_layers=4, layer_types=["linear_attention", "full_attention", "linear_attention", "full_attention"])
FAMILIES["qwen3_5_moe"] = text("Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", **EXPERTS)
FAMILIES["qwen3_next"] = text("Qwen3NextForCausalLM", "qwen3_next", norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[1],
                              **EXPERTS | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}})

FAMILIES["lfm2"] = base("Lfm2ForCausalLM", "lfm2", norm_eps=1e-5, num_hidden_layers=5, num_attention_heads=4, rope_theta=1e6, block_auto_adjust_ff_dim=True, intermediate_size=96, block_ff_dim=96,
                        block_multiple_of=16, block_ffn_dim_multiplier=1.0, conv_L_cache=3, conv_bias=False, full_attn_idxs=[1, 4], hidden_size=32)
FAMILIES["lfm2_moe"] = base("Lfm2MoeForCausalLM", "lfm2_moe", norm_eps=1e-5, num_hidden_layers=4, num_attention_heads=4, rope_parameters={"rope_type": "default", "rope_theta": 1e6}, intermediate_size=64,
                            conv_L_cache=3, conv_bias=False, layer_types=["conv", "full_attention", "conv", "full_attention"], hidden_size=32, num_dense_layers=1, num_experts=8, num_experts_per_tok=2,
                            moe_intermediate_size=16, norm_topk_prob=True, use_expert_bias=True, routed_scaling_factor=1.0)
GRANITE = dict(hidden_size=32, num_attention_heads=4, embedding_multiplier=0.7, residual_multiplier=1.4, attention_multiplier=0.2, logits_scaling=2.0, attention_bias=False, mamba_n_heads=8, mamba_d_head=8,
               mamba_d_state=16, mamba_d_conv=4, mamba_expand=2, mamba_n_groups=1, mamba_chunk_size=32, mamba_conv_bias=True, mamba_proj_bias=False, layer_types=["mamba", "attention", "mamba", "attention"], num_hidden_layers=4)
FAMILIES["granite_hybrid"] = base("GraniteMoeHybridForCausalLM", "granitemoehybrid", position_embedding_type="nope", num_local_experts=0, num_experts_per_tok=0, shared_intermediate_size=48, **GRANITE)
# two groups of B and C, rotary positions
FAMILIES["granite_hybrid_moe"] = base("GraniteMoeHybridForCausalLM", "granitemoehybrid", position_embedding_type="rope", rope_theta=10000.0, num_local_experts=6, num_experts_per_tok=2, shared_intermediate_size=32,
                                      intermediate_size=16, **GRANITE | dict(mamba_n_groups=2))

FALCON = dict(hidden_size=32, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=16, intermediate_size=48, rope_theta=1e11, attention_bias=False, mlp_bias=False, mamba_d_conv=4, mamba_chunk_size=32,
              mamba_conv_bias=True, mamba_proj_bias=False, projectors_bias=False, mamba_d_ssm=48, mamba_n_heads=6, mamba_d_head=8, mamba_d_state=16, mamba_n_groups=1, mamba_rms_norm=False, mamba_norm_before_gate=False,
              tie_word_embeddings=False, embedding_multiplier=1.7, lm_head_multiplier=0.6, key_multiplier=1.3, attention_in_multiplier=0.8, attention_out_multiplier=0.9, ssm_in_multiplier=1.25, ssm_out_multiplier=0.7,
              ssm_multipliers=[0.8, 1.2, 0.7, 1.1, 0.9], mlp_multipliers=[1.4, 0.6])
FAMILIES["falcon_h1"] = base("FalconH1ForCausalLM", "falcon_h1", **FALCON)
# a norm after the gate, over each of two groups; one KV head; biases of the FFN
FAMILIES["falcon_h1_norm"] = base("FalconH1ForCausalLM", "falcon_h1", **FALCON | dict(mamba_rms_norm=True, mamba_n_groups=2, mamba_d_ssm=64, mamba_n_heads=8, num_key_value_heads=1, mlp_bias=True))
NEMOTRON = dict(hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=16, intermediate_size=48, layer_norm_epsilon=1e-5, attention_bias=False, mlp_bias=False, use_bias=False, mamba_proj_bias=False, mlp_hidden_act="relu2",
                mamba_hidden_act="silu", mamba_num_heads=8, mamba_head_dim=8, ssm_state_size=16, n_groups=2, conv_kernel=4, use_conv_bias=True, chunk_size=32, tie_word_embeddings=False, time_step_limit=[0.0, float("inf")])
FAMILIES["nemotron_h"] = base("NemotronHForCausalLM", "nemotron_h", hybrid_override_pattern="MM-M*-*M-M", **NEMOTRON | {"num_hidden_layers": 10})
FAMILIES["nemotron_h_moe"] = base("NemotronHForCausalLM", "nemotron_h", hybrid_override_pattern="MEM*EME", n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=1, moe_intermediate_size=16, moe_shared_expert_intermediate_size=32,
                                  n_group=2, topk_group=1, norm_topk_prob=True, routed_scaling_factor=2.5, **NEMOTRON | {"num_hidden_layers": 7})


def randomise(model):
    """Sets every parameter to random numbers that bf16 holds exactly. Decays are from 0.3 to 0.99."""
    for name, p in model.state_dict().items():
        if not p.is_floating_point():
            continue
        if name.endswith("A_log"):
            x = torch.log(0.05 + torch.rand(p.shape))
        elif name.endswith("dt_bias"):
            x = torch.randn(p.shape) - 1
        elif name.endswith("linear_attn.norm.weight") or "norm" in name and not model.config.model_type.startswith("qwen"):
            x = 1 + 0.15 * torch.randn(p.shape)
        elif name.endswith(".D"):
            x = 0.5 * torch.randn(p.shape)
        elif p.dim() < 2:  # biases, and norms that multiply by 1 + weight
            x = 0.15 * torch.randn(p.shape)
        elif "embed" in name:
            x = 0.5 * torch.randn(p.shape)
        elif "lm_head" in name:
            x = 2.5 * torch.randn(p.shape) / math.sqrt(p.shape[-1])
        else:
            x = 1.2 * torch.randn(p.shape) / math.sqrt(p.shape[-1])  # experts are (experts, rows, columns)
        p.copy_(x.to(torch.bfloat16))


def cached(model, ids):
    """The logits after the last token, with the texts' tokens read one by one after the first."""
    with torch.no_grad():
        out = model(input_ids=torch.tensor([ids[:1]]), use_cache=True)
        for t in ids[1:]:
            out = model(input_ids=torch.tensor([[t]]), cache=out.past_key_values, use_cache=True)
        return out.logits[0, -1].float()


def main():
    g.randomise = randomise
    whole = g.logits

    def both(model, ids):
        row = whole(model, ids)
        if len(ids) in g.LENGTHS:
            apart = (row - cached(model, ids)).abs().max().item()
            assert apart < 1e-3, "token by token differs by %g after %d tokens" % (apart, len(ids))
        return row

    g.logits = both
    for name in sys.argv[2].split(",") if len(sys.argv) > 2 else FAMILIES:
        g.write(sys.argv[1], name, FAMILIES[name])


if __name__ == "__main__":
    main()
