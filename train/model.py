"""A Llama-architecture model written as plain functions, so that torch.compile sees three small regions
whose shapes do not depend on the sequence length (tokens are flat: [N, hidden])."""
import math, json, os
import torch
import torch.nn as nn
import torch.nn.functional as F


class Cfg:
    V = 4096; D = 384; L = 8; H = 16; KV = 8; HD = 32; FF = 1024; THETA = 500000.0; EPS = 1e-5; MAXPOS = 8192
    def __init__(self, **k):
        for a, b in k.items():
            setattr(self, a, b)
    def hf(self):
        return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": self.V, "hidden_size": self.D,
                "intermediate_size": self.FF, "num_hidden_layers": self.L, "num_attention_heads": self.H,
                "num_key_value_heads": self.KV, "head_dim": self.HD, "hidden_act": "silu", "max_position_embeddings": self.MAXPOS,
                "rms_norm_eps": self.EPS, "rope_theta": self.THETA, "rope_scaling": None, "tie_word_embeddings": True,
                "attention_bias": False, "mlp_bias": False, "attention_dropout": 0.0, "initializer_range": 0.02, "use_cache": True,
                "bos_token_id": 0, "eos_token_id": 4, "pad_token_id": 6, "torch_dtype": "bfloat16", "pretraining_tp": 1}


def rms(x, w, eps):
    xf = x.float()
    return (xf * torch.rsqrt(xf.pow(2).mean(-1, keepdim=True) + eps) * w).to(x.dtype)


def rope(x, cos, sin):
    """x [N, heads, hd]; cos, sin [N, hd/2]; the halves rotate together (HF's rotate_half)."""
    a, b = x.float().chunk(2, -1)
    c, s = cos.unsqueeze(1), sin.unsqueeze(1)
    return torch.cat([a * c - b * s, b * c + a * s], -1).to(x.dtype)


def end_attention(H, KV, HD, sinks=4, window=64, pool=7, used=0.05):
    """attention of the last `rows` tokens of b sequences as if the cache of what is before them had been compressed"""
    def f(q, k, v, T, P, K, need):
        """q [b, T, H, HD], k, v [b, T, KV, HD]; the prompt is P tokens, its middle cut to the K best by the votes of its last
        `window` (SnapStream); need [b, T-P-1...]: which of the last rows are inputs of answers, weights.
        -> o [b, T-P, H*HD], and how far below the cut (its K/2-th place) the votes are, in nats, for tokens of the middle
        that these rows attend to with more than `used` each, all of it summed by attention"""
        b, G, dev = q.shape[0], H // KV, q.device
        q = q[:, P - window:].reshape(b, T - P + window, KV, G, HD).permute(0, 2, 3, 1, 4)
        k, v = k.transpose(1, 2).unsqueeze(2), v.transpose(1, 2).unsqueeze(2)
        s = torch.matmul(q, k.transpose(-1, -2)).float() * HD ** -0.5              # [b, KV, G, window + rows, T]
        j, i = torch.arange(T, device=dev), torch.arange(P - window, T, device=dev)[:, None]
        s = s.masked_fill(j > i, float("-inf"))
        middle = (j >= sinks) & (j < P - window)
        votes = F.avg_pool1d(torch.softmax(s[..., :window, :], -1).mean(3).sum(2), pool, 1, pool // 2)
        votes = votes * middle
        with torch.no_grad():
            p = torch.softmax(s[..., window:, :], -1)
            p = torch.where((p > used) & middle, p, 0.0)
            want = (p * need[:, None, None, :, None]).sum((2, 3))                    # [b, KV, T]
            top = votes.topk(K, -1)
            keep = torch.zeros(b, KV, T, dtype=torch.bool, device=dev).scatter_(-1, top.indices, True)
            bar = (top.values[..., K // 2 - 1:K // 2] * 1.2).clamp_min(1e-9).log()
        short = (want * F.relu(bar - votes.clamp_min(1e-9).log())).sum()
        seen = keep[:, :, None, None, :] | (j < sinks) | (j > i[window:] - window)
        o = torch.matmul(torch.softmax(s[..., window:, :].masked_fill(~seen, float("-inf")), -1).to(v.dtype), v)
        return o.permute(0, 3, 1, 2, 4).reshape(b, T - P, H * HD), short
    return f


def head_loss(eps):
    def f(x, ln, emb, tgt, w):
        """sum of w * cross entropy; also the per-token losses"""
        h = rms(x, ln, eps)
        lg = F.linear(h, emb.to(x.dtype)).float()
        ce = torch.logsumexp(lg, -1) - lg.gather(-1, tgt.unsqueeze(-1)).squeeze(-1)
        return (ce * w).sum(), ce
    return f


def make_fns(c):
    H, KV, HD, EPS = c.H, c.KV, c.HD, c.EPS

    def pre(x, ln, wq, wk, wv, cos, sin):
        h = rms(x, ln, EPS)
        w = torch.cat([wq, wk, wv], 0).to(x.dtype)
        qkv = F.linear(h, w)
        q, k, v = qkv.split([H * HD, KV * HD, KV * HD], -1)
        q = rope(q.reshape(-1, H, HD), cos, sin)
        k = rope(k.reshape(-1, KV, HD), cos, sin)
        return q, k, v.reshape(-1, KV, HD).contiguous()

    def post(x, a, wo, ln, wg, wu, wd):
        x = x + F.linear(a, wo.to(x.dtype))
        h = rms(x, ln, EPS)
        g = F.linear(h, torch.cat([wg, wu], 0).to(x.dtype))
        g, u = g.chunk(2, -1)
        return x + F.linear(F.silu(g) * u, wd.to(x.dtype))

    return pre, post, head_loss(EPS), end_attention(H, KV, HD)


def sdpa(q, k, v, B, T, mask=None, backend="auto"):
    """q [B*T, H, hd], k/v [B*T, KV, hd] -> [B*T, H*hd], causal"""
    H, KV, hd = q.shape[1], k.shape[1], q.shape[2]
    q = q.view(B, T, H, hd).transpose(1, 2)
    k = k.view(B, T, KV, hd).transpose(1, 2)
    v = v.view(B, T, KV, hd).transpose(1, 2)
    if q.device.type == "cpu" or mask is not None or q.dtype == torch.float32:
        k = k.repeat_interleave(H // KV, 1); v = v.repeat_interleave(H // KV, 1)
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
    elif backend == "cudnn":
        from torch.nn.attention import sdpa_kernel, SDPBackend
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    else:
        from torch.nn.attention import sdpa_kernel, SDPBackend
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return o.transpose(1, 2).reshape(B * T, H * hd)


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        def w(o, i, s=1.0):
            return nn.Parameter(torch.randn(o, i) * (s / math.sqrt(i)))
        r = 0.5 / math.sqrt(2 * c.L)
        self.ln1 = nn.Parameter(torch.ones(c.D)); self.ln2 = nn.Parameter(torch.ones(c.D))
        self.wq = w(c.H * c.HD, c.D, .6); self.wk = w(c.KV * c.HD, c.D, .6); self.wv = w(c.KV * c.HD, c.D, .6)
        self.wo = w(c.D, c.H * c.HD, r)
        self.wg = w(c.FF, c.D, .6); self.wu = w(c.FF, c.D, .6); self.wd = w(c.D, c.FF, r)


class LM(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.emb = nn.Parameter(torch.randn(c.V, c.D) * 0.02)
        self.layers = nn.ModuleList([Layer(c) for _ in range(c.L)])
        self.lnf = nn.Parameter(torch.ones(c.D))
        self.fns = make_fns(c)
        self.eager = self.fns
        self.backend = "flash"
        self.scale = 1 / math.sqrt(c.HD)
        self.kv, self.kd, self.vd = c.KV, c.HD, c.HD           # the cache: heads, widths of key and value
        self._cs = {}

    def compile(self):
        self.fns = tuple(torch.compile(f, dynamic=False) for f in self.eager)

    def cossin(self, pos):
        """pos: int tensor [N] -> cos, sin [N, hd/2] float32"""
        inv = 1.0 / (self.c.THETA ** (torch.arange(0, self.c.HD, 2, dtype=torch.float32, device=pos.device) / self.c.HD))
        a = pos.float()[:, None] * inv[None]
        return a.cos(), a.sin()

    def cs(self, B, T, dev):
        if (B, T) not in self._cs:
            self._cs[(B, T)] = self.cossin(torch.arange(T, device=dev).repeat(B))
        return self._cs[(B, T)]

    def body(self, ids, fns, dtype, ends=None):
        """ids [B, T] -> hidden [B*T, D]. ends (need [b, rows], K): the first b sequences end in an answer of `rows`
        tokens, which sees of the prompt what a cache compressed to K tokens holds; self.short is then set"""
        B, T = ids.shape
        pre, post, _, end = fns
        self.short = 0.0
        cos, sin = self.cs(B, T, ids.device)
        x = F.embedding(ids.reshape(-1), self.emb).to(dtype)
        for l in self.layers:
            q, k, v = pre(x, l.ln1, l.wq, l.wk, l.wv, cos, sin)
            a = sdpa(q, k, v, B, T, backend=self.backend)
            if ends:
                need, K = ends
                b, rows = need.shape
                o, short = end(*(t.view(B, T, *t.shape[1:])[:b] for t in (q, k, v)), T, T - rows, K, need)
                a = a.view(B, T, -1)
                a = torch.cat([torch.cat([a[:b, :T - rows], o], 1), a[b:]]).view(B * T, -1)
                self.short = self.short + short / (self.c.L * b)
            x = post(x, a, l.wo, l.ln2, l.wg, l.wu, l.wd)
        return x

    def loss(self, ids, tgt, w, dtype=torch.bfloat16, ends=None):
        x = self.body(ids, self.fns, dtype, ends)
        return self.fns[2](x, self.lnf, self.emb, tgt.reshape(-1), w.reshape(-1))

    def balance(self, rate, allreduce=None):
        """no experts"""

    # ---- for evalpol
    def cached(self, l, x, cos, sin):
        """q [N, H, HD], k, v [N, KV, HD]"""
        return self.eager[0](x, l.ln1, l.wq, l.wk, l.wv, cos, sin)

    def uncached(self, l, o):
        return o.flatten(1)

    def prompt(self, l, x, B, T, cos, sin, mask=None):
        q, k, v = self.cached(l, x, cos, sin)
        return sdpa(q, k, v, B, T, mask=mask)

    def finish(self, l, x, a):
        return self.eager[1](x, a, l.wo, l.ln2, l.wg, l.wu, l.wd)

    def logits(self, x):
        return F.linear(rms(x, self.lnf, self.c.EPS), self.emb.to(x.dtype)).float()

    def hf_state(self, dtype=torch.bfloat16):
        d = {"model.embed_tokens.weight": self.emb, "model.norm.weight": self.lnf}
        for i, l in enumerate(self.layers):
            p = f"model.layers.{i}."
            d[p + "input_layernorm.weight"] = l.ln1
            d[p + "post_attention_layernorm.weight"] = l.ln2
            for a, b in (("wq", "self_attn.q_proj"), ("wk", "self_attn.k_proj"), ("wv", "self_attn.v_proj"), ("wo", "self_attn.o_proj"),
                         ("wg", "mlp.gate_proj"), ("wu", "mlp.up_proj"), ("wd", "mlp.down_proj")):
                d[p + b + ".weight"] = getattr(l, a)
        return {k: v.detach().to(dtype).contiguous().cpu() for k, v in d.items()}

    def load_hf(self, d):
        own = {"model.embed_tokens.weight": self.emb, "model.norm.weight": self.lnf}
        for i, l in enumerate(self.layers):
            p = f"model.layers.{i}."
            own[p + "input_layernorm.weight"] = l.ln1
            own[p + "post_attention_layernorm.weight"] = l.ln2
            for a, b in (("wq", "self_attn.q_proj"), ("wk", "self_attn.k_proj"), ("wv", "self_attn.v_proj"), ("wo", "self_attn.o_proj"),
                         ("wg", "mlp.gate_proj"), ("wu", "mlp.up_proj"), ("wd", "mlp.down_proj")):
                own[p + b + ".weight"] = getattr(l, a)
        with torch.no_grad():
            for k, v in d.items():
                own[k].copy_(v.float())


def open_lm(arch, **k):
    """the model of an architecture's name: llama (models/fry) or deepseek"""
    import mla
    return mla.LM(mla.Cfg(**k)) if arch == "deepseek" else LM(Cfg(**k))


def save_hf(model, tokdir, out, shards=1):
    """HF folder: config, tokenizer, bf16 safetensors (split in `shards` files)"""
    from safetensors.torch import save_file
    import shutil
    os.makedirs(out, exist_ok=True)
    st = model.hf_state()
    json.dump(model.c.hf(), open(f"{out}/config.json", "w"), indent=1)
    json.dump({"bos_token_id": 0, "eos_token_id": [1, 4], "pad_token_id": 6, "do_sample": False}, open(f"{out}/generation_config.json", "w"), indent=1)
    for f in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(f"{tokdir}/{f}", f"{out}/{f}")
    if shards == 1:
        save_file(st, f"{out}/model.safetensors", metadata={"format": "pt"})
        return
    parts, size, tot = [{} for _ in range(shards)], 0, sum(v.numel() * 2 for v in st.values())
    for k, v in st.items():
        parts[min(shards - 1, int(size * shards / tot))][k] = v
        size += v.numel() * 2
    wm = {}
    for i, p in enumerate(parts):
        fn = "model-%05d-of-%05d.safetensors" % (i + 1, shards)
        save_file(p, f"{out}/{fn}", metadata={"format": "pt"})
        wm.update({k: fn for k in p})
    json.dump({"metadata": {"total_size": tot}, "weight_map": wm}, open(f"{out}/model.safetensors.index.json", "w"), indent=1)


# ---------------------------------------------------------------- optimizer
def zeropower(G, steps=5):
    a, b, c = 3.4445, -4.7750, 2.0315
    X = G.bfloat16() if G.is_cuda else G.float()
    t = X.size(-2) > X.size(-1)
    if t:
        X = X.transpose(-1, -2)
    X = X / (X.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        A = X @ X.transpose(-1, -2)
        Bm = b * A + c * (A @ A)
        X = a * X + Bm @ X
    if t:
        X = X.transpose(-1, -2)
    return X


class Muon:
    def __init__(self, params, wd=0.1, mom=0.95):
        self.g = {}
        for p in params:
            self.g.setdefault(tuple(p.shape), []).append(p)
        self.buf = {s: torch.zeros(len(ps), *s, device=ps[0].device) for s, ps in self.g.items()}
        self.wd, self.mom = wd, mom

    @torch.no_grad()
    def step(self, lr):
        for s, ps in self.g.items():
            g = torch.stack([p.grad for p in ps])
            b = self.buf[s]
            b.mul_(self.mom).add_(g, alpha=1 - self.mom)
            u = zeropower(g.mul(1 - self.mom).add(b, alpha=self.mom))
            u = u.to(ps[0].dtype) * (0.2 * math.sqrt(max(s[-2:])) * lr)
            for p, x in zip(ps, u.unbind(0)):
                p.mul_(1 - lr * self.wd).sub_(x)
