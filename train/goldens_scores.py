"""Tiny random checkpoints of families that differ from Llama in attention scores, norms and multipliers,
with reference logits from transformers in float32. Usage: goldens_scores.py OUTDIR [name,name]

config.json is in the form that the hub has. Every parameter is random, also those that transformers
initialises to a constant, so that leaving one out changes the logits.
"""
import json, math, os, random, shutil, sys, tempfile
import torch

torch.set_num_threads(1)

V = 512
LENGTHS = (1, 17, 41, 71, 130)


def base(arch, mt, **k):
    return {"architectures": [arch], "model_type": mt, "vocab_size": V, "hidden_act": "silu", "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
            "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
            "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 64} | k


FAMILIES = {
    # 36 has a whole root, so that the scale of the embedding is the same in float32 and in bf16.
    "gemma": base("GemmaForCausalLM", "gemma", hidden_size=36, head_dim=16, hidden_act="gelu", rms_norm_eps=1e-6, rope_theta=10000.0, attention_bias=False),
    "gemma2": base("Gemma2ForCausalLM", "gemma2", hidden_size=36, head_dim=16, hidden_act="gelu_pytorch_tanh", hidden_activation="gelu_pytorch_tanh", rms_norm_eps=1e-6, rope_theta=10000.0, attention_bias=False,
                   query_pre_attn_scalar=24, sliding_window=20, attn_logit_softcapping=2.0, final_logit_softcapping=8.0),
    "granite": base("GraniteForCausalLM", "granite", embedding_multiplier=12.0, attention_multiplier=0.25, residual_multiplier=0.22, logits_scaling=3.0, rope_theta=10000.0, attention_bias=False, mlp_bias=False),
    "olmo2": base("Olmo2ForCausalLM", "olmo2", tie_word_embeddings=False, hidden_size=32, head_dim=16, rope_theta=500000.0, attention_bias=False, pad_token_id=None),
    "olmo3": base("Olmo3ForCausalLM", "olmo3", tie_word_embeddings=False, hidden_size=32, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, rope_theta=500000.0, attention_bias=False, pad_token_id=None, sliding_window=20,
                  layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
                  rope_scaling={"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "attention_factor": 1.2079441541679836, "beta_fast": 32, "beta_slow": 1}),
    "exaone4": base("Exaone4ForCausalLM", "exaone4", tie_word_embeddings=False, hidden_size=32, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=16, pad_token_id=None, sliding_window=20,
                    sliding_window_pattern=4, rope_theta=1000000.0, rope_scaling={"rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}),
    "seed_oss": base("SeedOssForCausalLM", "seed_oss", tie_word_embeddings=False, head_dim=16, hidden_size=32, attention_bias=True, attention_out_bias=True, mlp_bias=False, rope_theta=10000000.0),
    "hunyuan_v1_dense": base("HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense", tie_word_embeddings=False, head_dim=16, hidden_size=32, attention_bias=False, rope_theta=10000.0,
                             rope_scaling={"alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0, "mscale_all_dim": 0.0, "type": "dynamic"}),
    "cohere": base("CohereForCausalLM", "cohere", hidden_size=64, num_attention_heads=4, num_hidden_layers=2, logit_scale=0.25, layer_norm_eps=1e-5, rope_theta=10000.0, attention_bias=False, use_qk_norm=False),
    "cohere2": base("Cohere2ForCausalLM", "cohere2", hidden_size=48, num_attention_heads=6, num_hidden_layers=4, logit_scale=0.25, layer_norm_eps=1e-5, rope_theta=50000.0, attention_bias=False, sliding_window=20, sliding_window_pattern=4),
}


# Embeddings are smaller, so that the layers decide the next token, and the final norm is as much larger.
SMALLER = {"gemma": 16, "gemma2": 10, "granite": 300, "cohere": 4, "cohere2": 4}


def randomise(model, smaller):
    """Moves every parameter away from its initial value, to numbers that bf16 holds exactly."""
    for name, p in model.state_dict().items():
        if not p.is_floating_point() or name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        if name.endswith("sinks"):
            x = 0.5 + torch.randn(p.shape)
        elif name == "model.norm.weight":
            x = p + smaller - 1 + 0.15 * smaller * torch.randn(p.shape)
        elif p.dim() < 2 or "norm" in name:
            x = p + (0.3 if name.endswith("bias") else 0.15) * torch.randn(p.shape)
        elif "embed_tokens" in name:
            x = 0.5 / smaller * torch.randn(p.shape)
        elif "lm_head" in name:
            x = 2.5 * torch.randn(p.shape) / math.sqrt(p.shape[-1])
        elif name.endswith(("q_proj.weight", "k_proj.weight")):
            x = 1.5 * torch.randn(p.shape) / math.sqrt(p.shape[-1])
        else:
            x = torch.randn(p.shape) / math.sqrt(p.shape[-1])
        p.copy_(x.to(torch.bfloat16))


def logits(model, ids):
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].float()


def reference(folder, cls, seed):
    import transformers
    model, info = cls.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    bad = {k: v for k, v in info.items() if v and k != "error_msgs"}
    assert not bad, bad
    model.eval()
    rng = random.Random(seed)
    items, gap, kinds = [], 9e9, V
    for n in LENGTHS:
        prompt = [0] + [rng.randrange(5, V) for _ in range(n - 1)]
        first, ids, greedy = logits(model, prompt), list(prompt), []
        row = first
        while len(greedy) < 32:
            top = row.topk(2)
            gap = min(gap, (top.values[0] - top.values[1]).item())
            greedy.append(int(top.indices[0]))
            ids.append(greedy[-1])
            row = logits(model, ids)
        kinds = min(kinds, len(set(greedy)))
        items.append({"prompt": prompt, "logits": [float("%.6g" % x) for x in first.tolist()], "greedy": greedy})
    inv = {n.split(".")[-1]: [float("%.9g" % x) for x in b.tolist()] for n, b in model.named_buffers() if n.endswith("inv_freq") and "original" not in n}
    return {"seed": seed, "compute": "float32, eager attention, no cache", "transformers": transformers.__version__, "torch": torch.__version__,
            "min_gap": gap, "kinds": kinds, "items": items, "inv_freq": inv["inv_freq"] if list(inv) == ["inv_freq"] else inv}


def write(out, name, config):
    import transformers
    folder = f"{out}/{name}"
    os.makedirs(folder, exist_ok=True)
    cls = getattr(transformers, config["architectures"][0])
    json.dump(config, open(f"{folder}/config.json", "w"), indent=1)
    json.dump({"bos_token_id": 0, "eos_token_id": 1, "do_sample": False}, open(f"{folder}/generation_config.json", "w"), indent=1)
    for seed in range(8000, 8020):
        torch.manual_seed(seed)
        model = cls(transformers.AutoConfig.from_pretrained(folder))
        with torch.no_grad():
            randomise(model, SMALLER.get(name, 1))
        model.to(torch.bfloat16)
        with tempfile.TemporaryDirectory() as tmp:
            model.save_pretrained(tmp)
            shutil.move(f"{tmp}/model.safetensors", f"{folder}/model.safetensors")
            shutil.move(f"{tmp}/config.json", f"{folder}/config.v5.json")
        golden = reference(folder, cls, seed)
        print(name, "seed", seed, "smallest greedy gap %.2e, kinds of tokens %d, largest logit %.1f" % (golden["min_gap"], golden["kinds"], max(max(map(abs, i["logits"])) for i in golden["items"])), flush=True)
        if golden["min_gap"] > 1e-3 and golden["kinds"] > 3:
            break
    json.dump(golden, open(f"{folder}/goldens.json", "w"))


def main():
    out = sys.argv[1]
    for name in sys.argv[2].split(",") if len(sys.argv) > 2 else FAMILIES:
        write(out, name, FAMILIES[name])


if __name__ == "__main__":
    main()
