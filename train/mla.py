"""A small DeepSeek-V3: latent attention (MLA) and a mixture of experts, with the methods of model.LM.

Training multiplies every token with every expert in one matrix product and sets the gates of the unchosen ones to
zero: 16 small experts cost less that way than grouping, and no shape depends on the routing. The shared expert is
the last one, with gate 1. Router scores are sigmoids; a bias that only the choice sees keeps the load even (it moves
by a fixed amount against each expert's excess, no auxiliary loss: DeepSeek-V3 report, section 2.1.2)."""
import math
import torch
import torch.nn as nn
import torch.nn.functional as F
from model import rms, head_loss


class Cfg:
    V = 4096; D = 256; L = 6; H = 16; QL = 128; KL = 128; NO = 32; RO = 32; VD = 32; FF = 1024; DENSE = 1
    E = 16; SHARED = 1; MF = 192; TOP = 4; GROUPS = 4; TOPG = 2; SCALE = 2.5; THETA = 100000.0; EPS = 1e-6; MAXPOS = 8192
    def __init__(self, **k):
        for a, b in k.items():
            setattr(self, a, b)
    def hf(self):
        return {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "vocab_size": self.V, "hidden_size": self.D,
                "intermediate_size": self.FF, "moe_intermediate_size": self.MF, "num_hidden_layers": self.L, "num_attention_heads": self.H,
                "num_key_value_heads": self.H, "q_lora_rank": self.QL, "kv_lora_rank": self.KL, "qk_nope_head_dim": self.NO,
                "qk_rope_head_dim": self.RO, "v_head_dim": self.VD, "n_routed_experts": self.E, "n_shared_experts": self.SHARED,
                "num_experts_per_tok": self.TOP, "n_group": self.GROUPS, "topk_group": self.TOPG, "routed_scaling_factor": self.SCALE,
                "norm_topk_prob": True, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "first_k_dense_replace": self.DENSE,
                "moe_layer_freq": 1, "num_nextn_predict_layers": 0, "ep_size": 1, "hidden_act": "silu", "max_position_embeddings": self.MAXPOS,
                "rms_norm_eps": self.EPS, "rope_theta": self.THETA, "rope_scaling": None, "rope_interleave": True, "tie_word_embeddings": True,
                "attention_bias": False, "attention_dropout": 0.0, "initializer_range": 0.02, "use_cache": True,
                "bos_token_id": 0, "eos_token_id": 4, "pad_token_id": 6, "torch_dtype": "bfloat16", "pretraining_tp": 1}


def rope(x, cos, sin):
    """x [N, heads, RO] with the two of a pair side by side; cos, sin [N, RO/2]"""
    a, b = x.float()[..., 0::2], x.float()[..., 1::2]
    c, s = cos.unsqueeze(1), sin.unsqueeze(1)
    return torch.cat([a * c - b * s, b * c + a * s], -1).to(x.dtype)


def make_fns(c):
    H, NO, RO, VD, KL, EPS = c.H, c.NO, c.RO, c.VD, c.KL, c.EPS

    def down(x, ln, wqa, lnq, wqb, wkva, lnkv, cos, sin):
        """queries [N, H, NO+RO], latent [N, KL], rope key [N, 1, RO]"""
        h = rms(x, ln, EPS)
        qa, kva = F.linear(h, torch.cat([wqa, wkva], 0).to(x.dtype)).split([c.QL, KL + RO], -1)
        q = F.linear(rms(qa, lnq, EPS), wqb.to(x.dtype)).view(-1, H, NO + RO)
        lat, kr = kva.split([KL, RO], -1)
        q = torch.cat([q[..., :NO], rope(q[..., NO:], cos, sin)], -1)
        return q, rms(lat, lnkv, EPS), rope(kr.unsqueeze(1), cos, sin)

    def pre(x, ln, wqa, lnq, wqb, wkva, lnkv, wkvb, cos, sin):
        """expanded heads: q, k [N, H, NO+RO]; v [N, H, VD]"""
        q, lat, kr = down(x, ln, wqa, lnq, wqb, wkva, lnkv, cos, sin)
        kv = F.linear(lat, wkvb.to(x.dtype)).view(-1, H, NO + VD)
        k = torch.cat([kv[..., :NO], kr.expand(-1, H, RO)], -1)
        return q, k, kv[..., NO:].contiguous()

    def dense(x, a, wo, ln, wg, wu, wd):
        x = x + F.linear(a, wo.to(x.dtype))
        h = rms(x, ln, EPS)
        g, u = F.linear(h, torch.cat([wg, wu], 0).to(x.dtype)).chunk(2, -1)
        return x + F.linear(F.silu(g) * u, wd.to(x.dtype))

    def moe(x, a, wo, ln, router, bias, wg, wu, wd):
        """also the number of tokens that chose each expert [E]"""
        x = x + F.linear(a, wo.to(x.dtype))
        h = rms(x, ln, EPS)
        s = torch.sigmoid(F.linear(h.float(), router))
        with torch.no_grad():
            b = s + bias
            gs = b.view(-1, c.GROUPS, c.E // c.GROUPS).topk(2, -1).values.sum(-1)
            gm = torch.zeros_like(gs).scatter(1, gs.topk(c.TOPG, -1).indices, 1.0)
            b = b.masked_fill(gm.repeat_interleave(c.E // c.GROUPS, 1) == 0, 0.0)
            on = torch.zeros_like(s).scatter(1, b.topk(c.TOP, -1).indices, 1.0)
        w = s * on
        w = w / (w.sum(-1, keepdim=True) + 1e-20) * c.SCALE
        w = torch.cat([w, torch.ones_like(w[:, :1])], 1).to(x.dtype)
        g, u = F.linear(h, torch.cat([wg.flatten(0, 1), wu.flatten(0, 1)], 0).to(x.dtype)).chunk(2, -1)
        y = (F.silu(g) * u).view(-1, c.E + 1, c.MF) * w.unsqueeze(-1)
        return x + F.linear(y.flatten(1), wd.permute(1, 0, 2).flatten(1).to(x.dtype)), on.sum(0)

    return pre, dense, moe, head_loss(EPS), down


class Layer(nn.Module):
    def __init__(self, c, sparse):
        super().__init__()
        def w(o, i, s=1.0, n=()):
            return nn.Parameter(torch.randn(*n, o, i) * (s / math.sqrt(i)))
        r = 0.5 / math.sqrt(2 * c.L)
        ones = lambda n: nn.Parameter(torch.ones(n))
        self.sparse = sparse
        self.ln1 = ones(c.D); self.ln2 = ones(c.D); self.lnq = ones(c.QL); self.lnkv = ones(c.KL)
        self.wqa = w(c.QL, c.D, .6); self.wqb = w(c.H * (c.NO + c.RO), c.QL, .6)
        self.wkva = w(c.KL + c.RO, c.D, .6); self.wkvb = w(c.H * (c.NO + c.VD), c.KL, .6)
        self.wo = w(c.D, c.H * c.VD, r)
        n, ff = ((c.E + 1,), c.MF) if sparse else ((), c.FF)
        self.wg = w(ff, c.D, .6, n); self.wu = w(ff, c.D, .6, n); self.wd = w(c.D, ff, r, n)
        if sparse:
            self.router = w(c.E, c.D, .6)
            self.register_buffer("bias", torch.zeros(c.E))
            self.register_buffer("count", torch.zeros(c.E))


class LM(nn.Module):
    def __init__(self, c):
        super().__init__()
        assert c.SHARED == 1
        self.c = c
        self.emb = nn.Parameter(torch.randn(c.V, c.D) * 0.02)
        self.layers = nn.ModuleList([Layer(c, i >= c.DENSE) for i in range(c.L)])
        self.lnf = nn.Parameter(torch.ones(c.D))
        self.fns = self.eager = make_fns(c)
        self.backend = "cudnn"
        self.scale = 1 / math.sqrt(c.NO + c.RO)
        self.kv, self.kd, self.vd = 1, c.KL + c.RO, c.KL      # the cache: one head, latent and rope key
        self._cs = {}

    def compile(self):
        self.fns = tuple(torch.compile(f, dynamic=False) for f in self.eager)

    def cossin(self, pos):
        inv = 1.0 / (self.c.THETA ** (torch.arange(0, self.c.RO, 2, dtype=torch.float32, device=pos.device) / self.c.RO))
        a = pos.float()[:, None] * inv[None]
        return a.cos(), a.sin()

    def cs(self, B, T, dev):
        if (B, T) not in self._cs:
            self._cs[(B, T)] = self.cossin(torch.arange(T, device=dev).repeat(B))
        return self._cs[(B, T)]

    def sdpa(self, q, k, v, B, T, mask=None):
        """expanded q, k [B*T, H, NO+RO], v [B*T, H, VD] -> [B*T, H*VD], causal"""
        q, k, v = (t.view(B, T, self.c.H, -1).transpose(1, 2) for t in (q, k, v))
        if q.device.type == "cpu" or q.dtype == torch.float32 or mask is not None:
            o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        else:
            from torch.nn.attention import sdpa_kernel, SDPBackend
            pad = q.shape[-1] - v.shape[-1] if not self.backend.endswith("_nopad") else 0
            b = SDPBackend.CUDNN_ATTENTION if self.backend.startswith("cudnn") else SDPBackend.FLASH_ATTENTION
            with sdpa_kernel(b):
                o = F.scaled_dot_product_attention(q, k, F.pad(v, (0, pad)) if pad else v, is_causal=True)[..., :self.c.VD]
        return o.transpose(1, 2).reshape(B * T, -1)

    def finish(self, l, x, a, fns=None, count=False):
        """output projection and the feed-forward part of a layer"""
        _, dense, moe, _, _ = fns or self.eager
        if not l.sparse:
            return dense(x, a, l.wo, l.ln2, l.wg, l.wu, l.wd)
        x, n = moe(x, a, l.wo, l.ln2, l.router, l.bias, l.wg, l.wu, l.wd)
        if count:
            l.count += n.detach()
        return x

    def body(self, ids, fns, dtype, count=False):
        """ids [B, T] -> hidden [B*T, D]"""
        B, T = ids.shape
        cos, sin = self.cs(B, T, ids.device)
        x = F.embedding(ids.reshape(-1), self.emb).to(dtype)
        for l in self.layers:
            q, k, v = fns[0](x, l.ln1, l.wqa, l.lnq, l.wqb, l.wkva, l.lnkv, l.wkvb, cos, sin)
            x = self.finish(l, x, self.sdpa(q, k, v, B, T), fns, count)
        return x

    def loss(self, ids, tgt, w, dtype=torch.bfloat16):
        x = self.body(ids, self.fns, dtype, count=True)
        return self.fns[3](x, self.lnf, self.emb, tgt.reshape(-1), w.reshape(-1))

    def logits(self, x):
        return F.linear(rms(x, self.lnf, self.c.EPS), self.emb.to(x.dtype)).float()

    @torch.no_grad()
    def balance(self, rate, allreduce=None):
        """moves the router's biases against the load of the last step; returns the largest load over the mean"""
        ls = [l for l in self.layers if l.sparse]
        n = torch.stack([l.count for l in ls])
        if allreduce:
            allreduce(n)
        mean = n.mean(1, keepdim=True)
        up = rate * torch.sign(mean - n)
        for l, u in zip(ls, up):
            l.bias += u
            l.count.zero_()
        return (n.max(1).values / mean[:, 0]).max()

    # ---- for evalpol: the cache's form of a layer (queries absorbed: they meet latents directly)
    def cached(self, l, x, cos, sin):
        """q [N, H, KL+RO], k [N, 1, KL+RO], v [N, 1, KL]"""
        c = self.c
        q, lat, kr = self.eager[4](x, l.ln1, l.wqa, l.lnq, l.wqb, l.wkva, l.lnkv, cos, sin)
        up = l.wkvb.to(x.dtype).view(c.H, c.NO + c.VD, c.KL)[:, :c.NO]
        qn = torch.einsum("nhd,hdl->nhl", q[..., :c.NO], up)
        return torch.cat([qn, q[..., c.NO:]], -1), torch.cat([lat.unsqueeze(1), kr], -1), lat.unsqueeze(1)

    def uncached(self, l, o):
        """attention output in the latent, [N, H, KL] -> [N, H*VD]"""
        c = self.c
        return torch.einsum("nhl,hdl->nhd", o, l.wkvb.to(o.dtype).view(c.H, c.NO + c.VD, c.KL)[:, c.NO:]).flatten(1)

    def prompt(self, l, x, B, T, cos, sin, mask=None):
        """attention output of a prompt [B*T, H*VD]"""
        q, k, v = self.eager[0](x, l.ln1, l.wqa, l.lnq, l.wqb, l.wkva, l.lnkv, l.wkvb, cos, sin)
        return self.sdpa(q, k, v, B, T, mask=mask)

    # ---- the published layout
    def names(self):
        """name -> (tensor, expert or None)"""
        d = {"model.embed_tokens.weight": (self.emb, None), "model.norm.weight": (self.lnf, None)}
        for i, l in enumerate(self.layers):
            p = f"model.layers.{i}."
            for a, b in (("ln1", "input_layernorm"), ("ln2", "post_attention_layernorm"), ("wqa", "self_attn.q_a_proj"), ("lnq", "self_attn.q_a_layernorm"),
                         ("wqb", "self_attn.q_b_proj"), ("wkva", "self_attn.kv_a_proj_with_mqa"), ("lnkv", "self_attn.kv_a_layernorm"),
                         ("wkvb", "self_attn.kv_b_proj"), ("wo", "self_attn.o_proj")):
                d[p + b + ".weight"] = (getattr(l, a), None)
            if l.sparse:
                d[p + "mlp.gate.weight"] = (l.router, None)
                d[p + "mlp.gate.e_score_correction_bias"] = (l.bias, None)
            for a, b in (("wg", "gate_proj"), ("wu", "up_proj"), ("wd", "down_proj")):
                if l.sparse:
                    for e in range(self.c.E):
                        d[p + f"mlp.experts.{e}.{b}.weight"] = (getattr(l, a), e)
                    d[p + f"mlp.shared_experts.{b}.weight"] = (getattr(l, a), self.c.E)
                else:
                    d[p + f"mlp.{b}.weight"] = (getattr(l, a), None)
        return d

    def hf_state(self, dtype=torch.bfloat16):
        return {k: (v if e is None else v[e]).detach().to(torch.float32 if k.endswith("correction_bias") else dtype).contiguous().cpu()
                for k, (v, e) in self.names().items()}

    def load_hf(self, d):
        own = self.names()
        with torch.no_grad():
            for k, v in d.items():
                t, e = own[k]
                (t if e is None else t[e]).copy_(v.float())
