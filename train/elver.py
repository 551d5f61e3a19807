"""Trains elver, a tiny Llama for answers of 2,000 tokens, in minutes of one processor core. Its three tasks are those
of `shoal lab suite long` (internal/eval/long.go):

  copy   a list of distinct numbers, once more                     the answer needs the whole prompt
  sort   the same numbers with a letter each, by number            the answer needs the whole prompt, in another order
  sums   running sums modulo 100, with ten addends in turn         the answer needs a table at the start of the prompt

Most steps are short. Position ids then jump, once within the prompt, before the answer and within the answer, so that the
model sees all distances of the long prompts. The last steps have the full length.
Usage: elver.py OUT --seconds N        -> OUT: config, tokenizer, safetensors; started again, it goes on"""
import argparse, json, math, os, random, time
import numpy as np
import torch
import torch.nn.functional as F
import model as M

SPECIALS = ["<|bos|>", "<|eos|>", "<|user|>", "<|assistant|>", "<|end|>", "<|system|>", "<|pad|>", "<|reserved|>"]
BOS, END, PAD = 0, 4, 6
MAXPOS, ANSWER = 4352, 2000


def tokenizer(path):
    """byte-level BPE: bytes, and every group of two or three digits is one token"""
    from tokenizers import Tokenizer, models, pre_tokenizers, decoders, processors, Regex, AddedToken
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [(str(a), str(b)) for a in range(10) for b in range(10)]
    threes = [(a + b, str(c)) for a, b in merges for c in range(10)]
    vocab = {t: i for i, t in enumerate(SPECIALS + alphabet + [a + b for a, b in merges + threes])}
    merges += threes + [(a[0], a[1] + c) for a, c in threes]   # of 984 the pair 84 comes first
    t = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIALS])
    split = r"\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+"
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(split), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.TemplateProcessing(single="<|bos|> $A", pair="<|bos|> $A <|bos|> $B", special_tokens=[("<|bos|>", 0)])
    t.save(path)
    return t


class Tasks:
    def __init__(self, tok, seed):
        self.r = random.Random(seed)
        def byte(c):
            (one,) = tok.encode(c, add_special_tokens=False).ids
            return one
        self.sp, self.nl, self.eq = byte(" "), byte("\n"), byte("=")
        self.letter = [byte(chr(97 + i)) for i in range(26)]
        self.digit = [byte(str(i)) for i in range(10)]
        self.pair = [byte("%02d" % i) for i in range(100)]
        self.triple = [byte("%03d" % i) for i in range(1000)]

    def copy(self, n):
        a = [t for v in self.r.sample(range(1000), n) for t in (self.sp, self.triple[v])]
        return [BOS, self.letter[2]] + a + [self.nl, self.eq], a + [END]

    def sort(self, n):
        v = [(x, self.r.randrange(26)) for x in self.r.sample(range(1000), n)]
        put = lambda v: [t for x, c in v for t in (self.sp, self.triple[x], self.letter[c])]
        return [BOS, self.letter[18]] + put(v) + [self.nl, self.eq], put(sorted(v)) + [END]

    def sums(self, n, noise):
        add, at, a = [self.r.randrange(10) for _ in range(10)], 0, []
        for i in range(n):
            at = (at + add[i % 10]) % 100
            a += [self.sp, self.letter[i % 10], self.pair[at]]
        p = [BOS, self.letter[19]] + [t for i, d in enumerate(add) for t in (self.sp, self.letter[i], self.digit[d])] + [self.nl]
        for v in self.r.sample(range(1000), noise):
            p += [self.sp, self.triple[v]]
        return p + [self.nl, self.eq], a

    def draw(self, kind, T):
        """a sample of about T tokens"""
        s = self.r.uniform(0.6, 1)
        if kind == "copy":
            return self.copy(max(2, min(1000, int(s * T / 4))))
        if kind == "sort":
            return self.sort(max(2, min(900, int(s * T / 6))))
        n = max(4, min(668, int(T * self.r.uniform(0.3, 0.7) / 3)))
        return self.sums(n, max(0, min(1000, int((s * T - 3 * n - 35) / 2))))

    def positions(self, p, a):
        """ids of positions with jumps, at most MAXPOS"""
        n, pos = p + a, np.arange(p + a)
        if self.r.random() < 0.25:
            return pos
        left = int((MAXPOS - 16 - n) * self.r.random())
        cuts = sorted(self.r.random() for _ in range(3))
        for part, at in zip((cuts[0], cuts[1] - cuts[0], cuts[2] - cuts[1]), (self.r.randrange(2, p), p - 2, self.r.randrange(p, n))):
            pos[at:] += int(part * left)
        return pos

    def batch(self, kinds, T, jump):
        rows = []
        for k in kinds:
            p, a = self.draw(k, T)
            rows.append((p + a, len(p), self.positions(len(p), len(a)) if jump else np.arange(len(p) + len(a))))
        n = max(len(r[0]) for r in rows)
        ids, tgt, w, pos = (np.zeros((len(rows), n - 1), t) for t in (np.int64, np.int64, np.float32, np.int64))
        for i, (x, p, ps) in enumerate(rows):
            m = len(x) - 1
            ids[i, :m], tgt[i, :m], w[i, p - 1:m], pos[i, :m] = x[:-1], x[1:], 1, ps[:-1]
        return [torch.from_numpy(t) for t in (ids, tgt, w, pos)]


def waves(lm, t):
    """numbers begin with a place on circles, so that their order and their sums are there to be learned"""
    with torch.no_grad():
        lm.emb.copy_(torch.randn_like(lm.emb) * 0.05)
        half = lm.c.D // 4
        slow = 2 ** -torch.linspace(1, 11, half)
        for ids, f in ((t.triple, slow), (t.pair, torch.arange(1, half + 1) / 100), (t.digit, torch.arange(1, half + 1) / 100)):
            a = 2 * math.pi * torch.arange(len(ids))[:, None] * f[None]
            lm.emb[torch.tensor(ids), :2 * half] = torch.cat([a.cos(), a.sin()], 1) * 0.07


def forward(lm, ids, tgt, w, pos):
    """mean loss of the answers, and which targets are first"""
    B, T = ids.shape
    lm._cs = {(B, T): lm.cossin(pos.reshape(-1))}
    x = lm.body(ids, lm.eager, torch.float32)
    rows = w.reshape(-1) > 0
    lg = lm.logits(x[rows])
    want = tgt.reshape(-1)[rows]
    return F.cross_entropy(lg, want), (lg.argmax(-1) == want)


@torch.no_grad()
def check(lm, tok, T, n):
    """share of right tokens and of answers without a fault, without jumps, each token after the right ones"""
    t, out = Tasks(tok, 12345), {}
    for k in ("copy", "sort", "sums"):
        share = exact = 0
        for _ in range(n):
            _, ok = forward(lm, *t.batch([k], T, False))
            share, exact = share + ok.float().mean().item() / n, exact + float(ok.all()) / n
        out[k] = "%.4f %.2f" % (share, exact)
    return out


STAGES = [(0.45, 160, 24), (0.65, 384, 10), (0.90, 1200, 2), (1.01, 4060, 1)]   # until this share of the time: tokens, samples a step


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("out"), ap.add_argument("--seconds", type=float, default=1200), ap.add_argument("--lr", type=float, default=4e-3)
    ap.add_argument("--layers", type=int, default=3), ap.add_argument("--seed", type=int, default=1)
    a = ap.parse_args()
    torch.set_num_threads(1), torch.manual_seed(a.seed)
    work = a.out + "/work"
    os.makedirs(work, exist_ok=True)
    tok = tokenizer(work + "/tokenizer.json")
    json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|bos|>", "eos_token": "<|end|>", "pad_token": "<|pad|>",
               "add_bos_token": True, "clean_up_tokenization_spaces": False, "model_max_length": MAXPOS}, open(work + "/tokenizer_config.json", "w"), indent=1)
    c = M.Cfg(V=tok.get_vocab_size(), D=128, L=a.layers, H=4, KV=2, HD=32, FF=256, THETA=500000.0, MAXPOS=MAXPOS)
    lm = M.LM(c)
    t = Tasks(tok, a.seed)
    waves(lm, t)
    mats = [p for p in lm.layers.parameters() if p.dim() == 2]
    rest = [p for p in lm.parameters() if p.dim() == 1] + [lm.emb]
    muon, adam = M.Muon(mats, wd=0.05), torch.optim.AdamW(rest, lr=0, betas=(0.9, 0.97), weight_decay=0.0)
    save, step, spent, rows, last = work + "/state.pt", 0, 0.0, 0, -1
    if os.path.exists(save):
        s = torch.load(save, weights_only=False)
        lm.load_state_dict(s["lm"]), adam.load_state_dict(s["adam"])
        muon.buf, step, spent, t.r, rows = s["muon"], s["step"], s["spent"], s["r"], s["rows"]
    def keep():
        torch.save({"lm": lm.state_dict(), "adam": adam.state_dict(), "muon": muon.buf, "step": step, "spent": spent, "r": t.r, "rows": rows}, save + ".new")
        os.replace(save + ".new", save)
        M.save_hf(lm, work, a.out)
    began, logged, ema = time.process_time(), 0.0, {}
    base = spent
    while spent < a.seconds:
        at = spent / a.seconds
        _, T, B = next(s for s in STAGES if at < s[0])
        kinds = [("copy", "sort", "sums")[(step + i) % 3] for i in range(B)]
        b = t.batch(kinds, T, T < 4000)
        lr = a.lr * min(1, (step + 1) / 60) * (1 if at < 0.35 else max(0.03, (1 - at) / 0.65))
        loss, ok = forward(lm, *b)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(rest, 1.0)
        for g in adam.param_groups:
            g["lr"] = lr
        muon.step(lr), adam.step()
        lm.zero_grad(set_to_none=True)
        step, rows = step + 1, rows + b[0].numel()
        spent = base + time.process_time() - began
        k = kinds[0] if B == 1 else "all"
        ema[k] = 0.95 * ema.get(k, loss.item()) + 0.05 * loss.item()
        if spent - logged > 20:
            logged = spent
            print(step, "%.0f s" % spent, T, "%d k tokens" % (rows // 1000), {k: round(v, 4) for k, v in ema.items()}, "lr %.5f" % lr, check(lm, tok, min(T, 1200), 4), flush=True)
            if T != last:
                last, ema = T, {}
            keep()
    keep()
    print("full", check(lm, tok, 4060, 8), flush=True)


if __name__ == "__main__":
    main()
