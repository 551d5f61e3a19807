"""SwiftKV (arXiv 2410.03960): distils adapters of a Llama-like Hugging Face folder. The later layers of a rewired copy take
their keys and values from the input of the first of them, through one norm of their own; neighbours may share one cache
(AcrossKV). Trained are the later layers' q, k and v and that norm, against the full model's logits; all else is the
model's own, so that teacher and students share the work of the lower layers, and several students one teacher.

Usage: swiftkv.py --init FOLDER --adapter OUT:SHARE[:GROUP] [--adapter ...] (--data DATA | --text FILE...) [--seconds N]

SHARE is the part of the layers that prompts skip, GROUP how many of these share a cache. OUT gets swiftkv.json and
swiftkv.safetensors, which `shoal up --swiftkv OUT` serves over FOLDER. DATA is prep.py's (natural text and retrieval
tasks, as the bundled models were trained on); --text takes any UTF-8 files, cut into windows with the folder's tokenizer.
Started again with the same --state, a run that was cut off continues. --eval FILE.json.gz:N adds exact match of prompts of
`shoal lab ruler --write-prompts`, with full caches and SnapStream's quarter; numbers go to --report.

Loss, of each student: t^2 KL(teacher || student) at t = 2 on the logits, and the squared error of the last hidden state
relative to its size. With --data the mean over natural text + --lam times the mean over answers."""
import argparse, glob, gzip, hashlib, json, math, mmap, os, struct, time
import numpy as np
import torch
import torch.nn.functional as F
import torch._dynamo
import model as M

MIX = dict(natural=.28, copy_rand=.02, copy_assoc=.08, niah=.16, mv=.13, mq=.07, passkey=.03, kv=.12, vt=.08, fwe=.04, chat_turns=.01)


# ---------------------------------------------------------------- the identity of a folder's weights
def headers(folder):
    """{name: (type, shape, file, first byte, last byte)} of all safetensors of a folder"""
    out = {}
    for f in sorted(glob.glob(folder + "/*.safetensors")):
        with open(f, "rb") as h:
            n, = struct.unpack("<Q", h.read(8))
            for k, e in json.loads(h.read(n)).items():
                if k != "__metadata__":
                    out[k] = (e["dtype"], e["shape"], f, 8 + n + e["data_offsets"][0], 8 + n + e["data_offsets"][1])
    return out


def identity(folder, tied):
    """what internal/engine/checkpoint/adapter.go calls the base: names, types, shapes and samples of every tensor of the model"""
    h = hashlib.sha256(b"shoal swiftkv base 1\n")
    for k, (dt, shape, f, lo, hi) in sorted(headers(folder).items()):
        if not k.startswith("model.") and k != "lm_head.weight" or k.endswith("inv_freq") or k == "lm_head.weight" and tied:
            continue
        h.update(f'"{k}" {dt} [{" ".join(map(str, shape))}]\n'.encode())
        with open(f, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as m:
            if hi - lo <= 16 << 10:
                h.update(m[lo:hi])
                continue
            for i in range(4):
                at = lo + (hi - lo - 64) // 3 * i
                h.update(m[at:at + 64])
    return h.hexdigest()


# ---------------------------------------------------------------- the model
class Model:
    """a Llama, Mistral, Qwen2 or Qwen3 without sliding windows, read only"""

    def __init__(self, folder, dev, dtype):
        from safetensors.torch import load_file
        c = json.load(open(folder + "/config.json"))
        if c["model_type"] not in ("llama", "mistral", "qwen2", "qwen3") or c.get("quantization_config") or c.get("use_sliding_window") or c["model_type"] == "mistral" and c.get("sliding_window"):
            raise SystemExit(f"{folder}: {c['model_type']} with these settings is not Llama-like enough: no windows, no experts, no quantized weights")
        self.folder, self.dev, self.dtype = folder, dev, dtype
        self.D, self.L, self.H, self.V, self.EPS = c["hidden_size"], c["num_hidden_layers"], c["num_attention_heads"], c["vocab_size"], c.get("rms_norm_eps", 1e-6)
        self.KV = c.get("num_key_value_heads") or self.H
        self.HD = c.get("head_dim") or self.D // self.H
        self.tied = c.get("tie_word_embeddings", False)
        self.bos = c.get("bos_token_id")
        self.inv = self.frequencies(c).to(dev)
        d = {}
        for f in sorted(glob.glob(folder + "/*.safetensors")):
            d.update(load_file(f))
        get = lambda n: d[n].float().to(dev) if n in d else None
        self.emb, self.lnf = get("model.embed_tokens.weight"), get("model.norm.weight")
        self.head = self.emb if self.tied else get("lm_head.weight")
        self.layers = []
        for i in range(self.L):
            p = f"model.layers.{i}."
            l = {"ln1": get(p + "input_layernorm.weight"), "ln2": get(p + "post_attention_layernorm.weight"), "i": i}
            for a, b in (("q", "self_attn.q_proj"), ("k", "self_attn.k_proj"), ("v", "self_attn.v_proj"), ("o", "self_attn.o_proj"),
                         ("g", "mlp.gate_proj"), ("u", "mlp.up_proj"), ("d", "mlp.down_proj")):
                l["w" + a], l["b" + a] = get(p + b + ".weight"), get(p + b + ".bias")
            l["nq"], l["nk"] = get(p + "self_attn.q_norm.weight"), get(p + "self_attn.k_norm.weight")
            l["rest"] = (l["ln2"], *(l[x + n] for n in "ogud" for x in "wb"))
            self.layers.append(l)
        self.backend, self._cs = "flash", {}
        self.fns = self.eager = (self.project, self.finish)

    def frequencies(self, c):
        r = c.get("rope_parameters") or c.get("rope_scaling") or {}
        theta = c.get("rope_theta") or r.get("rope_theta") or 10000.0
        inv = 1.0 / theta ** (torch.arange(0, self.HD, 2, dtype=torch.float32) / self.HD)
        kind = r.get("rope_type", r.get("type", "default"))
        if kind == "llama3":
            wave, old = 2 * math.pi / inv, r["original_max_position_embeddings"]
            s = ((old / wave - r["low_freq_factor"]) / (r["high_freq_factor"] - r["low_freq_factor"])).clamp(0, 1)
            return (1 - s) * inv / r["factor"] + s * inv
        if kind != "default":
            raise SystemExit(f"{self.folder}: rotary positions of type {kind} are not supported")
        return inv

    def cs(self, B, T, start=0):
        if (B, T, start) not in self._cs:
            a = (torch.arange(T, device=self.dev) + start).repeat(B).float()[:, None] * self.inv[None]
            self._cs[B, T, start] = (a.cos(), a.sin())
        return self._cs[B, T, start]

    def heads(self, x, n, norm, cos, sin):
        x = x.reshape(-1, n, self.HD)
        if norm is not None:
            x = M.rms(x, norm, self.EPS)
        return x if cos is None else M.rope(x, cos, sin)

    def project(self, x, ln, w, b, n, norm, cos, sin):
        """a head's rows of what w makes of RMSNorm(x, ln)"""
        y = F.linear(M.rms(x, ln, self.EPS), w.to(x.dtype), None if b is None else b.to(x.dtype))
        return self.heads(y, n, norm, cos, sin)

    def finish(self, x, a, ln, wo, bo, wg, bg, wu, bu, wd, bd):
        lin = lambda h, w, b: F.linear(h, w.to(h.dtype), None if b is None else b.to(h.dtype))
        x = x + lin(a, wo, bo)
        h = M.rms(x, ln, self.EPS)
        return x + lin(F.silu(lin(h, wg, bg)) * lin(h, wu, bu), wd, bd)

    def qkv(self, f, l, x, cos, sin):
        return (f[0](x, l["ln1"], l["wq"], l["bq"], self.H, l["nq"], cos, sin), f[0](x, l["ln1"], l["wk"], l["bk"], self.KV, l["nk"], cos, sin),
                f[0](x, l["ln1"], l["wv"], l["bv"], self.KV, None, None, None).contiguous())

    def embed(self, ids):
        return F.embedding(ids.reshape(-1), self.emb).to(self.dtype)

    def run(self, x, B, T, lo, hi, s=None, f=None):
        """layers lo to hi; those from s.first on are the student's. x is the input of layer lo: if that is a later layer of
        s, of its first"""
        f, x0 = f or self.fns, x
        cos, sin = self.cs(B, T)
        for l in self.layers[lo:hi]:
            q, k, v = self.qkv(f, l, x, cos, sin) if s is None else s.qkv(f, l, x, x0, cos, sin)
            x = f[1](x, M.sdpa(q, k, v, B, T, backend=self.backend), *l["rest"])
        return x

    def logits(self, x):
        return F.linear(M.rms(x, self.lnf, self.EPS), self.head.to(x.dtype)).float()


class Student:
    """what an adapter replaces"""

    def __init__(self, m, spec):
        out, share, *group = spec.split(":")
        self.m, self.out, self.group = m, out, int(group[0]) if group else 1
        self.first = m.L - max(1, round(m.L * float(share)))
        if not 0 < self.first < m.L or self.group < 1:
            raise SystemExit(f"{spec}: want OUT:SHARE[:GROUP], a share between 0 and 1 that leaves a layer")
        self.w = {"norm": m.layers[self.first]["ln1"].clone()}
        for l in m.layers[self.first:]:
            j, of = l["i"], m.layers[l["i"]:min(l["i"] + self.group, m.L)]
            for n in "q" if (j - self.first) % self.group else "qkv":
                mean = lambda a: l[a + n].clone() if n == "q" else torch.stack([x[a + n] for x in of]).mean(0)
                self.w[f"w{n}{j}"] = mean("w")
                if l["b" + n] is not None:
                    self.w[f"b{n}{j}"] = mean("b")
        for p in self.w.values():
            p.requires_grad_()

    def leader(self, j):
        return j - (j - self.first) % self.group

    def qkv(self, f, l, x, x0, cos, sin):
        m, w, j, g = self.m, self.w, l["i"], self.leader(l["i"])
        q = f[0](x, l["ln1"], w[f"wq{j}"], w.get(f"bq{j}"), m.H, l["nq"], cos, sin)
        if g == j:
            self.kv = (f[0](x0, w["norm"], w[f"wk{g}"], w.get(f"bk{g}"), m.KV, l["nk"], cos, sin),
                       f[0](x0, w["norm"], w[f"wv{g}"], w.get(f"bv{g}"), m.KV, None, None, None).contiguous())
        return (q, *self.kv)

    def save(self):
        from safetensors.torch import save_file
        m, d = self.m, {"model.norm_swiftkv.weight": self.w["norm"]}
        for k, v in self.w.items():
            if k != "norm":
                d[f"model.layers.{k[2:]}.self_attn.{k[1]}_proj_swiftkv.{'weight' if k[0] == 'w' else 'bias'}"] = v
        os.makedirs(self.out, exist_ok=True)
        save_file({k: v.detach().to(torch.bfloat16).contiguous().cpu() for k, v in d.items()}, self.out + "/swiftkv.safetensors", metadata={"format": "pt"})
        json.dump({"base": identity(m.folder, m.tied), "num_key_value_layers": self.first, "key_value_group_size": self.group}, open(self.out + "/swiftkv.json", "w"), indent=1)


# ---------------------------------------------------------------- data
class Tasks(torch.utils.data.IterableDataset):
    """natural text and retrieval tasks of gen.py: ids [B, T+1], classes"""
    def __init__(self, data, B, T, seed):
        self.a = (data, B, T, seed)

    def __iter__(self):
        import gen
        from evalgen import load_corp, load_tok
        data, B, T, seed = self.a
        torch.set_num_threads(1)
        wi = torch.utils.data.get_worker_info()
        g = gen.Gen(load_tok(data), load_corp(data, "train"), seed * 1000003 + (wi.id if wi else 0) * 7907 + T)
        while True:
            i, c = g.batch(B, T, MIX)
            yield torch.from_numpy(i), torch.from_numpy(c)


class Text(torch.utils.data.IterableDataset):
    """windows of plain text"""
    def __init__(self, ids, bos, B, T, seed):
        self.ids, self.bos, self.a = ids, bos, (B, T, seed)

    def __iter__(self):
        B, T, seed = self.a
        wi = torch.utils.data.get_worker_info()
        r = np.random.default_rng([seed, wi.id if wi else 0])
        head = [] if self.bos is None else [self.bos]
        while True:
            at = r.integers(0, len(self.ids) - T - 1, B)
            yield torch.from_numpy(np.stack([np.concatenate([head, self.ids[s:s + T + 1 - len(head)]]) for s in at]).astype(np.int64)), torch.ones(B, T + 1, dtype=torch.uint8)


def read_text(folder, files, T):
    from tokenizers import Tokenizer
    tok = Tokenizer.from_file(folder + "/tokenizer.json")
    ids = np.concatenate([np.array(tok.encode(open(f, encoding="utf-8").read(), add_special_tokens=False).ids, np.int64) for f in files])
    if len(ids) < 50 * (T + 2):
        raise SystemExit(f"{len(ids)} tokens of text: want at least 50 windows of {T}")
    return ids[:-len(ids) // 20], ids[-len(ids) // 20:]    # the last twentieth is held out


# ---------------------------------------------------------------- loss and optimizer
def weights(cls, lam, tmpl=0.05):
    w = torch.zeros(cls.shape, device=cls.device)
    for c, l in ((1, 1.0), (2, lam), (3, tmpl)):
        k = (cls == c).float()
        w = w + k * (l / k.sum().clamp_min(1.0))
    return w


def make_loss(m, temp, hid):
    def f(xs, xt, w, ln, head):
        e = head.to(xs.dtype)
        ls = F.log_softmax(F.linear(M.rms(xs, ln, m.EPS), e).float() / temp, -1)
        lt = F.log_softmax(F.linear(M.rms(xt, ln, m.EPS), e).float() / temp, -1)
        kl = (lt.exp() * (lt - ls)).sum(-1) * temp * temp
        d = (xs.float() - xt.float()).pow(2).mean(-1) / xt.float().pow(2).mean(-1).clamp_min(1e-6)
        return (kl * w[0]).sum() + hid * (d * w[1]).sum(), kl.detach()
    return f


class Optimizer:
    """Muon for matrices, Adam for vectors; or Adam for all"""
    def __init__(self, w, muon):
        self.vec = [p for p in w.values() if p.dim() < 2 or not muon]
        self.mat = [p for p in w.values() if p.dim() > 1 and muon]
        self.adam = torch.optim.AdamW(self.vec, lr=0.0, betas=(0.9, 0.95), weight_decay=0.0)
        self.muon = M.Muon(self.mat, wd=0.0) if self.mat else None

    def step(self, lr):
        torch.nn.utils.clip_grad_norm_(self.vec, 1.0)
        for g in self.adam.param_groups:
            g["lr"] = lr
        self.adam.step()
        if self.muon:
            self.muon.step(lr)
        for p in self.vec + self.mat:
            p.grad = None

    def state(self):
        return {"adam": self.adam.state_dict(), "muon": self.muon.buf if self.muon else None}

    def load(self, s):
        self.adam.load_state_dict(s["adam"])
        if self.muon:
            for k, v in s["muon"].items():
                self.muon.buf[k].copy_(v)


# ---------------------------------------------------------------- measuring
@torch.no_grad()
def heldout(m, students, texts, n, T=2048):
    """nats a token of held-out text: the teacher's, and each student's"""
    out = {}
    for k, a in texts.items():
        st = np.linspace(0, len(a) - T - 1, n).astype(int)
        head = [] if m.bos is None else [m.bos]
        ids = torch.from_numpy(np.stack([np.concatenate([head, a[s:s + T + 1 - len(head)]]) for s in st]).astype(np.int64)).to(m.dev)
        tot = np.zeros(1 + len(students))
        for b in range(0, n, 8):
            i = ids[b:b + 8]
            B = i.shape[0]
            y = i[:, 1:].reshape(-1)
            for z, s in enumerate([None, *students]):
                first = s.first if s else m.L
                x = m.run(m.embed(i[:, :-1]), B, T, 0, first, f=m.eager)
                tot[z] += F.cross_entropy(m.logits(m.run(x, B, T, first, m.L, s, f=m.eager)), y, reduction="sum").item()
        out[k] = [round(x / (n * T), 4) for x in tot]
    m._cs.clear()
    return out


@torch.no_grad()
def answers(m, s, p, a, budget, W=64, sink=4, ring=64):
    """predictions [b, A], teacher-forced, with the whole cache and with SnapStream's of `budget` tokens; in float32.
    A cache that layers share goes by the votes of the first of them."""
    b, T = p.shape
    A, H, KV, HD, L = a.shape[1], m.H, m.KV, m.HD, m.L
    first = s.first if s else L
    cos, sin = m.cs(b, T)
    x, cache, x0 = F.embedding(p.reshape(-1), m.emb), [], None
    for l in m.layers:
        if l["i"] == first:
            x0 = x
        q, k, v = m.qkv(m.eager, l, x, cos, sin) if l["i"] < first else s.qkv(m.eager, l, x, x0, cos, sin)
        o = M.sdpa(q, k, v, b, T)
        if l["i"] < first or s.leader(l["i"]) == l["i"]:
            kh, vh = k.view(b, T, KV, HD).transpose(1, 2), v.reshape(b, T, KV, HD).transpose(1, 2)
            qh = q.view(b, T, KV, H // KV, HD)[:, -W:].permute(0, 2, 3, 1, 4)
            i = torch.arange(T - W, T, device=m.dev)[:, None]
            r = torch.softmax((torch.matmul(qh, kh.unsqueeze(2).transpose(-1, -2)) / HD ** .5).masked_fill(torch.arange(T, device=m.dev)[None] > i, float("-inf")), -1).sum(3)
            vote = F.avg_pool1d(r.reshape(-1, 1, T), 7, 1, 3).view_as(r).sum(2)
            vote[..., :sink] = vote[..., T - ring:] = -1
            keep = torch.zeros(b, KV, T, dtype=torch.bool, device=m.dev)
            keep.scatter_(-1, vote.topk(budget - sink - ring, -1).indices, True)
            keep[..., :sink] = True
        cache.append((kh, vh, keep))
        x = m.finish(x, o, *l["rest"])
    start = m.logits(x.view(b, T, -1)[:, -1]).argmax(-1)
    out, n = [], A - 1
    j, t = torch.arange(n, device=m.dev), torch.arange(T, device=m.dev)
    inring, own = t[None] > T + j[:, None] - ring, j[None] <= j[:, None]
    cos, sin = m.cs(b, n, T)
    for cut in (False, True):
        x = F.embedding(a[:, :-1].clamp_min(0).reshape(-1), m.emb)
        for l in m.layers:
            if l["i"] == first:
                x0 = x
            q, k, v = m.qkv(m.eager, l, x, cos, sin) if l["i"] < first else s.qkv(m.eager, l, x, x0, cos, sin)
            kh, vh, keep = cache[l["i"]]
            q = q.view(b, n, KV, H // KV, HD).permute(0, 2, 3, 1, 4)
            k, v = k.view(b, n, KV, HD).transpose(1, 2), v.reshape(b, n, KV, HD).transpose(1, 2)
            s1 = torch.matmul(q, kh.unsqueeze(2).transpose(-1, -2)) / HD ** .5
            if cut:
                s1 = s1.masked_fill(~(keep[:, :, None, None, :] | inring), float("-inf"))
            s2 = (torch.matmul(q, k.unsqueeze(2).transpose(-1, -2)) / HD ** .5).masked_fill(~own, float("-inf"))
            w = torch.softmax(torch.cat([s1, s2], -1), -1)
            o = torch.matmul(w[..., :T], vh.unsqueeze(2)) + torch.matmul(w[..., T:], v.unsqueeze(2))
            x = m.finish(x, o.permute(0, 3, 1, 2, 4).reshape(b * n, -1), *l["rest"])
        out.append(torch.cat([start[:, None], m.logits(x).argmax(-1).view(b, n)], 1))
    return out


def exact(m, students, path, n, bs):
    """exact match in %, by prompt length, model, cache and task"""
    from evalpol import prompts, score
    res = {}
    for (task, ctx), d in sorted(prompts(path).items()):
        for name, s in [("full", None), *students]:
            hit = {"full": [], "snapstream/4": []}
            for b in range(0, min(n, len(d["prompt"])), bs):
                r = slice(b, min(n, b + bs))
                p, a, sf = (torch.from_numpy(d[k][r]).to(m.dev) for k in ("prompt", "ans", "sf"))
                for k, pred in zip(hit, answers(m, s, p.long(), a.long(), ctx // 4)):
                    hit[k].append(score(pred, a.long(), sf)[0])
                m._cs.clear()
            for k, v in hit.items():
                res.setdefault(str(ctx), {}).setdefault(name, {}).setdefault(k, {})[task] = round(100 * torch.cat(v).mean().item(), 1)
    for ctx, models in res.items():
        for name, caches in models.items():
            for k, v in caches.items():
                nine = [x for t, x in v.items() if t not in ("niah_multivalue", "fwe", "cwe")]
                print(ctx, name, k, "mean9 %.1f" % (sum(nine) / len(nine)), v, flush=True)
    return res


# ---------------------------------------------------------------- training
def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--init", required=True); ap.add_argument("--adapter", action="append", required=True)
    ap.add_argument("--data"); ap.add_argument("--text", nargs="+")
    ap.add_argument("--seconds", type=float, default=300); ap.add_argument("--steps", type=int, default=10**9)
    ap.add_argument("--T", type=int, default=8192); ap.add_argument("--B", type=int, default=6); ap.add_argument("--rows", type=int, default=8192)
    ap.add_argument("--lr", type=float, default=2e-3); ap.add_argument("--adam", action="store_true", help="AdamW for all, as in the paper: take --lr 2e-4")
    ap.add_argument("--temp", type=float, default=2.0); ap.add_argument("--lam", type=float, default=2.0); ap.add_argument("--hid", type=float, default=0.5)
    ap.add_argument("--workers", type=int, default=14); ap.add_argument("--dev", default="cuda"); ap.add_argument("--no-compile", action="store_true")
    ap.add_argument("--state"); ap.add_argument("--save-every", type=float, default=60)
    ap.add_argument("--eval", nargs="*", default=[]); ap.add_argument("--before", nargs="*", default=[]); ap.add_argument("--report"); ap.add_argument("--bs", type=int, default=8)
    ap.add_argument("--windows", type=int, default=32, help="of held-out text")
    a = ap.parse_args()
    dtype = torch.bfloat16 if a.dev == "cuda" else torch.float32
    torch.manual_seed(1)
    m = Model(a.init, a.dev, dtype)
    if a.dev == "cuda":
        try:
            q, k = torch.randn(a.T, m.H, m.HD, device=a.dev, dtype=dtype, requires_grad=True), torch.randn(a.T, m.KV, m.HD, device=a.dev, dtype=dtype)
            M.sdpa(q, k, k, 1, a.T, backend="cudnn").sum().backward()
            m.backend = "cudnn"
        except RuntimeError as e:
            print("cudnn attention refused:", str(e)[:100], flush=True)
    students = [Student(m, s) for s in a.adapter]
    names = [(os.path.basename(s.out.rstrip("/")), s) for s in students]
    size = {}
    if a.data:
        texts = {os.path.basename(f)[:-len("_val.npy")]: np.load(f, mmap_mode="r") for f in sorted(glob.glob(a.data + "/*_val.npy"))}
        texts = {k: v for k, v in texts.items() if len(v) > 40000}
        size = json.load(open(a.data + "/bytes_a_token.json"))
    else:
        train_ids, val = read_text(a.init, a.text, a.T)
        texts = {"text": val}
    report = {"adapters": {n: {"num_key_value_layers": s.first, "key_value_group_size": s.group, "parameters": sum(p.numel() for p in s.w.values())} for n, s in names}}

    def note(key, value):
        report[key] = value
        if a.report:
            json.dump(report, open(a.report, "w"), indent=1)
        print(key, json.dumps(value)[:2000], flush=True)

    def measure(when, evals):
        h = heldout(m, students, texts, a.windows)
        note("nats " + when, {k: dict(zip(["full", *dict(names)], v)) for k, v in h.items()})
        note("bits a byte " + when, {k: dict(zip(["full", *dict(names)], [round(x / math.log(2) / size[k + "_val"], 4) for x in v])) for k, v in h.items() if k + "_val" in size})
        for e in evals:
            path, n = e.rsplit(":", 1)
            note(f"exact match {when}, {os.path.basename(path)}", exact(m, names, path, int(n), a.bs))

    opts = [Optimizer(s.w, not a.adam) for s in students]
    it, used = 0, 0.0
    if a.state and os.path.exists(a.state):
        old = torch.load(a.state, map_location=a.dev, weights_only=True)
        if old["adapters"] != a.adapter:
            raise SystemExit(f"{a.state} is of {old['adapters']}")
        it, used = old["it"], old["used"]
        if a.report and os.path.exists(a.report):
            report.update(json.load(open(a.report)))
        for s, o, w in zip(students, opts, old["students"]):
            for k, v in w["w"].items():
                s.w[k].data.copy_(v)
            o.load(w["opt"])
        print("goes on at step", it, flush=True)
    else:
        measure("before", a.before)
    data = Tasks(a.data, a.B, a.T, 11 + it) if a.data else Text(train_ids, m.bos, a.B, a.T, 11 + it)
    ld = iter(torch.utils.data.DataLoader(data, batch_size=None, num_workers=a.workers, prefetch_factor=4 if a.workers else None))
    compiled = (lambda f: f) if a.no_compile else (lambda f: torch.compile(f, dynamic=False))
    torch._dynamo.config.cache_size_limit = 256
    m.fns = tuple(compiled(f) for f in m.eager)
    loss = compiled(make_loss(m, a.temp, a.hid))
    cuts = sorted({s.first for s in students})

    def step(lr):
        ids, cls = next(ld)
        ids, cls = ids.to(a.dev).long()[:, :-1], cls.to(a.dev)[:, 1:]
        B, T = ids.shape
        with torch.no_grad():
            at, x, last = {}, m.embed(ids), 0
            for c in cuts:
                x, last = m.run(x, B, T, last, c), c
                at[c] = x
            xt = m.run(x, B, T, last, m.L)
        wt = weights(cls, a.lam).reshape(-1)
        w = torch.stack([wt, torch.full_like(wt, 1.0 / wt.numel())])
        said = []
        for s, o in zip(students, opts):
            xs = m.run(at[s.first], B, T, s.first, m.L, s)
            leaf, tot, kls = xs.detach().requires_grad_(), 0.0, []
            for r in range(0, B * T, a.rows):    # a vocabulary's logits of all rows at once would not fit
                v, kl = loss(leaf[r:r + a.rows], xt[r:r + a.rows], w[:, r:r + a.rows], m.lnf, m.head)
                v.backward()
                tot, kls = tot + v.detach(), kls + [kl]
            xs.backward(leaf.grad)
            if lr:
                o.step(lr)
            kl, c = torch.cat(kls), cls.reshape(-1)
            said.append((tot, kl[c == 1].mean(), kl[c == 2].mean()))
        return said

    def keep():
        if a.state:
            torch.save({"adapters": a.adapter, "it": it, "used": used + time.time() - t0,
                        "students": [{"w": {k: v.data for k, v in s.w.items()}, "opt": o.state()} for s, o in zip(students, opts)]}, a.state + ".new")
            os.replace(a.state + ".new", a.state)

    t0 = time.time()
    step(0.0)
    for o in opts:
        for p in o.vec + o.mat:
            p.grad = None
    if a.dev == "cuda":
        torch.cuda.synchronize()
    print("first step", round(time.time() - t0, 1), "s, attention", m.backend, flush=True)
    t0, next_say, next_save, began = time.time(), 0.0, a.save_every, it
    while used + time.time() - t0 < a.seconds and it < a.steps:
        now = time.time() - t0
        p = max((used + now) / a.seconds, it / a.steps)
        said = step(a.lr * min(1.0, (it + 1) / 30) * max(0.02, min(1.0, (1 - p) / 0.7)))
        it += 1
        if now > next_say:
            next_say = now + a.seconds / 15
            print(f"step {it} t={used + now:.0f}", " ".join(f"{n}: loss {l.item():.4f} kl natural {k1.item():.4f} answers {k2.item():.4f};" for (n, _), (l, k1, k2) in zip(names, said)), flush=True)
        if now > next_save:
            next_save = now + a.save_every
            keep()
    keep()
    for s in students:
        s.save()
    note("training", {"steps": it, "tokens": it * a.B * a.T, "seconds": round(used + time.time() - t0, 1), "tokens_a_second": round((it - began) * a.B * a.T / (time.time() - t0))})
    m._cs.clear()
    for s in students:    # measured is what was written
        for v in s.w.values():
            v.data.copy_(v.data.to(torch.bfloat16).float())
    if a.dev == "cuda":
        torch.cuda.empty_cache()
    measure("after", a.eval)
    os._exit(0)    # the loaders' processes with it


if __name__ == "__main__":
    main()
