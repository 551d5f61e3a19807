"""Tiny random checkpoints of the Gemma 4 family, and reference logits from transformers in float32.
Usage: goldens_gemma4.py OUTDIR [name,name]

gemma4_31b   heads of two shapes, values from keys
gemma4_e2b   shared keys and values, FFN of double width there, per-layer inputs; as published: a
             wrapper with prefixes, other towers, and leftover keys and values
gemma4_26b   a dense FFN beside experts

They are stored in bf16, and embeddings are scaled by what transformers scales by when it runs such
a checkpoint: roots rounded to bf16 (Gemma4TextScaledWordEmbedding).
"""
import json, os, random, sys
import torch
from goldens import lin, norm, rnd
from goldens_windows import logits

V = 512
LENGTHS = (1, 17, 41, 64, 71, 130, 200, 300)


def text(D, types, H, KV, FF, **k):
    c = {"architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "vocab_size": V, "hidden_size": D, "intermediate_size": FF, "num_hidden_layers": len(types),
         "num_attention_heads": H, "num_key_value_heads": KV, "head_dim": 16, "global_head_dim": 32, "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 2048,
         "rms_norm_eps": 1e-6, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "attention_bias": False, "attention_dropout": 0.0, "sliding_window": 70,
         "layer_types": [{"s": "sliding_attention", "f": "full_attention"}[t] for t in types], "final_logit_softcapping": 6.0, "tie_word_embeddings": True,
         "attention_k_eq_v": False, "num_kv_shared_layers": 0, "use_double_wide_mlp": False, "hidden_size_per_layer_input": 0, "enable_moe_block": False, "use_bidirectional_attention": "vision",
         "rope_parameters": {"full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"}, "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}},
         "torch_dtype": "bfloat16"}
    return c | k


def weights(c):
    D, FF, H, L = c["hidden_size"], c["intermediate_size"], c["num_attention_heads"], c["num_hidden_layers"]
    P, E, MF = c["hidden_size_per_layer_input"], c.get("num_experts", 0), c.get("moe_intermediate_size", 0)
    own = L - c["num_kv_shared_layers"]
    d = {"model.embed_tokens.weight": rnd(V, D, s=0.05), "model.norm.weight": 10 * norm(D)}
    if P:
        d["model.embed_tokens_per_layer.weight"] = rnd(V, L * P, s=0.3)
        d["model.per_layer_model_projection.weight"] = lin(L * P, D)
        d["model.per_layer_projection_norm.weight"] = norm(P)
    for i, kind in enumerate(c["layer_types"]):
        p, a = f"model.layers.{i}.", f"model.layers.{i}.self_attn."
        full = kind == "full_attention"
        HD, KV = (32, c.get("num_global_key_value_heads", c["num_key_value_heads"])) if full else (16, c["num_key_value_heads"])
        d[a + "q_proj.weight"], d[a + "o_proj.weight"] = lin(H * HD, D), lin(D, H * HD)
        d[a + "q_norm.weight"] = norm(HD) * 0.6
        if i < own:
            d[a + "k_proj.weight"] = lin(KV * HD, D)
            d[a + "k_norm.weight"] = norm(HD) * 0.6
            if not (full and c["attention_k_eq_v"]):
                d[a + "v_proj.weight"] = lin(KV * HD, D)
        for n in ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"):
            d[p + n + ".weight"] = norm(D)
        wide = FF * (2 if i >= own and c["use_double_wide_mlp"] else 1)
        d[p + "mlp.gate_proj.weight"], d[p + "mlp.up_proj.weight"], d[p + "mlp.down_proj.weight"] = lin(wide, D), lin(wide, D), lin(D, wide)
        d[p + "layer_scalar"] = 0.7 + 0.6 * torch.rand(1)
        if P:
            d[p + "per_layer_input_gate.weight"], d[p + "per_layer_projection.weight"] = lin(P, D), lin(D, P)
            d[p + "post_per_layer_input_norm.weight"] = norm(D)
        if E:
            d[p + "router.proj.weight"], d[p + "router.scale"], d[p + "router.per_expert_scale"] = lin(E, D, 8.0), norm(D), 0.6 + 0.8 * torch.rand(E)
            d[p + "experts.gate_up_proj"] = torch.stack([lin(2 * MF, D) for _ in range(E)])
            d[p + "experts.down_proj"] = torch.stack([lin(D, MF) for _ in range(E)])
            for n in ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2"):
                d[p + n + ".weight"] = norm(D)
    return d


def a_31b():
    return text(64, "sf", 8, 4, 32, attention_k_eq_v=True, num_global_key_value_heads=2)


def a_e2b():
    return text(32, "sfssf", 4, 1, 32, num_kv_shared_layers=3, use_double_wide_mlp=True, hidden_size_per_layer_input=8, vocab_size_per_layer_input=V)


def a_26b():
    return text(32, "ssf", 8, 4, 48, attention_k_eq_v=True, num_global_key_value_heads=2, enable_moe_block=True, num_experts=6, top_k_experts=2, moe_intermediate_size=16)


ARCH = {"gemma4_31b": a_31b, "gemma4_e2b": a_e2b, "gemma4_26b": a_26b}


def reference(folder, seed, k):
    import transformers
    from transformers import AutoModelForCausalLM
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager", output_loading_info=True)
    bad = {k: v for k, v in info.items() if v and k != "error_msgs"}
    assert not bad, bad
    model.eval()
    for e in (model.model.embed_tokens, getattr(model.model, "embed_tokens_per_layer", None)):
        if e is not None:
            e.embed_scale = e.embed_scale.to(torch.bfloat16).to(torch.float32)
    routed = [9e9]
    if k:
        def hook(mod, args, out):
            s = out[0].float().topk(k + 1, dim=-1).values
            routed[0] = min(routed[0], (s[:, k - 1] - s[:, k]).min().item())
        for mod in model.modules():
            if type(mod).__name__ == "Gemma4TextRouter":
                mod.register_forward_hook(hook)
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
        if gap < 1e-3 or routed[0] < 5e-5:
            break
    inv = {n.removeprefix("model.rotary_emb."): [float("%.9g" % x) for x in b.tolist()] for n, b in model.named_buffers() if n.endswith("inv_freq") and "original" not in n}
    model.save_pretrained(folder + "/v5")
    os.replace(folder + "/v5/config.json", folder + "/config.v5.json")
    for left in os.listdir(folder + "/v5"):
        os.remove(folder + "/v5/" + left)
    os.rmdir(folder + "/v5")
    return {"seed": seed, "compute": "float32, eager attention, no cache", "transformers": transformers.__version__, "torch": torch.__version__,
            "min_gap": gap, "min_routing_gap": routed[0], "items": items, "inv_freq": inv}


def wrap(folder, config, d):
    """The published form: text_config, a prefix, towers, and keys and values that no layer reads."""
    own = config["num_hidden_layers"] - config["num_kv_shared_layers"]
    for i in range(own, config["num_hidden_layers"]):
        d[f"model.layers.{i}.self_attn.k_proj.weight"] = rnd(8, 32)
        d[f"model.layers.{i}.self_attn.v_proj.weight"] = rnd(8, 32)
        d[f"model.layers.{i}.self_attn.k_norm.weight"] = norm(8)
    d = {"model.language_model." + n.removeprefix("model."): v for n, v in d.items()}
    for n in ("model.vision_tower.patch_embedder.input_proj.weight", "model.embed_vision.embedding_projection.weight", "model.audio_tower.output_proj.weight", "model.embed_audio.embedding_projection.weight"):
        d[n] = rnd(2, 2)
    inner = {k: v for k, v in config.items() if k not in ("architectures", "torch_dtype", "bos_token_id", "eos_token_id")}
    outer = {"architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4", "bos_token_id": 0, "eos_token_id": [1], "tie_word_embeddings": True, "dtype": "bfloat16",
             "text_config": inner, "vision_config": {"model_type": "gemma4_vision"}, "audio_config": None, "image_token_id": 151}
    return outer, d


def main():
    from safetensors.torch import save_file
    out = sys.argv[1]
    for name in sys.argv[2].split(",") if len(sys.argv) > 2 else ARCH:
        folder = f"{out}/{name}"
        os.makedirs(folder, exist_ok=True)
        for seed in range(4000 + 100 * list(ARCH).index(name), 9999):
            torch.manual_seed(seed)
            config = ARCH[name]()
            w = {k: v.to(torch.bfloat16).contiguous() for k, v in weights(config).items()}
            save_file(w, f"{folder}/model.safetensors", metadata={"format": "pt"})
            json.dump(config, open(f"{folder}/config.json", "w"), indent=1)
            json.dump({"bos_token_id": 0, "eos_token_id": 1, "do_sample": False}, open(f"{folder}/generation_config.json", "w"), indent=1)
            golden = reference(folder, seed, config.get("top_k_experts", 0))
            print(name, "seed", seed, "smallest greedy gap %.2e" % golden["min_gap"], "routing gap %.2e" % golden["min_routing_gap"], flush=True)
            different = sum(len(set(i["greedy"])) for i in golden["items"])
            if golden["min_gap"] > 1e-3 and golden["min_routing_gap"] > 5e-5 and different > 3 * len(LENGTHS):
                break
        if name == "gemma4_e2b":
            outer, w = wrap(folder, config, dict(w))
            save_file({k: v.to(torch.bfloat16).contiguous() for k, v in w.items()}, f"{folder}/model.safetensors", metadata={"format": "pt"})
            json.dump(outer, open(f"{folder}/config.json", "w"), indent=1)
        json.dump(golden, open(f"{folder}/goldens.json", "w"))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
