"""Trains by wall clock on one GPU, or on several of one host: torchrun --nproc-per-node N train.py ..."""
import argparse, json, os, pickle, time
import numpy as np
import torch
import torch.distributed as dist
import model as M
import gen
import evalpol
from evalgen import load_corp, load_tok
from lora import LoRA

MIX = {
    512: dict(natural=.22, copy_rand=.10, copy_assoc=.24, niah=.13, mv=.06, mq=.03, passkey=.02, kv=.09, vt=.08, fwe=.03, chat_turns=.01),
    2048: dict(natural=.36, copy_rand=.03, copy_assoc=.10, niah=.13, mv=.09, mq=.05, passkey=.02, kv=.09, vt=.09, fwe=.04, chat_turns=.01),
    4096: dict(natural=.38, copy_rand=.02, copy_assoc=.08, niah=.14, mv=.09, mq=.05, passkey=.02, kv=.09, vt=.09, fwe=.04, chat_turns=.006),
}
AGAIN = dict(natural=.60, copy_rand=.01, copy_assoc=.05, niah=.08, mv=.07, mq=.05, passkey=.01, kv=.05, vt=.06, fwe=.03, chat_turns=.006)
ROWS = 64   # behind the prompt of a sample of which the cache is compressed


def mix_for(T, ends):
    return AGAIN if ends else MIX[max([k for k in MIX if k <= T] or [512])]


class Stream(torch.utils.data.IterableDataset):
    def __init__(self, data, B, T, seed, ends=0, go=1.0, tools=0.0):
        self.a = (data, B, T, seed, ends, go, tools)
    def __iter__(self):
        data, B, T, seed, ends, go, tools = self.a
        torch.set_num_threads(1)
        wi = torch.utils.data.get_worker_info()
        g = gen.Gen(load_tok(data), load_corp(data, "train"), seed * 1000003 + (wi.id if wi else 0) * 7907 + T, go)
        mix = mix_for(T, ends) | ({"tools": tools} if tools else {})
        while True:
            i, c = g.batch(B, T, mix, ends, ROWS + 1)
            yield torch.from_numpy(i), torch.from_numpy(c)


def weights(cls, lam, tmpl=0.05):
    """per-target weights: mean over natural text + lam * mean over answers (of the compressed caches too) + tmpl * mean over template text"""
    w = torch.zeros(cls.shape, device=cls.device)
    for c, l in ((1, 1.0), (2, lam), (3, tmpl), (4, lam)):
        m = (cls == c).float()
        w = w + m * (l / m.sum().clamp_min(1.0))
    return w


@torch.no_grad()
def em_full(model, d, n, dev, chunk=131072):
    """teacher-forced greedy exact match of the answers (its last token, the terminator, left out)"""
    P, A, sf = d["prompt"][:n], d["ans"][:n], d["sf"][:n]
    ctx, na = P.shape[1], A.shape[1]
    bs = max(1, chunk // (ctx + na))
    ok = []
    for b in range(0, len(P), bs):
        p = torch.from_numpy(P[b:b + bs]).long().to(dev)
        a = torch.from_numpy(A[b:b + bs]).long().to(dev)
        s = torch.from_numpy(sf[b:b + bs]).to(dev)
        ids = torch.cat([p, a[:, :-1].clamp_min(0)], 1)
        x = model.body(ids, model.eager, torch.bfloat16).view(ids.shape[0], ids.shape[1], -1)[:, ctx - 1:]
        pred = model.logits(x).argmax(-1)
        j = torch.arange(na, device=dev)[None]
        ln = (a >= 0).sum(1, keepdim=True)
        m = (j >= s[:, None]) & (j < ln - 1)
        ok.append(((pred == a) | ~m).all(1).float().cpu())
    model._cs.clear()
    return torch.cat(ok).mean().item()


VAL = ("code", "codego", "eng")

@torch.no_grad()
def val_loss(model, data, dev, T=2048, n=32, kinds=VAL):
    """nats a token of held-out text: n windows of T tokens, evenly spaced, each after <|bos|>"""
    out = {}
    for k in kinds:
        a = np.load(f"{data}/{k}_val.npy", mmap_mode="r")
        st = np.linspace(0, len(a) - T - 2, n).astype(int)
        ids = torch.from_numpy(np.stack([np.concatenate([[0], a[s:s + T]]) for s in st]).astype(np.int64)).to(dev)
        tot = 0.0
        for b in range(0, n, 16):
            i = ids[b:b + 16]
            x = model.body(i[:, :-1], model.eager, torch.bfloat16 if dev != "cpu" else torch.float32)
            tot += torch.nn.functional.cross_entropy(model.logits(x), i[:, 1:].reshape(-1), reduction="sum").item()
        out[k] = tot / (n * T)
    model._cs.clear()
    return out


def compressed(cl, n):
    """for model.loss: the last rows of the first n sequences, by whether their target is an answer, and how many tokens of
    the prompt's middle a cache of a quarter of the context keeps"""
    if not n:
        return None
    need = (cl[:n, -ROWS:] == 4).float()
    return need / need.sum(1, keepdim=True).clamp_min(1), cl.shape[1] // 4 - 68


class FlatGrad:
    """all gradients in one buffer, so that ranks average them in one all-reduce"""
    def __init__(self, params):
        self.flat = torch.zeros(sum(p.numel() for p in params), device=params[0].device)
        at = 0
        for p in params:
            p.grad = self.flat[at:at + p.numel()].view_as(p)
            at += p.numel()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--data", required=True); ap.add_argument("--out", required=True); ap.add_argument("--evalset")
    ap.add_argument("--seconds", type=float, default=60); ap.add_argument("--opt", default="muon"); ap.add_argument("--lr", type=float, default=2.5e-3)
    ap.add_argument("--phases", default="512:1.0:1"); ap.add_argument("--N", type=int, default=65536); ap.add_argument("--eval-every", type=float, default=120)
    ap.add_argument("--workers", type=int, default=12); ap.add_argument("--dev", default="cuda"); ap.add_argument("--no-compile", action="store_true")
    ap.add_argument("--backend", default="flash"); ap.add_argument("--evaln", type=int, default=32); ap.add_argument("--warm", type=int, default=150)
    ap.add_argument("--decay-from", type=float, default=0.6); ap.add_argument("--seed", type=int, default=1); ap.add_argument("--lam", type=float, default=1.0)
    ap.add_argument("--tiny", action="store_true"); ap.add_argument("--init"); ap.add_argument("--log-every", type=int, default=100)
    ap.add_argument("--shards", type=int, default=1, help="safetensors files of the exported folder")
    ap.add_argument("--arch", default="llama", choices=("llama", "deepseek")); ap.add_argument("--balance", type=float, default=0.001, help="step of the router's bias at the peak learning rate")
    ap.add_argument("--ends", type=float, default=0, help="share of the samples that are answered from a compressed cache; also takes the mix of a second training")
    ap.add_argument("--short", type=float, default=1.0, help="weight of votes that fall short of the cut")
    ap.add_argument("--go", type=float, default=1.0, help="how often a token of the Go authors' text is read, to one of others' Go")
    ap.add_argument("--lora", type=int, default=0, help="rank of a LoRA adapter of --init, of which alone is learned (by AdamW): OUT/adapter")
    ap.add_argument("--tools", type=float, default=0, help="weight of samples with calls of functions (tools.py) beside a mix of about 1")
    a = ap.parse_args()
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    a.seed += 100 * rank
    os.makedirs(a.out, exist_ok=True)
    log = open(f"{a.out}/log.jsonl", "a", buffering=1)
    def say(**k):
        if rank:
            return
        log.write(json.dumps(k) + "\n")
        print(" ".join(f"{x}={round(y, 4) if isinstance(y, float) else y}" for x, y in k.items()), flush=True)
    dev = a.dev
    phases = []
    for s in a.phases.split(","):
        T, end, acc = s.split(":")
        phases.append((int(T), float(end), int(acc)))
    # all the loaders start before CUDA does; an idle one waits on its full queue
    loaders = {}
    for T in dict.fromkeys(T for T, _, _ in phases):
        loaders[T] = iter(torch.utils.data.DataLoader(Stream(a.data, max(1, a.N // T), T, a.seed, int(a.ends * max(1, a.N // T)), a.go, a.tools), batch_size=None, num_workers=a.workers,
                                                      prefetch_factor=4 if a.workers else None, pin_memory=False, multiprocessing_context="fork" if a.workers else None))
    torch.manual_seed(a.seed % 100)
    if dev == "cuda":
        dev = f"cuda:{int(os.environ.get('LOCAL_RANK', 0))}"
        torch.cuda.set_device(dev)
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True
    cuda = dev != "cpu"
    if world > 1:
        dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
    tok_v = load_tok(a.data).get_vocab_size()
    tiny = dict(D=64, L=2, H=8, FF=128) if a.tiny else {}
    model = M.open_lm(a.arch, V=tok_v, **tiny).to(dev)
    c = model.c
    model.backend = a.backend
    if a.init:
        from safetensors.torch import load_file
        import glob
        for f in sorted(glob.glob(a.init + "/*.safetensors")):
            model.load_hf(load_file(f))
    lora = LoRA(model, a.lora, a.seed % 100) if a.lora else None
    learned = [p for p in (lora or model).parameters() if p.requires_grad]
    if not a.no_compile:
        model.compile()
    npar = sum(p.numel() for p in learned)
    say(ev="start", params=npar, cfg=json.dumps(c.hf()), args=json.dumps(vars(a)))
    mats = [p for n, p in model.named_parameters() if p.ndim > 1 and n != "emb"]
    rest = [model.emb] + [p for n, p in model.named_parameters() if p.ndim == 1]
    fused = cuda
    if lora:
        mu, clipped = None, learned
        ad = torch.optim.AdamW(learned, lr=a.lr, betas=(0.9, 0.98), weight_decay=0.0, **({"fused": True} if fused else {}))
    elif a.opt == "muon":
        mu = M.Muon(mats, wd=0.1)
        ad = torch.optim.AdamW(rest, lr=a.lr, betas=(0.9, 0.95), eps=1e-10, weight_decay=0.0, **({"fused": True} if fused else {}))
        clipped = rest
    else:
        mu = None
        ad = torch.optim.AdamW([{"params": mats, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=a.lr, betas=(0.9, 0.95), eps=1e-10, **({"fused": True} if fused else {}))
        clipped = mats + rest
    ev = pickle.load(open(a.evalset, "rb")) if a.evalset else {}
    dtype = torch.bfloat16 if cuda else torch.float32
    # compile before the clock starts
    tc = time.time()
    grads = FlatGrad(learned)
    def forward(ids, cls):
        """-> loss, loss of each token, classes, how short of the cut votes fell"""
        if lora:
            lora.apply_()
        i = ids.to(dev, non_blocking=True).long()
        cl = cls.to(dev, non_blocking=True)[:, 1:]
        ends = compressed(cl, int(a.ends * len(cl)))
        l, ce = model.loss(i[:, :-1], i[:, 1:], weights(cl, a.lam), dtype, **({"ends": ends} if ends else {}))
        short = model.short if ends else 0.0
        return l + a.short * short, ce, cl, short
    for T in loaders if a.ends else [phases[0][0]]:
        l, *_ = forward(*next(loaders[T]))
        l.backward()
    grads.flat.zero_()
    model.balance(0.0)
    clock = torch.zeros(1, dtype=torch.float64)
    if world > 1:
        dist.all_reduce(grads.flat)
        dist.barrier()
    if cuda:
        torch.cuda.synchronize()
    say(ev="compiled", s=time.time() - tc, loss0=l.item())
    t0 = time.time()
    spent_eval = 0.0
    step = toks = 0
    ph = 0
    last_log = (0.0, 0)
    next_eval = a.eval_every

    def evaluate(n, ctxs, tag):
        nonlocal spent_eval
        te = time.time()
        model.eval()
        if lora:
            lora.apply_()
        r = {}
        jobs = [k for k in sorted(ev, key=lambda k: (-k[1], k[0])) if k[1] in ctxs]
        for t, ctx in jobs[rank::world]:
            r[f"{t}@{ctx}"] = round(em_full(model, ev[(t, ctx)], n, dev), 3)
            if a.ends and ctx == 4096 and tag == "mid" and t in ("niah_multiquery", "chat_niah", "kv_hex", "vt"):
                got = evalpol.run(model, ev, [(ctx, 32, 8, (512, 1024))], dev, tasks=[t], stream_w=False, say=lambda *x, **k: None)
                r.update({f"{t}/{p}": v[0] for p, v in got[f"{t}@{ctx}"].items() if p.startswith("snapstream_r64")})
        if world > 1:
            parts = [None] * world
            dist.all_gather_object(parts, r)
            r = {k: v for p in parts for k, v in p.items()}
        r = dict(sorted(r.items()))
        if rank:
            return r
        vl = val_loss(model, a.data, dev, n=2 if a.tiny else 128 if tag == "final" else 32)
        if cuda:
            torch.cuda.synchronize()
        spent_eval += time.time() - te
        say(ev="eval", tag=tag, step=step, toks=toks, t=time.time() - t0, **vl, acc=json.dumps(r), took=time.time() - te)
        return r

    while True:
        clock[0] = time.time() - t0
        if world > 1:
            dist.broadcast(clock, 0)
        el = clock.item()
        p = el / max(a.seconds, 1e-9)
        if p >= 1:
            break
        while ph + 1 < len(phases) and p >= phases[ph][1]:
            ph += 1
            model._cs.clear()
            say(ev="phase", T=phases[ph][0], step=step, t=el)
        T, _, acc = phases[ph]
        lr = a.lr * min(1.0, (step + 1) / a.warm) * (1.0 if p < a.decay_from else max(0.015, (1 - p) / (1 - a.decay_from)))
        for m in range(acc):
            ids, cls = next(loaders[T])
            l, ce, cl, short = forward(ids, cls)
            (l / acc).backward()
            toks += cl.numel() * world
        if world > 1:
            dist.all_reduce(grads.flat, dist.ReduceOp.AVG if cuda else dist.ReduceOp.SUM)
            if not cuda:
                grads.flat.div_(world)
        load = model.balance(a.balance * lr / a.lr, dist.all_reduce if world > 1 else None)
        torch.nn.utils.clip_grad_norm_(clipped, 1.0)
        for g in ad.param_groups:
            g["lr"] = lr
        ad.step()
        if mu:
            mu.step(lr)
        grads.flat.zero_()
        step += 1
        if step % a.log_every == 0 or step == 10:
            cf = cl.reshape(-1)
            nat = ce[cf == 1].mean().item(); ans = ce[cf == 2].mean().item()
            comp = dict(comp=ce[cf == 4].mean().item(), short=short.item()) if a.ends else {}
            now = time.time() - t0 - spent_eval
            say(ev="train", step=step, T=T, t=time.time() - t0, mtok=toks / 1e6, nat=nat, ans=ans, **comp, lr=lr, **({} if load is None else {"load": load.item()}), tps=(toks - last_log[1]) / max(1e-9, now - last_log[0]))
            last_log = (now, toks)
        if ev and el > next_eval:
            next_eval += a.eval_every
            if world > 1:
                for x in model.parameters():
                    dist.broadcast(x.data, 0)
            evaluate(a.evaln, [x for x in (512, 1024, 2048, 4096, 8192) if x <= max(2 * T, 1024)], "mid")
            if not a.tiny and rank == 0:
                M.save_hf(model, a.data, f"{a.out}/hf_mid", shards=a.shards)
    if cuda:
        torch.cuda.synchronize()
    wall = time.time() - t0
    say(ev="done", step=step, mtok=toks / 1e6, wall=wall, tps=toks / (wall - spent_eval), maxmem=torch.cuda.max_memory_allocated() / 2**30 if cuda else 0.0)
    if rank == 0:
        if lora:
            lora.apply_()
            os.makedirs(f"{a.out}/adapter", exist_ok=True)
            lora.save(f"{a.out}/adapter", "../" + os.path.basename(a.init.rstrip("/")))
        M.save_hf(model, a.data, f"{a.out}/hf", shards=a.shards)
        open(f"{a.out}/SAVED", "w").close()
    if ev:
        evaluate(10**6 if a.evaln > 8 else a.evaln, (1024, 2048, 4096, 8192), "final")
    say(ev="saved")
    if world > 1:
        dist.barrier()
    log.close()
    os._exit(0)  # do not wait on the loaders


if __name__ == "__main__":
    main()
