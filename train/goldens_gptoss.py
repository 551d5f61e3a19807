"""Tiny random checkpoints of gpt-oss with reference logits from transformers in float32, in bf16 and
with the experts in MXFP4 blocks, as OpenAI publishes them. Usage: goldens_gptoss.py OUTDIR [name,name]
"""
import json, os, shutil, sys, tempfile
import torch
from goldens_families import deeper as base, randomise_scores as randomise, reference

# The hub's config.json, smaller.
CONFIG = base("GptOssForCausalLM", "gpt_oss", tie_word_embeddings=False, hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=2, head_dim=16,
              attention_bias=True, attention_dropout=0.0, num_local_experts=6, num_experts_per_tok=2, experts_per_token=2, sliding_window=20, initial_context_length=32,
              layer_types=["sliding_attention", "full_attention"] * 2, swiglu_limit=7.0, rope_theta=150000, output_router_logits=False, router_aux_loss_coef=0.9, initializer_range=0.02,
              rope_scaling={"beta_fast": 32.0, "beta_slow": 1.0, "factor": 16.0, "original_max_position_embeddings": 32, "rope_type": "yarn", "truncate": False})
QUANTIZED = {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}}
FP4 = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6])


def experts(model):
    """Makes gates and ups so large that the clamp bites, and the outputs of experts as large as attention's."""
    for name, p in model.state_dict().items():
        if name.endswith("experts.gate_up_proj"):
            p.copy_((5 * torch.randn(p.shape) / p.shape[1] ** 0.5).to(torch.bfloat16))
        elif name.endswith("experts.down_proj"):
            p.copy_((0.15 * torch.randn(p.shape) / p.shape[1] ** 0.5).to(torch.bfloat16))
        elif name.endswith(("gate_up_proj_bias", "down_proj_bias")):
            p.copy_((0.5 * torch.randn(p.shape)).to(torch.bfloat16))


def blocks(model):
    """Replaces the experts by random MXFP4 blocks, and returns the tensors of the published form."""
    out = {}
    for name, p in model.state_dict().items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            continue
        e, cols, rows = p.shape
        codes = torch.randint(0, 256, (e, rows, cols // 32, 16), dtype=torch.uint8)
        high = 121 if name.endswith(".down_proj") else 126
        scales = torch.randint(high - 4, high, (e, rows, cols // 32), dtype=torch.uint8)
        values = FP4[torch.stack([codes & 15, codes >> 4], -1).long()].reshape(e, rows, cols // 32, 32)
        values = (values * torch.exp2(scales.float() - 127)[..., None]).reshape(e, rows, cols)
        p.copy_(values.transpose(1, 2).to(torch.bfloat16))
        assert torch.equal(p.transpose(1, 2), values)
        out[name + "_blocks"], out[name + "_scales"] = codes, scales
    return out


def count(clamped, module, args):
    """Appends the part of the gates and ups of an expert that the clamp changes."""
    if type(module).__name__ == "GptOssExperts":
        x = args[0] @ module.gate_up_proj[0] + module.gate_up_proj_bias[0]
        clamped.append(float((x[..., ::2] > 7).float().mean() + (x[..., 1::2].abs() > 7).float().mean()) / 2)


def write(out, name):
    import transformers
    from safetensors.torch import load_file, save_file
    folder = f"{out}/{name}"
    os.makedirs(folder, exist_ok=True)
    cls = transformers.GptOssForCausalLM
    packed = name.endswith("mxfp4")
    json.dump(CONFIG | (QUANTIZED if packed else {}), open(f"{folder}/config.json", "w"), indent=1)
    json.dump({"bos_token_id": 0, "eos_token_id": 1, "do_sample": False}, open(f"{folder}/generation_config.json", "w"), indent=1)
    for seed in range(9000, 9040):
        torch.manual_seed(seed)
        with tempfile.TemporaryDirectory() as tmp:
            json.dump(CONFIG, open(f"{tmp}/config.json", "w"))
            model = cls(transformers.AutoConfig.from_pretrained(tmp))
            with torch.no_grad():
                randomise(model, 1)
                experts(model)
                quantized = blocks(model) if packed else {}
            model.to(torch.bfloat16)
            model.save_pretrained(tmp)
            tensors = load_file(f"{tmp}/model.safetensors")
            for key in quantized:
                tensors.pop(key.rsplit("_", 1)[0], None)
            save_file(tensors | quantized, f"{folder}/model.safetensors", {"format": "pt"})
            shutil.copy(f"{tmp}/config.json", f"{folder}/config.v5.json")
            clamped = []
            hook = torch.nn.modules.module.register_module_forward_hook(lambda m, args, _: count(clamped, m, args))
            golden = reference(tmp, cls, seed)
            hook.remove()
        if packed:
            os.remove(f"{folder}/config.v5.json")
        print(name, "seed", seed, "smallest greedy gap %.2e, kinds of tokens %d, largest logit %.1f, clamped %.3f" % (
            golden["min_gap"], golden["kinds"], max(max(map(abs, i["logits"])) for i in golden["items"]), sum(clamped) / max(1, len(clamped))), flush=True)
        if golden["min_gap"] > 1e-3 and golden["kinds"] > 3:
            break
    json.dump(golden, open(f"{folder}/goldens.json", "w"))


if __name__ == "__main__":
    for name in sys.argv[2].split(",") if len(sys.argv) > 2 else ["gpt_oss", "gpt_oss_mxfp4"]:
        write(sys.argv[1], name)
