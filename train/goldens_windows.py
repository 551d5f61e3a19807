"""Tiny random checkpoints with sliding windows, and reference logits of prompts longer than
the window, from transformers in float32. Usage: goldens_windows.py OUTDIR [name,name]

gemma3 is stored in bf16, and its embedding is scaled by what transformers scales by when it
runs such a checkpoint: sqrt(hidden) rounded to bf16 (Gemma3TextScaledWordEmbedding).
"""
import json, os, random, sys
import torch
from goldens import attn, common, lin, mlp, norm, base, V


def a_mistral_window():
    D, L, H, KV, HD, FF = 96, 2, 12, 4, 8, 160
    c = base("MistralForCausalLM", "mistral", hidden_size=D, num_hidden_layers=L, num_attention_heads=H, num_key_value_heads=KV, intermediate_size=FF,
             rope_theta=10000.0, sliding_window=48, torch_dtype="bfloat16")
    d = {}
    common(d, V, D, L, False)
    for i in range(L):
        attn(d, f"model.layers.{i}.", D, H, KV, HD); mlp(d, f"model.layers.{i}.mlp.", D, FF)
    return c, d


def a_qwen2_window():
    D, L, H, KV, HD, FF = 96, 3, 12, 3, 8, 128
    c = base("Qwen2ForCausalLM", "qwen2", hidden_size=D, num_hidden_layers=L, num_attention_heads=H, num_key_value_heads=KV, intermediate_size=FF,
             rope_theta=1000000.0, rms_norm_eps=1e-6, tie_word_embeddings=True, use_sliding_window=True, sliding_window=40, max_window_layers=1, torch_dtype="bfloat16")
    d = {}
    common(d, V, D, L, True)
    for i in range(L):
        attn(d, f"model.layers.{i}.", D, H, KV, HD, bias=True); mlp(d, f"model.layers.{i}.mlp.", D, FF)
    return c, d


def a_gemma3():
    D, L, H, KV, HD, FF = 96, 3, 8, 4, 16, 160
    c = {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "vocab_size": V, "hidden_size": D, "intermediate_size": FF, "num_hidden_layers": L,
         "num_attention_heads": H, "num_key_value_heads": KV, "head_dim": HD, "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 2048,
         "rms_norm_eps": 1e-6, "bos_token_id": 0, "eos_token_id": 1, "attention_bias": False, "attention_dropout": 0.0, "query_pre_attn_scalar": 24,
         "sliding_window": 70, "sliding_window_pattern": 2, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
         "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "final_logit_softcapping": 20.0, "attn_logit_softcapping": None, "torch_dtype": "bfloat16"}
    d = {}
    common(d, V, D, L, True)
    for i in range(L):
        p = f"model.layers.{i}."
        attn(d, p, D, H, KV, HD, qknorm=True)
        mlp(d, p + "mlp.", D, FF)
        d[p + "pre_feedforward_layernorm.weight"] = norm(D)
        d[p + "post_feedforward_layernorm.weight"] = norm(D)
    d["model.embed_tokens.weight"] = d["model.embed_tokens.weight"] * 0.3
    for n in d: # stored as what is added to 1
        if "norm" in n:
            d[n] = d[n] - 1
    return c, d


ARCH = {"mistral_window": a_mistral_window, "qwen2_window": a_qwen2_window, "gemma3": a_gemma3}
LENGTHS = (1, 17, 41, 64, 71, 130, 200, 300)


def logits(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0, -1].float()


def reference(folder, seed):
    import transformers
    from transformers import AutoModelForCausalLM
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    bad = {k: v for k, v in info.items() if v and k != "error_msgs"}
    assert not bad, bad
    model.eval()
    embed = model.model.embed_tokens
    if hasattr(embed, "embed_scale"):
        embed.embed_scale = embed.embed_scale.to(torch.bfloat16).to(torch.float32)
    rng = random.Random(seed)
    items, gap = [], 9e9
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
        items.append({"prompt": prompt, "logits": [float("%.8g" % x) for x in first.tolist()], "greedy": greedy})
    inv = {n.removeprefix("model.rotary_emb."): [float("%.9g" % x) for x in b.tolist()] for n, b in model.named_buffers() if n.endswith("inv_freq") and "original" not in n}
    model.save_pretrained(folder + "/v5")
    os.replace(folder + "/v5/config.json", folder + "/config.v5.json")
    os.remove(folder + "/v5/model.safetensors")
    for left in os.listdir(folder + "/v5"):
        os.remove(folder + "/v5/" + left)
    os.rmdir(folder + "/v5")
    return {"seed": seed, "compute": "float32, eager attention, no cache", "transformers": transformers.__version__, "torch": torch.__version__,
            "min_gap": gap, "items": items, "inv_freq": inv}


def main():
    from safetensors.torch import save_file
    out = sys.argv[1]
    for name in sys.argv[2].split(",") if len(sys.argv) > 2 else ARCH:
        folder = f"{out}/{name}"
        os.makedirs(folder, exist_ok=True)
        for seed in range(2000 + 10 * list(ARCH).index(name), 9999):
            torch.manual_seed(seed)
            config, weights = ARCH[name]()
            save_file({k: v.to(torch.bfloat16).contiguous() for k, v in weights.items()}, f"{folder}/model.safetensors", metadata={"format": "pt"})
            json.dump(config, open(f"{folder}/config.json", "w"), indent=1)
            json.dump({"bos_token_id": 0, "eos_token_id": 1, "do_sample": False}, open(f"{folder}/generation_config.json", "w"), indent=1)
            golden = reference(folder, seed)
            print(name, "seed", seed, "smallest greedy gap %.2e" % golden["min_gap"], flush=True)
            if golden["min_gap"] > 1e-3:
                break
        json.dump(golden, open(f"{folder}/goldens.json", "w"))


if __name__ == "__main__":
    main()
