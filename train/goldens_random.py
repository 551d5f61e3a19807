"""Random tiny configurations of every class that Shoal accepts, with the logits of transformers, to find
settings that are read wrongly. Usage: goldens_random.py OUTDIR COUNT [SEED] [class,class]

Each folder has config.json in the form of transformers 4 or of 5, float32 weights and goldens.json. Keys
are left out at random, so that the defaults of the configuration class count. Compare with
go test ./actors/socket -run GoldensOfFolder -goldens OUTDIR
A model whose logits depend on rounding (a tie of experts, say) is drawn again.
"""
import json, math, os, random, sys, tempfile
import torch

torch.set_num_threads(1)

ABSENT = object()  # the key is left out


def rope(r, c, rd, kinds, theta):
    """Adds a base and a scaling of rotary positions in the form of transformers 4 or 5."""
    kind = r.choice(kinds)
    base = r.choice([theta, 10000.0, 1e6, 5e5, ABSENT])
    s = {"rope_type": kind}
    if kind == "linear":
        s["factor"] = r.choice([2.0, 4.0])
    elif kind == "llama3":
        s |= {"factor": 8.0, "low_freq_factor": r.choice([1.0, 2.0]), "high_freq_factor": 4.0, "original_max_position_embeddings": r.choice([16, 64])}
    elif kind == "dynamic":
        s["factor"] = 2.0
    elif kind == "yarn":
        s |= {"factor": r.choice([4.0, 32.0]), "original_max_position_embeddings": r.choice([16, 32])}
        for key, values in {"beta_fast": [32, 16], "beta_slow": [1, 2], "attention_factor": [1.2], "mscale": [1.0, 0.7], "mscale_all_dim": [1.0, 0.8, 0.0], "truncate": [True, False]}.items():
            if r.random() < 0.4:
                s[key] = r.choice(values)
    if r.random() < 0.5:  # transformers 5
        if base is not ABSENT:
            s["rope_theta"] = base
        if kind != "default" or base is not ABSENT or r.random() < 0.5:
            c["rope_parameters"] = s
    else:
        if base is not ABSENT:
            c["rope_theta"] = base
        if kind != "default":
            if r.random() < 0.3:
                s["type"] = s.pop("rope_type")
            c["rope_scaling"] = s
        elif r.random() < 0.5:
            c["rope_scaling"] = None


def sizes(r, arch, mt, heads=(2, 4, 6), own_dim=True, tied=True):
    h, d = r.choice(heads), r.choice([8, 16, 24])
    c = {"architectures": [arch], "model_type": mt, "vocab_size": 160, "hidden_size": h * d, "num_attention_heads": h, "num_hidden_layers": r.choice([2, 3, 4]),
         "intermediate_size": r.choice([32, 48, 80]), "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "torch_dtype": "float32",
         "num_key_value_heads": r.choice([n for n in range(1, h + 1) if h % n == 0]), "max_position_embeddings": 512}
    if own_dim and r.random() < 0.7:
        c["head_dim"] = r.choice([8, 16, 32])
        c["hidden_size"] = r.choice([32, 48, 72])
    elif own_dim and r.random() < 0.3:
        c["head_dim"] = None
    maybe(r, c, rms_norm_eps=[1e-5, 1e-6, 1e-3])
    if tied:
        maybe(r, c, tie_word_embeddings=[True, False])
    return c


def maybe(r, c, **choices):
    """Sets each key to one of its values, or leaves it out."""
    for key, values in choices.items():
        if r.random() < 0.7:
            c[key] = r.choice(values)


def dim(c):
    return c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]


def kinds(r, c, kind="sliding_attention"):
    return [r.choice([kind, "full_attention"]) for _ in range(c["num_hidden_layers"])]


def experts(r, c, total="num_experts", per="num_experts_per_tok", width="moe_intermediate_size"):
    n = r.choice([4, 6, 8])
    c |= {total: n, per: r.choice([1, 2, 3]), width: r.choice([16, 32])}


ROPES = ["default", "default", "linear", "llama3", "yarn", "dynamic"]
MAKERS = {}


def maker(arch):
    return lambda f: MAKERS.setdefault(arch, f)


@maker("LlamaForCausalLM")
def llama(r):
    c = sizes(r, "LlamaForCausalLM", "llama")
    maybe(r, c, attention_bias=[True, False], mlp_bias=[True, False])
    rope(r, c, dim(c), ROPES, 10000.0)
    return c


@maker("MistralForCausalLM")
def mistral(r):
    c = sizes(r, "MistralForCausalLM", "mistral")
    maybe(r, c, sliding_window=[None, 8, 20])
    rope(r, c, dim(c), ROPES, 10000.0)
    return c


@maker("Ministral3ForCausalLM")
def ministral3(r):
    c = sizes(r, "Ministral3ForCausalLM", "ministral3")
    maybe(r, c, sliding_window=[None, 20])
    c["rope_parameters"] = {"rope_type": r.choice(["yarn", "yarn", "default"]), "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 16, "max_position_embeddings": 64, "beta_fast": 32.0, "beta_slow": 1.0,
                            "mscale_all_dim": 1.0, "mscale": r.choice([1.0, 0.8]), "llama_4_scaling_beta": r.choice([0.1, 0.3])}
    return c


@maker("MixtralForCausalLM")
def mixtral(r):
    c = sizes(r, "MixtralForCausalLM", "mixtral")
    maybe(r, c, sliding_window=[None, 20])
    c |= {"num_local_experts": r.choice([4, 6]), "num_experts_per_tok": r.choice([1, 2, 3])}
    rope(r, c, dim(c), ROPES, 1e6)
    return c


@maker("Phi3ForCausalLM")
def phi3(r):
    c = sizes(r, "Phi3ForCausalLM", "phi3", own_dim=False)
    maybe(r, c, sliding_window=[None, 20], partial_rotary_factor=[1.0, 0.5, 0.75], original_max_position_embeddings=[512])
    c["rope_theta"] = 10000.0
    if r.random() < 0.5:  # all prompts are within the original context
        n = int(dim(c) * c.get("partial_rotary_factor", 1.0)) // 2
        c["original_max_position_embeddings"] = 128
        c["rope_scaling"] = {"type": "longrope", "short_factor": [1 + r.random() for _ in range(n)], "long_factor": [2 + r.random() for _ in range(n)]}
        c["max_position_embeddings"] = 128
    return c


@maker("Qwen2ForCausalLM")
def qwen2(r):
    c = sizes(r, "Qwen2ForCausalLM", "qwen2", own_dim=False)
    maybe(r, c, use_sliding_window=[True, False], sliding_window=[8, 20, None], max_window_layers=[0, 1, 2, 28], layer_types=[kinds(r, c)])
    rope(r, c, dim(c), ROPES, 10000.0)
    return c


@maker("Qwen3ForCausalLM")
def qwen3(r):
    c = qwen2(r) | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
    maybe(r, c, attention_bias=[True, False], head_dim=[16, 32])
    if "head_dim" not in c:
        c["head_dim"] = 8
    return c


@maker("Qwen3MoeForCausalLM")
def qwen3moe(r):
    c = sizes(r, "Qwen3MoeForCausalLM", "qwen3_moe")
    maybe(r, c, attention_bias=[True, False], decoder_sparse_step=[1, 2], norm_topk_prob=[True, False], mlp_only_layers=[[], [0], [1]], use_sliding_window=[False, True], sliding_window=[20], max_window_layers=[0, 1])
    experts(r, c)
    rope(r, c, dim(c), ROPES, 10000.0)
    return c


@maker("Qwen2MoeForCausalLM")
def qwen2moe(r):
    c = sizes(r, "Qwen2MoeForCausalLM", "qwen2_moe", own_dim=False)
    maybe(r, c, decoder_sparse_step=[1, 2], norm_topk_prob=[True, False], mlp_only_layers=[[], [0], [1]], use_sliding_window=[False, True], sliding_window=[20], max_window_layers=[0, 1], qkv_bias=[True, False])
    experts(r, c)
    c["shared_expert_intermediate_size"] = r.choice([16, 48])
    rope(r, c, dim(c), ROPES, 10000.0)
    return c


@maker("Gemma2ForCausalLM")
def gemma2(r):
    c = sizes(r, "Gemma2ForCausalLM", "gemma2")
    c["head_dim"] = r.choice([8, 16, 32])
    maybe(r, c, attention_bias=[True, False], query_pre_attn_scalar=[24, 64], sliding_window=[8, 20], attn_logit_softcapping=[2.0, None], final_logit_softcapping=[8.0, None], layer_types=[kinds(r, c)],
          hidden_activation=["gelu_pytorch_tanh"])
    rope(r, c, dim(c), ["default", "linear"], 10000.0)
    return c


@maker("GemmaForCausalLM")
def gemma(r):
    c = sizes(r, "GemmaForCausalLM", "gemma")
    c["head_dim"] = r.choice([8, 16, 32])
    maybe(r, c, attention_bias=[True, False], hidden_act=["gelu_pytorch_tanh", "gelu"])
    rope(r, c, dim(c), ["default", "linear"], 10000.0)
    return c


@maker("Gemma3ForCausalLM")
def gemma3(r):
    c = sizes(r, "Gemma3ForCausalLM", "gemma3_text")
    c["head_dim"] = r.choice([8, 16, 32])
    maybe(r, c, attention_bias=[True, False], query_pre_attn_scalar=[24, 64], sliding_window=[8, 20], final_logit_softcapping=[8.0, None], hidden_activation=["gelu_pytorch_tanh"])
    if r.random() < 0.5:
        c["layer_types"] = kinds(r, c)
    else:
        c["sliding_window_pattern"] = r.choice([2, 3, 6])
    if r.random() < 0.5:
        c["rope_theta"], c["rope_local_base_freq"] = 1e6, r.choice([1e4, 5e4])
        c["rope_scaling"] = r.choice([None, {"rope_type": "linear", "factor": 8.0}])
    else:
        c["rope_parameters"] = {"full_attention": {"rope_type": r.choice(["default", "linear"]), "factor": 4.0, "rope_theta": r.choice([1e6, 1e5])}, "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}
    return c


@maker("Gemma4ForCausalLM")
def gemma4(r):
    c = sizes(r, "Gemma4ForCausalLM", "gemma4_text", heads=(4,))
    layers = r.choice([4, 5, 6])
    shared = r.choice([0, 0, 1, 2])
    c |= {"num_hidden_layers": layers, "head_dim": 16, "global_head_dim": r.choice([16, 32]), "num_kv_shared_layers": shared, "hidden_size_per_layer_input": r.choice([0, 8]),
          "layer_types": (["sliding_attention", "full_attention"] * layers)[layers % 2:][:layers], "num_key_value_heads": r.choice([1, 2, 4])}
    c["vocab_size_per_layer_input"] = 160
    maybe(r, c, sliding_window=[8, 20], final_logit_softcapping=[8.0, None], use_double_wide_mlp=[True, False])
    if r.random() < 0.5:
        c |= {"attention_k_eq_v": True, "num_global_key_value_heads": r.choice([1, 2])}
    if r.random() < 0.5:
        c |= {"enable_moe_block": True, "num_experts": 6, "top_k_experts": r.choice([1, 2, 3]), "moe_intermediate_size": 16}
    if r.random() < 0.5:
        c["rope_parameters"] = {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4}, "full_attention": {"rope_type": "proportional", "partial_rotary_factor": r.choice([0.25, 0.5]), "rope_theta": 1e6}}
    return c


@maker("GraniteForCausalLM")
def granite(r):
    c = sizes(r, "GraniteForCausalLM", "granite")
    maybe(r, c, attention_bias=[True, False], mlp_bias=[True, False], embedding_multiplier=[12.0, 3], attention_multiplier=[0.25, 0.5], residual_multiplier=[0.22], logits_scaling=[3.0, 8])
    rope(r, c, dim(c), ROPES, 10000.0)
    return c


@maker("GraniteMoeForCausalLM")
def granitemoe(r):
    c = granite(r) | {"architectures": ["GraniteMoeForCausalLM"], "model_type": "granitemoe", "num_local_experts": r.choice([4, 6]), "num_experts_per_tok": r.choice([1, 2, 3])}
    c.pop("mlp_bias", None), c.pop("head_dim", None)
    c["hidden_size"] = c["num_attention_heads"] * 16
    return c


@maker("Olmo2ForCausalLM")
def olmo2(r):
    c = sizes(r, "Olmo2ForCausalLM", "olmo2", own_dim=False)
    maybe(r, c, attention_bias=[True, False])
    rope(r, c, dim(c), ROPES, 10000.0)
    return c


@maker("Olmo3ForCausalLM")
def olmo3(r):
    c = olmo2(r) | {"architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3"}
    if "rope_parameters" in c:
        c["rope_parameters"] = {"full_attention": c["rope_parameters"], "sliding_attention": {"rope_type": "default", "rope_theta": r.choice([10000.0, 5e5])}}
    if "rope_theta" in c:
        c["rope_theta"] = 5e5
    maybe(r, c, sliding_window=[8, 20], layer_types=[kinds(r, c)])
    return c


@maker("OlmoeForCausalLM")
def olmoe(r):
    c = olmo2(r) | {"architectures": ["OlmoeForCausalLM"], "model_type": "olmoe"}
    maybe(r, c, norm_topk_prob=[True, False], clip_qkv=[None])
    experts(r, c, width="intermediate_size")
    return c


@maker("Exaone4ForCausalLM")
def exaone4(r):
    c = sizes(r, "Exaone4ForCausalLM", "exaone4")
    maybe(r, c, sliding_window=[8, 20, None], sliding_window_pattern=[2, 3, 4, "LLG"], layer_types=[kinds(r, c)])
    rope(r, c, dim(c), ROPES, 10000.0)
    return c


@maker("SeedOssForCausalLM")
def seed(r):
    c = sizes(r, "SeedOssForCausalLM", "seed_oss")
    maybe(r, c, attention_bias=[True, False], attention_out_bias=[True, False], mlp_bias=[True, False])
    rope(r, c, dim(c), ROPES, 10000.0)
    return c


@maker("HunYuanDenseV1ForCausalLM")
def hunyuan(r):
    c = sizes(r, "HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense")
    maybe(r, c, attention_bias=[True, False])
    rope(r, c, dim(c), ["default", "linear", "yarn"], 10000.0)
    if r.random() < 0.4:
        c.pop("rope_parameters", None)
        c["rope_scaling"] = {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}
    return c


@maker("HunYuanMoEV1ForCausalLM")
def hunyuanmoe(r):
    c = hunyuan(r) | {"architectures": ["HunYuanMoEV1ForCausalLM"], "model_type": "hunyuan_v1_moe", "num_experts": r.choice([4, 8]), "moe_topk": r.choice([1, 2])}
    maybe(r, c, num_shared_expert=[1], moe_intermediate_size=[c["intermediate_size"]])
    return c


@maker("HYV3ForCausalLM")
def hyv3(r):
    c = sizes(r, "HYV3ForCausalLM", "hy_v3")
    maybe(r, c, num_shared_experts=[1, 2], router_scaling_factor=[1.0, 2.0], mlp_layer_types=[[r.choice(["dense", "sparse"]) for _ in range(c["num_hidden_layers"])]], attention_bias=[True, False])
    experts(r, c)
    rope(r, c, dim(c), ROPES, 10000.0)
    return c


@maker("CohereForCausalLM")
def cohere(r):
    c = sizes(r, "CohereForCausalLM", "cohere", own_dim=False)
    c.pop("rms_norm_eps", None)
    maybe(r, c, logit_scale=[0.25, 0.5], layer_norm_eps=[1e-5, 1e-3], use_qk_norm=[True, False], attention_bias=[True, False])
    rope(r, c, dim(c), ROPES, 10000.0)
    return c


@maker("Cohere2ForCausalLM")
def cohere2(r):
    c = cohere(r) | {"architectures": ["Cohere2ForCausalLM"], "model_type": "cohere2"}
    c.pop("use_qk_norm", None)
    maybe(r, c, sliding_window=[8, 20], head_dim=[16])
    if r.random() < 0.5:
        c["layer_types"] = kinds(r, c)
    else:
        maybe(r, c, sliding_window_pattern=[2, 3, 4])
    return c


@maker("SmolLM3ForCausalLM")
def smollm3(r):
    c = sizes(r, "SmolLM3ForCausalLM", "smollm3", own_dim=False)
    maybe(r, c, attention_bias=[True, False], mlp_bias=[True, False], no_rope_layer_interval=[2, 3, 4], no_rope_layers=[[r.choice([0, 1]) for _ in range(c["num_hidden_layers"])]], use_sliding_window=[True, False],
          sliding_window=[8, 20], layer_types=[kinds(r, c)])
    rope(r, c, dim(c), ROPES, 10000.0)
    return c


@maker("Glm4ForCausalLM")
def glm4(r):
    c = sizes(r, "Glm4ForCausalLM", "glm4")
    maybe(r, c, attention_bias=[True, False], partial_rotary_factor=[0.5, 1.0, 0.25])
    c["head_dim"] = r.choice([16, 32])
    rope(r, c, dim(c), ["default"], 10000.0)
    return c


@maker("GlmForCausalLM")
def glm(r):
    return glm4(r) | {"architectures": ["GlmForCausalLM"], "model_type": "glm"}


@maker("Glm4MoeForCausalLM")
def glm4moe(r):
    c = glm4(r) | {"architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe"}
    maybe(r, c, use_qk_norm=[True, False], n_shared_experts=[1, 2], first_k_dense_replace=[0, 1, 2], routed_scaling_factor=[1.0, 2.5], norm_topk_prob=[True, False])
    experts(r, c, "n_routed_experts")
    grouped(r, c)
    return c


def grouped(r, c):
    n = r.choice([1, 1, 2])
    maybe(r, c, n_group=[n], topk_group=[1])
    if n > 1 and "n_group" in c:
        c["topk_group"] = r.choice([1, 2])
        c["num_experts_per_tok"] = min(c["num_experts_per_tok"], 2)
    elif "n_group" not in c:
        c.pop("topk_group", None)


def latent(r, arch, mt, **k):
    c = sizes(r, arch, mt, own_dim=False)
    c |= {"num_key_value_heads": c["num_attention_heads"], "q_lora_rank": r.choice([24, 32, None]), "kv_lora_rank": r.choice([16, 32]), "qk_nope_head_dim": r.choice([8, 16]), "qk_rope_head_dim": r.choice([8, 16]), "v_head_dim": r.choice([8, 24])}
    experts(r, c, "n_routed_experts")
    maybe(r, c, n_shared_experts=[1, 2], routed_scaling_factor=[1.0, 2.5], norm_topk_prob=[True, False], first_k_dense_replace=[0, 1, 2], attention_bias=[False])
    grouped(r, c)
    return c | k


@maker("DeepseekV3ForCausalLM")
def deepseek3(r):
    c = latent(r, "DeepseekV3ForCausalLM", "deepseek_v3")
    c |= {"n_group": c.get("n_group", 1), "topk_group": c.get("topk_group", 1)}
    maybe(r, c, rope_interleave=[True])
    rope(r, c, c["qk_rope_head_dim"], ["default", "yarn", "yarn"], 10000.0)
    return c


def indexed(r, c):
    # With few heads all products of a token are often negative, and torch chooses among equal scores.
    c |= {"q_lora_rank": r.choice([24, 32]), "index_topk": r.choice([4, 9, 16]), "index_n_heads": r.choice([16, 17, 24]), "index_head_dim": c["qk_rope_head_dim"] + r.choice([0, 8, 16])}
    n = c["num_hidden_layers"]
    if r.random() < 0.5:
        c["mlp_layer_types"] = [r.choice(["dense", "sparse"]) for _ in range(n)]
        c.pop("first_k_dense_replace", None)
    return c


@maker("DeepseekV32ForCausalLM")
def deepseek32(r):
    c = indexed(r, latent(r, "DeepseekV32ForCausalLM", "deepseek_v32"))
    c |= {"n_group": c.get("n_group", 1), "topk_group": c.get("topk_group", 1)}
    rope(r, c, c["qk_rope_head_dim"], ["default", "yarn"], 10000.0)
    return c


@maker("GlmMoeDsaForCausalLM")
def glm5(r):
    c = indexed(r, latent(r, "GlmMoeDsaForCausalLM", "glm_moe_dsa"))
    maybe(r, c, indexer_types=[["full"] * c["num_hidden_layers"]], index_topk_freq=[1])
    rope(r, c, c["qk_rope_head_dim"], ["default", "yarn"], 10000.0)
    return c


@maker("DeepseekV2ForCausalLM")
def deepseek2(r):
    c = latent(r, "DeepseekV2ForCausalLM", "deepseek_v2")
    maybe(r, c, topk_method=["greedy", "group_limited_greedy"])
    c["norm_topk_prob"] = False
    rope(r, c, c["qk_rope_head_dim"], ["default", "yarn", "yarn"], 10000.0)
    return c


@maker("Glm4MoeLiteForCausalLM")
def glm4lite(r):
    c = latent(r, "Glm4MoeLiteForCausalLM", "glm4_moe_lite", q_lora_rank=32)
    c.pop("first_k_dense_replace", None)
    maybe(r, c, mlp_layer_types=[[r.choice(["dense", "sparse"]) for _ in range(c["num_hidden_layers"])]])
    rope(r, c, c["qk_rope_head_dim"], ["default"], 1e6)
    return c


@maker("MiniMaxM2ForCausalLM")
def minimax(r):
    c = sizes(r, "MiniMaxM2ForCausalLM", "minimax_m2")
    c["head_dim"] = r.choice([16, 32])
    maybe(r, c, rotary_dim=[8, 16])
    experts(r, c, "num_local_experts", width="intermediate_size")
    rope(r, c, dim(c), ["default"], 5e6)
    return c


@maker("Ernie4_5ForCausalLM")
def ernie(r):
    c = sizes(r, "Ernie4_5ForCausalLM", "ernie4_5")
    maybe(r, c, use_bias=[True, False])
    rope(r, c, dim(c), ["default", "linear", "llama3"], 500000.0)
    return c


@maker("Ernie4_5_MoeForCausalLM")
def erniemoe(r):
    c = sizes(r, "Ernie4_5_MoeForCausalLM", "ernie4_5_moe", own_dim=False)
    maybe(r, c, use_bias=[False, True], moe_num_shared_experts=[1, 2], moe_layer_start_index=[0, 1, 2], moe_layer_end_index=[-1, 2], moe_layer_interval=[1, 2], moe_norm_min=[1e-12])
    experts(r, c, "moe_num_experts", "moe_k")
    rope(r, c, dim(c), ["default", "linear", "llama3"], 500000.0)
    return c


@maker("GptOssForCausalLM")
def gptoss(r):
    c = sizes(r, "GptOssForCausalLM", "gpt_oss")
    c["head_dim"] = r.choice([16, 32])
    maybe(r, c, attention_bias=[True, False], sliding_window=[8, 20], layer_types=[kinds(r, c)])
    experts(r, c, "num_local_experts", width="intermediate_size")
    rope(r, c, dim(c), ["default", "yarn", "yarn"], 150000.0)
    return c


@maker("Llama4ForCausalLM")
def llama4(r):
    c = sizes(r, "Llama4ForCausalLM", "llama4_text")
    c |= {"head_dim": r.choice([16, 32]), "intermediate_size_mlp": r.choice([32, 64]), "num_local_experts": r.choice([4, 6])}
    maybe(r, c, use_qk_norm=[True, False], attn_temperature_tuning=[True, False], attn_scale=[0.1, 0.5], floor_scale=[8, 16], attention_chunk_size=[8, 24, None], interleave_moe_layer_step=[1, 2], num_experts_per_tok=[1, 2],
          no_rope_layer_interval=[2, 3], no_rope_layers=[[r.choice([0, 1]) for _ in range(c["num_hidden_layers"])]], attention_bias=[True, False], moe_layers=[[1], []], layer_types=[kinds(r, c, "chunked_attention")])
    rope(r, c, dim(c), ["default", "llama3", "linear"], 500000.0)
    return c


def delta(r, arch, mt):
    c = sizes(r, arch, mt, heads=(4,))
    n = c["num_hidden_layers"] = r.choice([2, 3, 4])
    c |= {"head_dim": r.choice([16, 32]), "num_key_value_heads": r.choice([1, 2, 4]), "linear_key_head_dim": r.choice([8, 16]), "linear_value_head_dim": r.choice([8, 16]), "linear_num_key_heads": 2, "linear_num_value_heads": r.choice([2, 4])}
    if r.random() < 0.5:
        c["layer_types"] = ["linear_attention"] + [r.choice(["linear_attention", "full_attention"]) for _ in range(n - 2)] + ["full_attention"]
    else:
        c["full_attention_interval"] = 2
    maybe(r, c, attention_bias=[True, False], linear_conv_kernel_dim=[4, 3])
    c["rope_parameters"] = {"rope_type": "default", "rope_theta": r.choice([1e4, 1e7]), "partial_rotary_factor": r.choice([0.25, 0.5])}
    return c


@maker("Qwen3_5ForCausalLM")
def qwen35(r):
    return delta(r, "Qwen3_5ForCausalLM", "qwen3_5_text")


@maker("Qwen3_5MoeForCausalLM")
def qwen35moe(r):
    c = delta(r, "Qwen3_5MoeForCausalLM", "qwen3_5_moe_text") | {"shared_expert_intermediate_size": r.choice([16, 48])}
    experts(r, c)
    return c


@maker("Qwen3NextForCausalLM")
def qwen3next(r):
    c = delta(r, "Qwen3NextForCausalLM", "qwen3_next") | {"shared_expert_intermediate_size": r.choice([16, 48])}
    maybe(r, c, decoder_sparse_step=[1, 2], mlp_only_layers=[[], [0]], norm_topk_prob=[True, False])
    experts(r, c)
    return c


def mamba(r, c, heads, width, state, groups, taps, bias):
    """Adds the sizes of Mamba-2 under a family's names. Returns the width of all heads."""
    n, d, g = r.choice([4, 6, 8]), r.choice([8, 16]), r.choice([1, 2])
    c |= {heads: n, width: d, state: r.choice([8, 16]), groups: g}
    maybe(r, c, **{taps: [4, 3], bias: [True, False]})
    return n * d


@maker("FalconH1ForCausalLM")
def falconh1(r):
    c = sizes(r, "FalconH1ForCausalLM", "falcon_h1")
    if c.get("head_dim", 0) is None:
        del c["head_dim"]
    c["mamba_d_ssm"] = mamba(r, c, "mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups", "mamba_d_conv", "mamba_conv_bias")
    if r.random() < 0.3:
        c["mamba_d_head"] = "auto"
    if r.random() < 0.4:
        c |= {"mamba_rms_norm": True, "mamba_norm_before_gate": False}
    maybe(r, c, mlp_bias=[True, False], **{key: [0.5, 1.0, 1.2] for key in ("embedding_multiplier", "lm_head_multiplier", "key_multiplier", "attention_in_multiplier", "attention_out_multiplier", "ssm_in_multiplier", "ssm_out_multiplier")})
    maybe(r, c, attention_bias=[c.get("attention_in_multiplier", 1.0) == 1.0, False], ssm_multipliers=[[r.choice([0.5, 1.0, 1.4]) for _ in range(5)], None], mlp_multipliers=[[1.3, 0.6], None])
    rope(r, c, dim(c), ["default", "linear", "llama3"], 10000.0)
    return c


@maker("NemotronHForCausalLM")
def nemotronh(r):
    c = sizes(r, "NemotronHForCausalLM", "nemotron_h", tied=False)
    c |= {"head_dim": r.choice([8, 16, 32]), "time_step_min": 1e-30}  # transformers alone bounds dt by it
    c.pop("rms_norm_eps", None)
    mamba(r, c, "mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel", "use_conv_bias")
    pattern = "".join(r.choice(["M", "M-", "ME", "*", "*-", "*E"]) for _ in range(r.choice([2, 3, 4])))
    pattern += "*" if "*" not in pattern else ""
    names = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"} if r.random() < 0.5 else {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
    c["num_hidden_layers"] = len(pattern)
    c |= r.choice([{"hybrid_override_pattern": pattern}, {"layers_block_type": [names[k] for k in pattern]}])
    maybe(r, c, layer_norm_epsilon=[1e-5, 1e-3], routed_scaling_factor=[1.0, 2.5], norm_topk_prob=[True, False])
    experts(r, c, "n_routed_experts")
    c["moe_shared_expert_intermediate_size"] = r.choice([16, 48])
    grouped(r, c)
    return c


@maker("GraniteMoeHybridForCausalLM")
def granitehybrid(r):
    c = granite(r) | {"architectures": ["GraniteMoeHybridForCausalLM"], "model_type": "granitemoehybrid", "mamba_expand": 2, "shared_intermediate_size": r.choice([32, 48])}
    c.pop("mlp_bias", None)
    n = r.choice([4, 8])
    c |= {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": r.choice([1, 2, 4]), "mamba_n_heads": n, "mamba_d_head": r.choice([128 // n, "auto"]), "mamba_d_state": r.choice([8, 16])}
    c.pop("head_dim", None)
    c["layer_types"] = ["attention"] + [r.choice(["mamba", "attention"]) for _ in range(c["num_hidden_layers"] - 2)] + ["mamba"]
    c["num_local_experts"] = r.choice([0, 4])
    c["num_experts_per_tok"] = 2 if c["num_local_experts"] else 0
    maybe(r, c, mamba_n_groups=[1, 2], mamba_d_conv=[4, 3], mamba_conv_bias=[True, False], position_embedding_type=["rope", "nope"])
    return c


@maker("Lfm2ForCausalLM")
def lfm2(r):
    c = sizes(r, "Lfm2ForCausalLM", "lfm2", own_dim=False)
    for key in ("rms_norm_eps", "tie_word_embeddings"):
        c.pop(key, None)
    n = c["num_hidden_layers"]
    c |= r.choice([{"full_attn_idxs": [n - 1]}, {"layer_types": ["conv"] * (n - 1) + ["full_attention"]}])
    maybe(r, c, norm_eps=[1e-5, 1e-3], conv_L_cache=[3, 4], block_multiple_of=[8, 16], block_auto_adjust_ff_dim=[True, False], block_ffn_dim_multiplier=[1.0, 1.5], tie_embedding=[True, False], conv_bias=[False])
    c.setdefault("block_multiple_of", 16)
    rope(r, c, dim(c), ["default"], 1e6)
    return c


@maker("Gemma4UnifiedForCausalLM")
def gemma4unified(r):
    c = gemma4(r) | {"architectures": ["Gemma4UnifiedForCausalLM"], "model_type": "gemma4_unified_text"}
    for key in ("enable_moe_block", "num_experts", "top_k_experts", "moe_intermediate_size"):
        c.pop(key, None)
    return c


def randomise(model):
    tied = getattr(model.config, "tie_word_embeddings", False)
    for name, p in model.state_dict().items():
        if not p.is_floating_point() or name == "lm_head.weight" and tied:
            continue
        if "correction_bias" in name or "expert_bias" in name:
            x = 0.15 * torch.randn(p.shape)
        elif name.endswith("sinks"):
            x = 0.5 + torch.randn(p.shape)
        elif name.endswith("A_log"):
            x = torch.rand(p.shape)
        elif p.dim() < 2 or "norm" in name:
            x = p + (0.3 if name.endswith("bias") else 0.15) * torch.randn(p.shape)
        elif "embed" in name:
            x = 0.5 * torch.randn(p.shape)
        else:
            x = (2 if "lm_head" in name or "q_proj" in name or "k_proj" in name else 1.2) * torch.randn(p.shape) / math.sqrt(p.shape[-1])
        p.copy_(x)


def logits(model, ids):
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]


def reference(folder, model, r):
    exact = type(model).from_pretrained(folder, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager").eval()
    items, noise = [], 0.0
    for n in (1, 19, 45, 90):
        ids = [0] + [r.randrange(3, 160) for _ in range(n - 1)]
        prompt, greedy, first = list(ids), [], None
        for _ in range(4):
            row = logits(model, ids).float()
            diff = (row.double() - logits(exact, ids)).abs().max().item()
            if diff > 3e-4:
                return None  # depends on rounding
            noise = max(noise, diff)
            first = row if first is None else first
            top = row.topk(2)
            if (top.values[0] - top.values[1]).item() < 5e-3:
                break
            greedy.append(int(top.indices[0]))
            ids.append(greedy[-1])
        items.append({"prompt": prompt, "logits": [float("%.7g" % x) for x in first.tolist()], "greedy": greedy})
    return {"items": items, "noise": noise}


def main():
    import transformers
    out, count = sys.argv[1], int(sys.argv[2])
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    only = sys.argv[4].split(",") if len(sys.argv) > 4 else list(MAKERS)
    for i in range(count):
        for arch in only:
            name = f"{arch.removesuffix('ForCausalLM')}-{seed + i}"
            folder = f"{out}/{name}"
            for attempt in range(4):
                r = random.Random(f"{arch} {seed + i} {attempt}")
                torch.manual_seed(1000 * (seed + i) + attempt)
                config = MAKERS[arch](r)
                os.makedirs(folder, exist_ok=True)
                json.dump(config, open(f"{folder}/config.json", "w"), indent=1)
                try:
                    c = transformers.AutoConfig.from_pretrained(folder)
                    c.dtype = torch.float32
                    model = getattr(transformers, arch)._from_config(c, attn_implementation="eager", experts_implementation="eager").eval()
                    with torch.no_grad():
                        randomise(model)
                    with tempfile.TemporaryDirectory() as tmp:
                        model.save_pretrained(tmp)
                        os.replace(f"{tmp}/model.safetensors", f"{folder}/model.safetensors") if os.stat(tmp).st_dev == os.stat(folder).st_dev else __import__("shutil").move(f"{tmp}/model.safetensors", f"{folder}/model.safetensors")
                    golden = reference(folder, model, r)
                except Exception as e:  # transformers refuses the configuration
                    golden = None
                    print(name, "refused by transformers:", type(e).__name__, str(e)[:150].replace("\n", " "), flush=True)
                    continue
                if golden:
                    json.dump(golden, open(f"{folder}/goldens.json", "w"))
                    break


if __name__ == "__main__":
    main()
