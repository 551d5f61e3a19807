"""Tiny random SwiftKV checkpoints in Snowflake's layout, and reference logits of a plain forward pass, float32, written
from the paper (arXiv 2410.03960, section 3): every token goes through every layer, nothing is skipped or cached.
Usage: goldens_swiftkv.py OUTDIR [name,name]"""
import json, os, random, sys
import torch
import torch.nn.functional as F
from goldens import attn, base, common, lin, mlp, norm, V

LENGTHS = (1, 17, 41, 64, 71, 130, 200, 300)


def shape(D, L, H, KV, FF, kept, group, bias=False, tied=False, **more):
    c = base("LlamaSwiftKVForCausalLM", "llama_swiftkv", hidden_size=D, num_hidden_layers=L, num_attention_heads=H, num_key_value_heads=KV,
             intermediate_size=FF, rope_theta=10000.0, attention_bias=bias, tie_word_embeddings=tied, torch_dtype="bfloat16",
             swiftkv=True, num_key_value_layers=kept, key_value_group_size=group, **more)
    HD = more.get("head_dim", D // H)
    d = {"model.norm_swiftkv.weight": norm(D)}
    common(d, V, D, L, tied)
    for i in range(L):
        p = f"model.layers.{i}."
        attn(d, p, D, H, KV, HD, bias=bias)         # of later layers: the model that it was distilled from
        mlp(d, p + "mlp.", D, FF)
        if bias:
            d[p + "self_attn.o_proj.bias"] = 0.2 * torch.randn(D)
        if i < kept:
            continue
        for n, rows in (("q", H), ("k", KV), ("v", KV)):
            if n == "q" or (i - kept) % group == 0:
                d[p + f"self_attn.{n}_proj_swiftkv.weight"] = lin(rows * HD, D)
                if bias:
                    d[p + f"self_attn.{n}_proj_swiftkv.bias"] = 0.2 * torch.randn(rows * HD)
    return c, d


ARCH = {
    "swiftkv": lambda: shape(64, 5, 8, 2, 96, kept=2, group=1),
    "swiftkv_across": lambda: shape(64, 6, 4, 2, 96, kept=2, group=2),
    "swiftkv_bias": lambda: shape(48, 6, 6, 3, 96, kept=3, group=2, bias=True, tied=True, head_dim=16),
}


def forward(c, d, ids):
    """logits of the last of ids"""
    H, KV, L, kept, group = (c[k] for k in ("num_attention_heads", "num_key_value_heads", "num_hidden_layers", "num_key_value_layers", "key_value_group_size"))
    HD, T = c.get("head_dim") or c["hidden_size"] // H, len(ids)
    inv = 1.0 / c["rope_theta"] ** (torch.arange(0, HD, 2).float() / HD)
    angle = torch.arange(T).float()[:, None] * inv
    cos, sin = torch.cat([angle, angle], 1).cos(), torch.cat([angle, angle], 1).sin()
    rms = lambda x, n: d[n + ".weight"] * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + c["rms_norm_eps"]))
    proj = lambda x, n: F.linear(x, d[n + ".weight"], d.get(n + ".bias"))
    rope = lambda x: x * cos[:, None] + torch.cat([-x[..., HD // 2:], x[..., :HD // 2]], -1) * sin[:, None]
    x = d["model.embed_tokens.weight"][torch.tensor(ids)]
    mask = torch.full((T, T), float("-inf")).triu(1)
    for i in range(L):
        p, s = f"model.layers.{i}.", ""
        h = rms(x, p + "input_layernorm")
        if i == kept:
            swift = rms(x, "model.norm_swiftkv")             # the input of the first later layer, for all of them
        if i >= kept:
            s = "_swiftkv"
        if i < kept or (i - kept) % group == 0:
            of = h if i < kept else swift
            k = rope(proj(of, p + "self_attn.k_proj" + s).view(T, KV, HD)).repeat_interleave(H // KV, 1)
            v = proj(of, p + "self_attn.v_proj" + s).view(T, KV, HD).repeat_interleave(H // KV, 1)
        q = rope(proj(h, p + "self_attn.q_proj" + s).view(T, H, HD))
        w = torch.softmax(torch.einsum("qhd,khd->hqk", q, k) / HD ** 0.5 + mask, -1)
        x = x + proj(torch.einsum("hqk,khd->qhd", w, v).reshape(T, H * HD), p + "self_attn.o_proj")
        h = rms(x, p + "post_attention_layernorm")
        x = x + proj(F.silu(proj(h, p + "mlp.gate_proj")) * proj(h, p + "mlp.up_proj"), p + "mlp.down_proj")
    head = "model.embed_tokens" if c["tie_word_embeddings"] else "lm_head"
    return F.linear(rms(x[-1:], "model.norm"), d[head + ".weight"])[0]


@torch.no_grad()
def reference(c, d, seed):
    rng, items, gap = random.Random(seed), [], 9e9
    for n in LENGTHS:
        prompt = [0] + [rng.randrange(5, V) for _ in range(n - 1)]
        first, ids, greedy = forward(c, d, prompt), list(prompt), []
        row = first
        while len(greedy) < 32:
            top = row.topk(2)
            gap = min(gap, (top.values[0] - top.values[1]).item())
            greedy.append(int(top.indices[0]))
            ids.append(greedy[-1])
            row = forward(c, d, ids)
        items.append({"prompt": prompt, "logits": [float("%.7g" % x) for x in first.tolist()], "greedy": greedy})
    return {"seed": seed, "compute": "float32, every token through every layer, no cache", "torch": torch.__version__, "min_gap": gap, "items": items}


def main():
    from safetensors.torch import save_file
    out = sys.argv[1]
    for name in sys.argv[2].split(",") if len(sys.argv) > 2 else ARCH:
        folder = f"{out}/{name}"
        os.makedirs(folder, exist_ok=True)
        for seed in range(3000 + 10 * list(ARCH).index(name), 9999):
            torch.manual_seed(seed)
            c, d = ARCH[name]()
            d = {k: v.to(torch.bfloat16).contiguous() for k, v in d.items()}
            golden = reference(c, {k: v.float() for k, v in d.items()}, seed)
            print(name, "seed", seed, "smallest greedy gap %.2e" % golden["min_gap"], flush=True)
            if golden["min_gap"] > 1e-3:
                break
        save_file(d, f"{folder}/model.safetensors", metadata={"format": "pt"})
        json.dump(c, open(f"{folder}/config.json", "w"), indent=1)
        json.dump({"bos_token_id": 0, "eos_token_id": 1, "do_sample": False}, open(f"{folder}/generation_config.json", "w"), indent=1)
        json.dump(golden, open(f"{folder}/goldens.json", "w"))


if __name__ == "__main__":
    main()
