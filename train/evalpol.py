"""Cache policies on a trained model. Usage: evalpol.py DATA HF_DIR EVAL OUT.json ctx:n:batch:budget+budget[,..] [dev];
EVAL: a pickle of evalgen.py, or prompts of `shoal lab ruler --write-prompts` (.json.gz). SHARD=k/n in the environment: a part of the tasks,
POLICIES=a+b: only these; those with a "/" or ":" are policies in the words of `shoal lab ruler`, as in quest/768 or
squeezed:clusters=0.02,sparsity=0.98 (form), whatever budgets are named. What OUT.json has already is not run again.
The prompt is prefilled with full attention (stream_w: with the sliding window itself), the prompt's cache is
cut to the budget, then the answer is decoded (teacher-forced greedy: exact match is the same as free-running greedy).
Positions are the original ones. f32 arithmetic on bf16-rounded weights."""
import sys, os, json, pickle, time
import numpy as np
import torch
import torch.nn.functional as F
import model as M

SINK, W = 4, 64
QUEST_SKIP = int(os.environ.get("QUEST_SKIP", "0"))    # layers that Quest leaves dense


@torch.no_grad()
def prefill(m, ids, want, window=0, chosen=()):
    """keys [b, KV, T, kd] and values of each layer, votes by name [b, KV, T] (want: none, those of the newest queries, or "all"), last hidden state.
    chosen: policies in the words of `shoal`, of which votes have what each keeps [b, KV, T] (Choice)"""
    b, T = ids.shape
    cos, sin = m.cs(b, T, ids.device)
    x = F.embedding(ids.reshape(-1), m.emb)
    mask = None
    if window:
        i = torch.arange(T, device=ids.device)
        mask = (i[None] <= i[:, None]) & ((i[None] > i[:, None] - window) | (i[None] < SINK))
    Ks, Vs, votes = [], [], []
    for l in m.layers:
        q, k, v = m.cached(l, x, cos, sin)
        x = m.finish(l, x, m.prompt(l, x, b, T, cos, sin, mask))
        k = k.view(b, T, m.kv, -1).transpose(1, 2).contiguous()
        v = v.reshape(b, T, m.kv, -1).transpose(1, 2).contiguous()
        Ks.append(k); Vs.append(v)
        vt = {}
        qh = q.view(b, T, m.kv, -1, m.kd).permute(0, 2, 3, 1, 4)
        for text in chosen:
            vt[text] = Choice(text, T).keep(m, len(Ks) - 1, qh, k, v)
        if want:
            def probs(lo, hi):
                s = torch.matmul(qh[:, :, :, lo:hi], k.unsqueeze(2).transpose(-1, -2)) * m.scale
                i = torch.arange(lo, hi, device=ids.device)[:, None]
                s = s.masked_fill(torch.arange(T, device=ids.device)[None] > i, float("-inf"))
                return torch.softmax(s, -1)
            p = probs(T - W, T)                                    # [b,KV,G,W,T]
            for w in (64, 32):
                r = p[:, :, :, W - w:].mean(3)                     # [b,KV,G,T]
                pooled = F.avg_pool1d(r.reshape(-1, 1, T), 7, 1, 3).view_as(r)
                vt[f"snap{w}"] = pooled.sum(2)
                vt[f"snap{w}_nopool"] = r.sum(2)
                if w == W:
                    vt["snap64_p15"] = F.avg_pool1d(r.reshape(-1, 1, T), 15, 1, 7).view_as(r).sum(2)
            vt["sage"] = p[:, :, :, -1].sum(2)
            if want == "all":
                vt["h2o"] = torch.zeros(b, m.kv, T, device=ids.device)
                for lo in range(0, T, 256):
                    vt["h2o"] += probs(lo, min(T, lo + 256)).sum((2, 3))
            vt["random"] = torch.rand(b, m.kv, T, device=ids.device)
        votes.append(vt)
    xl = x.view(b, T, -1)[:, -1]
    return Ks, Vs, votes, xl


def window_votes(m, q, k, obs, pool, of, sink, recent):
    """equations 1 to 3 of SnapStream (arXiv 2511.03092): votes [b, KV, T] of the last obs queries q [b, KV, G, T, kd], pooled. of: all
    tokens of the prompt vote; the prefix, as in listing 6 and SnapKV's listing 1; or the candidates alone, as in equation 3"""
    T = k.shape[2]
    obs = min(obs, T)
    t, i = torch.arange(T, device=k.device), torch.arange(T - obs, T, device=k.device)[:, None]
    s = torch.matmul(q[:, :, :, T - obs:], k.unsqueeze(2).transpose(-1, -2)) * m.scale
    hidden = t[None] > i
    if of == "candidates" and T - recent > sink:
        hidden = hidden | (t[None] < sink) | (t[None] >= T - recent)
    votes = torch.softmax(s.masked_fill(hidden, float("-inf")), -1).nan_to_num(0).sum((2, 3))
    if of == "prefix":
        votes = votes[..., :T - obs]
    votes = F.avg_pool1d(votes, pool, 1, pool // 2)
    return F.pad(votes, (0, T - votes.shape[-1]))


def pyramid(topk, beta, candidates, layer, layers):
    """PyramidKV (arXiv 2406.02069): the budget of a layer, a straight line from the lowest to topk/beta"""
    if candidates <= topk or layers < 2:
        return topk
    most = min(2 * topk - topk // beta, candidates)
    return most - (2 * most - 2 * topk) * layer // (layers - 1)


def head_budgets(votes, topk, floor, block=64):
    """Ada-KV (arXiv 2407.11550, algorithm 1): tokens that each head keeps [b, KV], of votes [b, KV, n]. The tokens with the most votes of
    a layer stay, in blocks beyond those that every head keeps; then budgets are mixed with `floor` thousandths of the mean"""
    b, kv, n = votes.shape
    mean, rest = topk // block, topk % block
    if n <= topk:
        return torch.full((b, kv), n, device=votes.device)
    steps = min((n - rest) // block, kv * mean)
    curve = votes.sort(-1, descending=True).values[..., rest:rest + steps * block].unflatten(-1, (steps, block)).sum(-1)
    best = torch.sort(curve.flatten(1), dim=-1, descending=True, stable=True).indices[:, :kv * mean]
    own = F.one_hot(best // max(1, steps), kv).sum(1)
    mixed = own * (1000 - floor) + mean * floor
    up = torch.sort(mixed % 1000, dim=-1, descending=True, stable=True).indices
    more = (torch.arange(kv, device=votes.device) < kv * mean - (mixed // 1000).sum(-1, keepdim=True)).long()
    return rest + block * (mixed // 1000 + torch.zeros_like(mixed).scatter_(-1, up, more))


def lag_scores(k, v, sink, lag):
    """LagKV (arXiv 2504.04704), per partition as its authors rank it: scores [b, KV, T]; earlier of equal tokens first"""
    T = k.shape[2]
    whole = (T - sink) // lag
    if whole < 2:
        return torch.arange(T, device=k.device, dtype=k.dtype).expand(*k.shape[:2], T)
    def deviation(x):
        x = x[:, :, sink:sink + whole * lag].unflatten(2, (whole, lag))
        ref, x = x[:, :, 1:], x[:, :, :-1]
        least, most = ref.amin(3, keepdim=True), ref.amax(3, keepdim=True)
        return ((x - least) / (most - least)).std(-1).softmax(-1)
    s = (deviation(k) + deviation(v)) / 2
    order = torch.sort(s, dim=-1, descending=True, stable=True).indices
    rank = torch.empty_like(s).scatter_(-1, order, torch.arange(lag - 1, -1, -1, device=k.device, dtype=s.dtype).expand_as(s)).flatten(2)
    return torch.cat([rank.new_full((*rank.shape[:2], sink), lag), rank, rank.new_full((*rank.shape[:2], T - sink - rank.shape[2]), lag)], 2)


CHOICES = {"snapkv": dict(topk=960, obs=64, pool=7, votes="prompt"), "snapstream": dict(sink=4, recent=1020, topk=1024, obs=64, pool=7, votes="prompt"),
           "pyramidkv": dict(topk=960, obs=64, pool=7, beta=20), "adakv": dict(topk=960, obs=64, pool=7, floor=0.2), "lagkv": dict(sink=4, lag=128, topk=892),
           "resnap": dict(topk=704, every=256, obs=64, pool=7, votes="prefix")}


class Choice:
    """a policy that chooses tokens of a prompt of T once, in the words of `shoal`: snapkv:topk=5%,votes=prefix,layers=pyramid"""
    def __init__(self, text, T):
        self.name, p = numbers(text)
        self.p = {"layers": "equal", "beta": 20, "heads": "equal", "floor": 0.2, **CHOICES[self.name], **p}
        for key, x in self.p.items():
            if str(x).endswith("%"):
                self.p[key] = round(1000 * float(x[:-1])) * T // 100000
            elif str(x).isdigit():
                self.p[key] = int(x)
        if self.name == "pyramidkv":
            self.p.update(votes="prefix", layers="pyramid")
        if self.name == "adakv":
            self.p.update(votes="prefix", heads="ada")
        self.T, self.sink = T, self.p.get("sink", 0)
        self.recent = self.p.get("recent") or self.p.get("lag") or self.p["obs"]
        self.ring, self.after = self.recent if self.name == "snapstream" else 0, self.p.get("ring", 0)
        self.recall, self.page = self.p.get("recall", 0), self.p.get("page", 16)
        if self.recall:    # the chosen tokens and the sink fill whole pages
            self.first = self.sink + self.p["topk"]
            self.first += -self.first % self.page
            self.p["topk"] = self.first - self.sink

    def keep(self, m, layer, q, k, v):
        """what a layer keeps of the prompt [b, KV, T], without the ring"""
        p, T, lo, hi = self.p, self.T, min(self.sink, self.T), max(0, self.T - self.recent)
        if self.name == "resnap":    # marks instead, see decode_resnap
            assert T >= p["topk"] + p["every"] + p["obs"], "the prompt must fill the cache"
            return F.pad(marks(window_votes(m, q, k, p["obs"], p["pool"], "prefix", 0, 0)[..., :hi], p["topk"]), (0, T - hi))
        keep = torch.zeros(*k.shape[:3], dtype=torch.bool, device=k.device)
        keep[..., :lo] = True
        if not self.ring:
            keep[..., hi:] = True
        n = pyramid(p["topk"], p["beta"], max(0, hi - self.sink), layer, m.c.L) if p["layers"] == "pyramid" else p["topk"]
        n = min(n, hi - lo)
        if n > 0:
            s = lag_scores(k, v, self.sink, p["lag"]) if self.name == "lagkv" else window_votes(m, q, k, p["obs"], p["pool"], p["votes"], self.sink, self.recent)
            best = torch.sort(s[..., lo:hi], dim=-1, descending=True, stable=True).indices
            of = head_budgets(s[..., lo:hi], n, round(1000 * float(p["floor"]))) if p["heads"] == "ada" else torch.full(s.shape[:2], n, device=k.device)
            keep.scatter_(-1, best + lo, torch.arange(hi - lo, device=k.device) < of[..., None])
        return keep


def marks(votes, topk):
    """0 for the topk with the most votes [b, KV, n], the others -1, -2 and so on from most votes to least"""
    order = torch.sort(votes, dim=-1, descending=True, stable=True).indices
    mark = (topk - 1.0 - torch.arange(votes.shape[-1], device=votes.device)).clamp_max(0)
    return torch.zeros_like(votes).scatter_(-1, order, mark.to(votes.dtype).expand_as(votes))


def keep_mask(vote, T, sink, ring, K):
    """keep[b,KV,T]: sinks and the K best of the middle; the ring is handled by position"""
    b, kv, _ = vote.shape
    keep = torch.zeros(b, kv, T, dtype=torch.bool, device=vote.device)
    keep[..., :sink] = True
    if K > 0:
        s = vote.clone()
        s[..., :sink] = -1
        if ring:
            s[..., T - ring:] = -1
        idx = s.topk(min(K, T - sink - ring), -1).indices
        keep.scatter_(-1, idx, True)
    return keep


def policies(budget):
    h = budget // 2
    P = {
        "stream": dict(vote="random", sink=SINK, ring=budget - SINK, K=0),
        "random": dict(vote="random", sink=SINK, ring=64, K=budget - SINK - 64),
        "h2o": dict(vote="h2o", sink=0, ring=h, K=h),
        "sage": dict(vote="sage", sink=SINK, ring=64, K=budget - SINK - 64),
        "snapkv": dict(vote="snap64", sink=0, ring=0, fixed=64, K=budget - 64),
        "snapkv_nopool": dict(vote="snap64_nopool", sink=0, ring=0, fixed=64, K=budget - 64),
        "snapstream_r64": dict(vote="snap64", sink=SINK, ring=64, K=budget - SINK - 64),
        "snapstream_w32_r64": dict(vote="snap32", sink=SINK, ring=64, K=budget - SINK - 64),
        "snapstream_p15_r64": dict(vote="snap64_p15", sink=SINK, ring=64, K=budget - SINK - 64),
        "snapstream_half": dict(vote="snap64", sink=SINK, ring=h, K=budget - SINK - h),
    }
    return P


def kept(votes, T, q):
    """keep_mask of each layer for an entry of policies()"""
    keeps = []
    for vt in votes:
        if q.get("fixed"):
            k = keep_mask(vt[q["vote"]], T, 0, q["fixed"], q["K"])
            k[..., T - q["fixed"]:] = True
        else:
            k = keep_mask(vt[q["vote"]], T, q["sink"], q["ring"], q["K"])
        keeps.append(k)
    return keeps


@torch.no_grad()
def decode(m, Ks, Vs, keeps, ring, xl, ans, after=0):
    """predictions [b, A] for the answer tokens; keeps None = everything. after: only so many of the newest answer tokens stay"""
    b, A = ans.shape
    T = Ks[0].shape[2]
    dev = ans.device
    first = m.logits(xl).argmax(-1)
    n = A - 1
    ids = ans[:, :-1].clamp_min(0)
    cos, sin = m.cossin((torch.arange(n, device=dev) + T).repeat(b))
    x = F.embedding(ids.reshape(-1), m.emb)
    t = torch.arange(T, device=dev)
    j = torch.arange(n, device=dev)
    inring = (t[None] > T + j[:, None] - ring) if ring else torch.zeros(n, T, dtype=torch.bool, device=dev)
    own = j[None] <= j[:, None]
    if ring:    # generated tokens leave the ring too
        own = own & (j[None] > j[:, None] - ring)
    if after:
        own = own & (j[None] > j[:, None] - after)
    for li, l in enumerate(m.layers):
        q, k, v = m.cached(l, x, cos, sin)
        q = q.view(b, n, m.kv, -1, m.kd).permute(0, 2, 3, 1, 4)
        k = k.view(b, n, m.kv, m.kd).transpose(1, 2); v = v.reshape(b, n, m.kv, m.vd).transpose(1, 2)
        s1 = torch.matmul(q, Ks[li].unsqueeze(2).transpose(-1, -2)) * m.scale           # [b,KV,G,n,T]
        if keeps is not None:
            al = keeps[li][:, :, None, None, :] | inring[None, None, None]
            s1 = s1.masked_fill(~al, float("-inf"))
        s2 = torch.matmul(q, k.unsqueeze(2).transpose(-1, -2)) * m.scale
        s2 = s2.masked_fill(~own, float("-inf"))
        p = torch.softmax(torch.cat([s1, s2], -1), -1)
        o = torch.matmul(p[..., :T], Vs[li].unsqueeze(2)) + torch.matmul(p[..., T:], v.unsqueeze(2))
        o = o.permute(0, 3, 1, 2, 4).reshape(b * n, -1, m.vd)
        x = m.finish(l, x, m.uncached(l, o))
    pred = m.logits(x).argmax(-1).view(b, n)
    return torch.cat([first[:, None], pred], 1)


def cut(vote, T, recent, size):
    """the tokens [b, KV, size] that a scored policy keeps of a prompt: the newest, and the best of the others"""
    best = vote[..., :T - recent].topk(size - recent, -1).indices
    new = torch.arange(T - recent, T, device=vote.device).expand(*vote.shape[:2], recent)
    return torch.cat([best, new], -1).sort(-1).values


@torch.no_grad()
def decode_step(m, Ks, Vs, votes, recent, size, running, xl, ans):
    """decode, token by token: ahead of each new token the one outside the newest `recent` (the new one counted) with the
    least score goes, and the new row is appended (gather and append, as published; the cache never has more than `size`
    rows). running: scores are sums of attention (H2O), else that of the newest query (TOVA)."""
    b, A = ans.shape
    T, dev = Ks[0].shape[2], ans.device
    rows = lambda x, i: x.gather(2, i.unsqueeze(-1).expand(-1, -1, -1, x.shape[-1]))
    at = [cut(v, T, recent, size) for v in votes]
    K = [rows(k, i) for k, i in zip(Ks, at)]
    V = [rows(v, i) for v, i in zip(Vs, at)]
    S = [v.gather(2, i) for v, i in zip(votes, at)]
    out = [m.logits(xl).argmax(-1)]
    for j in range(A - 1):
        cos, sin = m.cossin(torch.full((b,), T + j, device=dev))
        x = F.embedding(ans[:, j].clamp_min(0), m.emb)
        for li, l in enumerate(m.layers):
            q, k, v = m.cached(l, x, cos, sin)
            q = q.view(b, m.kv, -1, m.kd)
            old = at[li] <= T + j - recent
            go = S[li].masked_fill(~old, float("inf")).argmin(-1, keepdim=True)
            stay = torch.ones_like(old).scatter_(-1, go, False)
            left = lambda x: x[stay].view(b, m.kv, size - 1, *x.shape[3:])
            K[li] = torch.cat([left(K[li]), k.view(b, m.kv, 1, m.kd)], 2)
            V[li] = torch.cat([left(V[li]), v.reshape(b, m.kv, 1, m.vd)], 2)
            at[li] = torch.cat([left(at[li]), torch.full((b, m.kv, 1), T + j, device=dev)], 2)
            p = torch.softmax(torch.matmul(q, K[li].transpose(-1, -2)) * m.scale, -1)            # [b,KV,G,size]
            got = p.sum(2)
            S[li] = torch.cat([left(S[li]), torch.zeros(b, m.kv, 1, device=dev)], 2) + got if running else got
            o = torch.matmul(p, V[li]).reshape(b, -1, m.vd)
            x = m.finish(l, x, m.uncached(l, o))
        out.append(m.logits(x).argmax(-1))
    return torch.stack(out, 1)


def bounds(k, page):
    """least and greatest of the keys k [b, KV, n, kd] of each page, the last one perhaps short: [b, KV, pages, kd] twice"""
    short = -k.shape[2] % page
    fold = lambda fill: F.pad(k, (0, 0, 0, short), value=fill).unflatten(2, (-1, page))
    return fold(float("inf")).amin(3), fold(float("-inf")).amax(3)


def with_ring(see, n, ring):
    """see [b, KV, m] of the first m of n tokens: also the newest `ring` of the others. A query that selects from a prompt reads the whole ring"""
    m = see.shape[2]
    return torch.cat([see, (torch.arange(m, n, device=see.device) >= n - ring).expand(*see.shape[:2], n - m)], 2)


@torch.no_grad()
def decode_quest(m, Ks, Vs, page, budget, skip, ring, xl, ans):
    """Quest (arXiv 2406.10774), token by token: nothing is evicted, and each KV head reads budget/page pages: the first,
    the newest, and those whose bound sum_d max(q_d min_d, q_d max_d), the largest over the group's query heads, is
    greatest (the earlier of equals). The first `skip` layers read everything. With a ring, pages are those of the prompt (with_ring)."""
    b, A = ans.shape
    T, dev = Ks[0].shape[2], ans.device
    K, V = list(Ks), list(Vs)
    least, most = map(list, zip(*(bounds(k[:, :, :T - T % page], page) for k in K)))    # of whole pages
    out = [m.logits(xl).argmax(-1)]
    for j in range(A - 1):
        n = T + j + 1
        of = T if ring else n
        cos, sin = m.cossin(torch.full((b,), T + j, device=dev))
        x = F.embedding(ans[:, j].clamp_min(0), m.emb)
        for li, l in enumerate(m.layers):
            q, k, v = m.cached(l, x, cos, sin)
            q = q.view(b, m.kv, -1, m.kd)
            K[li] = torch.cat([K[li], k.view(b, m.kv, 1, m.kd)], 2)
            V[li] = torch.cat([V[li], v.reshape(b, m.kv, 1, m.vd)], 2)
            s = torch.matmul(q, K[li].transpose(-1, -2)) * m.scale                         # [b,KV,G,n]
            see = torch.ones(b, m.kv, of, dtype=torch.bool, device=dev)
            whole = least[li].shape[2] * page
            lo, hi = bounds(K[li][:, :, whole:of], page)
            lo, hi = torch.cat([least[li], lo], 2), torch.cat([most[li], hi], 2)
            if lo.shape[2] * page == of:
                least[li], most[li] = lo, hi
            pages, take = lo.shape[2], max(2, budget // page)
            if li >= skip and pages > take:
                # sum_d max(q_d lo_d, q_d hi_d) = relu(q) . hi - relu(-q) . lo
                bound = (torch.matmul(q.relu(), hi.transpose(-1, -2)) - torch.matmul((-q).relu(), lo.transpose(-1, -2))).amax(2)
                bound[..., 0] = bound[..., -1] = float("inf")
                best = torch.sort(bound, stable=True, dim=-1, descending=True).indices[..., :take]
                chosen = torch.zeros_like(bound, dtype=torch.bool).scatter_(-1, best, True)
                see = chosen.repeat_interleave(page, -1)[..., :of]
            s = s.masked_fill(~with_ring(see, n, ring)[:, :, None], float("-inf"))
            o = torch.matmul(torch.softmax(s, -1), V[li]).reshape(b, -1, m.vd)
            x = m.finish(l, x, m.uncached(l, o))
        out.append(m.logits(x).argmax(-1))
    return torch.stack(out, 1)


@torch.no_grad()
def decode_recall(m, Ks, Vs, keeps, first, recent, recall, page, xl, ans):
    """SnapStream with recall, one token per step. Slots of the prompt have this order: `first` kept tokens (sink and chosen), evicted
    tokens, the newest `recent` tokens. A KV head reads the pages of the kept and of the newest tokens, and the pages of the others with
    the highest bounds (decode_quest), so that the number of pages is constant. Each step computes the bounds from the keys of a page"""
    b, A = ans.shape
    T, dev = Ks[0].shape[2], ans.device
    part = [torch.where(k, 0, 1) for k in keeps]
    for x in part:
        x[..., max(0, T - recent):] = 2
    order = [torch.sort(x, dim=-1, stable=True).indices if T - recent > first else torch.arange(T, device=dev).expand_as(x) for x in part]
    rows = lambda x, i: x.gather(2, i.unsqueeze(-1).expand(-1, -1, -1, x.shape[-1]))
    K, V = [rows(k, i) for k, i in zip(Ks, order)], [rows(v, i) for v, i in zip(Vs, order)]
    always = -(-first // page)
    take = always - (-recall // page) + (recent + page - 2) // page + 1
    out = [m.logits(xl).argmax(-1)]
    for j in range(A - 1):
        n = T + j + 1
        cos, sin = m.cossin(torch.full((b,), T + j, device=dev))
        x = F.embedding(ans[:, j].clamp_min(0), m.emb)
        for li, l in enumerate(m.layers):
            q, k, v = m.cached(l, x, cos, sin)
            q = q.view(b, m.kv, -1, m.kd)
            K[li] = torch.cat([K[li], k.view(b, m.kv, 1, m.kd)], 2)
            V[li] = torch.cat([V[li], v.reshape(b, m.kv, 1, m.vd)], 2)
            s = torch.matmul(q, K[li].transpose(-1, -2)) * m.scale
            lo, hi = bounds(K[li], page)
            if lo.shape[2] > take:
                bound = (torch.matmul(q.relu(), hi.transpose(-1, -2)) - torch.matmul((-q).relu(), lo.transpose(-1, -2))).amax(2)
                bound[..., :always] = bound[..., (n - recent) // page:] = float("inf")
                best = torch.sort(bound, stable=True, dim=-1, descending=True).indices[..., :take]
                chosen = torch.zeros_like(bound, dtype=torch.bool).scatter_(-1, best, True)
                s = s.masked_fill(~chosen.repeat_interleave(page, -1)[:, :, None, :n], float("-inf"))
            o = torch.matmul(torch.softmax(s, -1), V[li]).reshape(b, -1, m.vd)
            x = m.finish(l, x, m.uncached(l, o))
        out.append(m.logits(x).argmax(-1))
    return torch.stack(out, 1)


@torch.no_grad()
def decode_resnap(m, Ks, Vs, marked, topk, every, obs, pool, xl, ans):
    """SnapKV again after `every` tokens, token by token: of the tokens but the newest obs, the topk with the most votes
    stay (attention of the obs queries before, pooled over neighbours in the cache). The others go one by one, the lowest
    mark first, ahead of each new token. marked: those of the prompt [b, KV, T] of each layer (Choice)"""
    b, A = ans.shape
    T, dev, size = Ks[0].shape[2], ans.device, topk + every + obs
    K, V = list(Ks), list(Vs)
    S = [x.clone() for x in marked]                        # marks below 0, else votes
    live = [x >= -every for x in S]
    out = [m.logits(xl).argmax(-1)]
    for j in range(A - 1):
        cos, sin = m.cossin(torch.full((b,), T + j, device=dev))
        x = F.embedding(ans[:, j].clamp_min(0), m.emb)
        for li, l in enumerate(m.layers):
            q, k, v = m.cached(l, x, cos, sin)
            q = q.view(b, m.kv, -1, m.kd)
            K[li] = torch.cat([K[li], k.view(b, m.kv, 1, m.kd)], 2)
            V[li] = torch.cat([V[li], v.reshape(b, m.kv, 1, m.vd)], 2)
            go = S[li].masked_fill(~live[li], float("inf")).argmin(-1, keepdim=True)
            live[li] = F.pad(live[li].scatter(-1, go, False), (0, 1), value=True)
            S[li] = F.pad(S[li], (0, 1))
            s = torch.matmul(q, K[li].transpose(-1, -2)) * m.scale
            p = torch.softmax(s.masked_fill(~live[li][:, :, None], float("-inf")), -1)
            left = int((live[li] & (S[li] < 0)).sum(-1).max())
            if left < obs:
                S[li] = torch.where(live[li] & (S[li] >= 0), S[li] + p.sum(2), S[li])
            if left == 0:
                at = live[li].nonzero()[:, 2].view(b, m.kv, size)[..., :size - obs]
                votes = F.avg_pool1d(S[li].gather(-1, at), pool, 1, pool // 2)
                S[li] = torch.zeros_like(S[li]).scatter_(-1, at, marks(votes, topk))
            x = m.finish(l, x, m.uncached(l, torch.matmul(p, V[li]).reshape(b, -1, m.vd)))
        out.append(m.logits(x).argmax(-1))
    return torch.stack(out, 1)


def components(k, calib, width, centred):
    """the leading directions [b, KV, kd, width] of the first keys of k [b, KV, n, kd], or of their differences from the mean"""
    x = k[:, :, :calib].double()
    if centred:
        x = x - x.mean(2, keepdim=True)
    return torch.linalg.eigh(x.transpose(-1, -2) @ x)[1][..., -width:].float()


@torch.no_grad()
def decode_components(m, Ks, Vs, name, dims, calib, limit, alpha, ring, xl, ans):
    """Loki (arXiv 2406.02542) and InfiniGen (arXiv 2406.19707), token by token: nothing is evicted, and each KV head reads by
    scores of leading components of keys and queries, the largest over its query heads. loki: the `limit` tokens with the
    largest shares of the softmax. infinigen: those within alpha of the largest score, at most `limit` thousandths of all and the newest.
    With a ring, these are the tokens of the prompt (with_ring)."""
    b, A = ans.shape
    T, dev = Ks[0].shape[2], ans.device
    width = min(m.kd, -(-m.kd * dims // 8000) * 8)
    assert T >= calib, "the prompt must have the keys of the basis"
    K, V = list(Ks), list(Vs)
    B = [components(k, calib, width, name == "loki") for k in K]
    low = [k @ x for k, x in zip(K, B)]
    out = [m.logits(xl).argmax(-1)]
    for j in range(A - 1):
        n = T + j + 1
        of = T if ring else n
        cos, sin = m.cossin(torch.full((b,), T + j, device=dev))
        x = F.embedding(ans[:, j].clamp_min(0), m.emb)
        for li, l in enumerate(m.layers):
            q, k, v = m.cached(l, x, cos, sin)
            q, k = q.view(b, m.kv, -1, m.kd), k.view(b, m.kv, 1, m.kd)
            K[li], low[li] = torch.cat([K[li], k], 2), torch.cat([low[li], k @ B[li]], 2)[:, :, :of]
            V[li] = torch.cat([V[li], v.reshape(b, m.kv, 1, m.vd)], 2)
            near = torch.matmul(q @ B[li], low[li].transpose(-1, -2)) * m.scale              # [b,KV,G,of]
            if name == "loki":
                near, take = torch.log_softmax(near, -1).amax(2), limit
            else:
                near, take = (near - near.amax(-1, keepdim=True)).amax(2), 1 + of * limit // 1000
                near = near.masked_fill(~(near > -alpha), float("-inf"))
            s = torch.matmul(q, K[li].transpose(-1, -2)) * m.scale
            see = torch.ones_like(near, dtype=torch.bool)
            if take < of:
                near[..., -1] = float("inf")
                best = torch.sort(near, stable=True, dim=-1, descending=True).indices[..., :take]
                see = torch.zeros_like(see).scatter_(-1, best, True) & (near > float("-inf"))
            s = s.masked_fill(~with_ring(see, n, ring)[:, :, None], float("-inf"))
            x = m.finish(l, x, m.uncached(l, torch.matmul(torch.softmax(s, -1), V[li]).reshape(b, -1, m.vd)))
        out.append(m.logits(x).argmax(-1))
    return torch.stack(out, 1)


# name: chunk, outliers, local chunks, rank of the keys (0: exact); the budget is all that is read, as `shoal lab` has it
SHADOW = {"shadowkv": (8, 48, 4, 0), "shadowkv_o8": (8, 8, 4, 0), "shadowkv_c4": (4, 16, 8, 0), "shadowkv_r128": (8, 48, 4, 128)}


def landmarks(k, chunk):
    """means of whole chunks of the keys k [b, KV, n, kd], and the lowest cosine of a key to its mean"""
    c = k[:, :, :k.shape[2] // chunk * chunk].unflatten(2, (-1, chunk))
    mean = c.mean(3)
    return mean, F.cosine_similarity(mean.unsqueeze(3), c, dim=-1).amin(3)


def lowrank(m, k, rank):
    """the keys k [b, KV, T, hd] of a prompt from `rank` singular vectors of those of all KV heads before RoPE, side by side"""
    b, kv, T, hd = k.shape
    cos, sin = m.cossin(torch.arange(T, device=k.device))
    turn = lambda x, s: torch.cat([x[..., :hd // 2] * cos - x[..., hd // 2:] * s, x[..., hd // 2:] * cos + x[..., :hd // 2] * s], -1)
    x = turn(k, -sin).transpose(1, 2).reshape(b, T, kv * hd)
    v = torch.linalg.eigh(x.double().transpose(1, 2) @ x.double())[1][..., -rank:].float()
    return turn(((x @ v) @ v.transpose(1, 2)).view(b, T, kv, hd).transpose(1, 2), sin)


@torch.no_grad()
def decode_shadow(m, Ks, Vs, chunk, take, outliers, local, rank, ring, xl, ans):
    """ShadowKV (arXiv 2410.21465), token by token. Of whole chunks but the last `local` those `outliers` with the lowest
    cosine are always read; of the others each KV head reads the best by softmax over landmarks of every query head, the
    largest of its group (the earlier of equals), `take` of them. Chunks of generated tokens count as those of the prompt, but with a
    ring chunks are those of the prompt (with_ring). rank: chosen chunks of the prompt are read with keys of that rank."""
    b, A = ans.shape
    T, dev = Ks[0].shape[2], ans.device
    K, V = list(Ks), list(Vs)
    mean, worst = map(list, zip(*(landmarks(k, chunk) for k in K)))
    low = [lowrank(m, k, rank) for k in K] if rank else None
    out = [m.logits(xl).argmax(-1)]
    for j in range(A - 1):
        n = T + j + 1
        of = T if ring else n
        cos, sin = m.cossin(torch.full((b,), T + j, device=dev))
        x = F.embedding(ans[:, j].clamp_min(0), m.emb)
        for li, l in enumerate(m.layers):
            q, k, v = m.cached(l, x, cos, sin)
            q = q.view(b, m.kv, -1, m.kd)
            K[li] = torch.cat([K[li], k.view(b, m.kv, 1, m.kd)], 2)
            V[li] = torch.cat([V[li], v.reshape(b, m.kv, 1, m.vd)], 2)
            if n % chunk == 0 and not ring:
                one, two = landmarks(K[li][:, :, n - chunk:], chunk)
                mean[li], worst[li] = torch.cat([mean[li], one], 2), torch.cat([worst[li], two], 2)
            s = torch.matmul(q, K[li].transpose(-1, -2)) * m.scale                         # [b,KV,G,n]
            see = torch.ones(b, m.kv, of, dtype=torch.bool, device=dev)
            marked = of // chunk - local
            if marked > take + outliers:
                bit = lambda at: torch.zeros(b, m.kv, marked, dtype=torch.bool, device=dev).scatter_(-1, at, True)
                fixed = bit(torch.sort(worst[li][:, :, :marked], stable=True, dim=-1).indices[..., :outliers])
                p = torch.matmul(q, mean[li][:, :, :marked].transpose(-1, -2)) * m.scale
                p = torch.log_softmax(p.masked_fill(fixed[:, :, None], float("-inf")), -1).amax(2)
                best = bit(torch.sort(p, stable=True, dim=-1, descending=True).indices[..., :take])
                if rank:
                    t = torch.matmul(q, low[li].transpose(-1, -2)) * m.scale
                    at = best.repeat_interleave(chunk, -1)[:, :, None, :T]
                    s[..., :at.shape[-1]] = torch.where(at, t[..., :at.shape[-1]], s[..., :at.shape[-1]])
                see = F.pad((fixed | best).repeat_interleave(chunk, -1), (0, of - marked * chunk), value=True)
            s = s.masked_fill(~with_ring(see, n, ring)[:, :, None], float("-inf"))
            o = torch.matmul(torch.softmax(s, -1), V[li]).reshape(b, -1, m.vd)
            x = m.finish(l, x, m.uncached(l, o))
        out.append(m.logits(x).argmax(-1))
    return torch.stack(out, 1)


ROUNDS, SEGMENT = 8, 8192


def kmeans(x, c):
    """labels [KV, n] of the vectors x [KV, n, kd] in c clusters by cosine, from every n/c-th of them"""
    x = F.normalize(x, dim=-1)
    n = x.shape[1]
    centre = x[:, torch.arange(c, device=x.device) * n // c]
    for r in range(ROUNDS + 1):
        lab = torch.matmul(x, centre.transpose(-1, -2)).argmax(-1)
        if r == ROUNDS:
            return lab
        one = F.one_hot(lab, centre.shape[1]).to(x.dtype).transpose(1, 2)
        new = torch.matmul(one, x)
        centre = torch.where(one.sum(2, keepdim=True) > 0, F.normalize(new, dim=-1), centre)


def means(x, lab, c, n):
    """means [KV, c, kd] of the vectors x of each cluster, and the sums of n over it (0: it is empty)"""
    one = F.one_hot(lab, c).to(x.dtype).transpose(1, 2)
    return torch.matmul(one, x) / one.sum(2, keepdim=True).clamp_min(1), torch.matmul(one, n[..., None])[..., 0]


def shares(q, cent, n, scale, among=None):
    """equations 1 to 3: logarithms of the shares [KV, G, rows, c] of the queries q [KV, G, rows, kd]; among [KV, rows, c] restricts the sum"""
    s = torch.matmul(q, cent.unsqueeze(1).transpose(-1, -2)) * scale
    w = n.log()[:, None, None]
    if among is not None:
        w = w.masked_fill(~among[:, None], float("-inf"))
    return torch.where(torch.isinf(w), float("-inf"), s - torch.logsumexp(s + w, -1, keepdim=True))


def quantile(s, n, thousandths):
    """the lowest share that is not below those of so many thousandths of the keys; lists of [KV, c]"""
    s, n = torch.cat([x.flatten() for x in s]), torch.cat([x.flatten() for x in n])
    s, at = s[n > 0].sort()
    n = n[n > 0][at].double().cumsum(0)
    return s[(n * 1000 < n[-1] * thousandths).sum()].item()


class Context:
    """Squeezed Attention (arXiv 2411.09688) of one prompt ids [1, T] but for its tail: keys and values, and the queries of its end"""
    def __init__(self, m, ids, obs):
        self.m, self.obs, self.n = m, obs, ids.shape[1] - obs
        T = ids.shape[1]
        cos, sin = m.cs(1, T, ids.device)
        x = F.embedding(ids.reshape(-1), m.emb)
        self.K, self.V, self.Q, self.made = [], [], [], {}
        for l in m.layers:
            q, k, v = m.cached(l, x, cos, sin)
            x = m.finish(l, x, m.prompt(l, x, 1, T, cos, sin, None))
            self.K.append(k.view(T, m.kv, -1).transpose(0, 1).contiguous())
            self.V.append(v.reshape(T, m.kv, -1).transpose(0, 1).contiguous())
            self.Q.append(q.view(T, m.kv, -1, m.kd)[-obs:].permute(1, 2, 0, 3).contiguous())

    def clusters(self, fine, coarse):
        """of each layer: label of each key, centroids and their keys; the same of the coarse ones (None)"""
        if (fine, coarse) in self.made:
            return self.made[fine, coarse]
        parts = max(1, (self.n + SEGMENT // 2) // SEGMENT)
        cut = [i * self.n // parts for i in range(parts + 1)]
        out = []
        for k in self.K:
            labs, first = [], 0
            for lo, hi in zip(cut, cut[1:]):
                c = max(1, (hi - lo) * fine // 1000)
                labs.append(kmeans(k[:, lo:hi], c) + first)
                first += c
            lab, x = torch.cat(labs, 1), k[:, :self.n]
            cent, n = means(x, lab, first, torch.ones_like(x[..., 0]))
            top = None
            if coarse:
                # those that are not empty, in the order in which the cache has them: the cluster with the latest first token first
                least = torch.full(n.shape, self.n, device=k.device).scatter_reduce(1, lab, torch.arange(self.n, device=k.device).expand_as(lab), "amin")
                order = torch.argsort(least, dim=1, descending=True)
                full = (n > 0).sum(1)
                l1, c1, n1 = torch.zeros_like(least), torch.zeros_like(cent), torch.zeros_like(n)
                for some in full.unique().tolist():
                    h = (full == some).nonzero()[:, 0]
                    at = order[h, first - some:]
                    of, size = cent[h].gather(1, at[..., None].expand(-1, -1, cent.shape[2])), n[h].gather(1, at)
                    c = max(1, some * coarse // fine)
                    to = kmeans(of, c)
                    c1[h, :c], n1[h, :c] = means(of, to, c, size)
                    l1[h] = l1[h].scatter(1, at, to)
                top = l1, c1, n1
            out.append((lab, cent, n, top))
        self.made[fine, coarse] = out
        return out

    def threshold(self, made, sparsity):
        """by the mean shares of the last obs queries, the largest of each KV head's query heads"""
        mean = lambda s: s.exp().mean(2).amax(1)
        coarse, among = None, [None] * len(made)
        if made[0][3] is not None:
            s = [mean(shares(q, t[1], t[2], self.m.scale)) for q, (_, _, _, t) in zip(self.Q, made)]
            coarse = quantile(s, [x[3][2] for x in made], 500)
            among = [(x > coarse).gather(1, t[0])[:, None].expand(-1, self.obs, -1) for x, (_, _, _, t) in zip(s, made)]
        s = [mean(shares(q, c, n, self.m.scale, a)) for q, a, (_, c, n, _) in zip(self.Q, among, made)]
        return coarse, quantile(s, [x[2] for x in made], sparsity)



@torch.no_grad()
def decode_squeezed(m, C, tail, ans, fine, coarse, sparsity, read, ring=0):
    """the tail [1, n] and the answer behind a Context: each token attends to the clusters that it chooses, to the last obs tokens of
    the context, and to all that follows; read gets the share of clustered keys that answer tokens read"""
    made = C.clusters(fine, coarse)
    t1, t2 = C.threshold(made, sparsity)
    toks = torch.cat([tail, ans[:, :-1].clamp_min(0)], 1)
    T, n = C.n + C.obs, toks.shape[1]
    cos, sin = m.cossin(torch.arange(T, T + n, device=toks.device))
    x = F.embedding(toks.reshape(-1), m.emb)
    own = torch.ones(n, n, dtype=torch.bool, device=toks.device).tril()
    if ring:    # the newest tokens after the context
        own = own.triu(1 - ring)
    for li, l in enumerate(m.layers):
        q, k, v = m.cached(l, x, cos, sin)
        q = q.view(n, m.kv, -1, m.kd).permute(1, 2, 0, 3)
        k, v = k.view(n, m.kv, -1).transpose(0, 1), v.reshape(n, m.kv, -1).transpose(0, 1)
        lab, cent, size, top = made[li]
        among = None
        if top is not None:
            some = (shares(q, top[1], top[2], m.scale) > np.log(t1)).any(1)                 # [KV, rows, c1]
            among = some.gather(2, top[0][:, None].expand(-1, n, -1))
        pick = (shares(q, cent, size, m.scale, among) > (np.log(t2) if t2 > 0 else -np.inf)).any(1)
        see = pick.gather(2, lab[:, None].expand(-1, n, -1))                                # [KV, rows, keys]
        read.append(see[:, tail.shape[1]:].float().mean().item() if n > tail.shape[1] else 0)
        see = torch.cat([F.pad(see, (0, C.obs), value=True), own.expand(m.kv, n, n)], 2)
        s = torch.matmul(q, torch.cat([C.K[li], k], 1).unsqueeze(1).transpose(-1, -2)) * m.scale
        p = torch.softmax(s.masked_fill(~see[:, None], float("-inf")), -1)
        o = torch.matmul(p, torch.cat([C.V[li], v], 1).unsqueeze(1)).permute(2, 0, 1, 3).reshape(n, -1, m.vd)
        x = m.finish(l, x, m.uncached(l, o))
    return m.logits(x[tail.shape[1] - 1:]).argmax(-1)[None]


def numbers(text):
    """the parameters of a policy's text: name, {key: text}"""
    name, _, rest = text.partition(":")
    return name, dict(x.split("=") for x in rest.split(",") if x)


def form(text):
    """a policy of `shoal lab ruler` as the arguments of what answers under it: kind, arguments"""
    family, _, budget = text.partition("/")
    b = int(budget or 0)
    if b and family in ("pyramidkv", "adakv", "lagkv"):
        return "chosen", {"pyramidkv": f"pyramidkv:topk={b - 64}", "adakv": f"adakv:topk={b - 64}", "lagkv": f"lagkv:sink=4,lag=32,topk={b - 36}"}[family]
    if family == "truncated":
        return family, b
    if b and family in SHADOW:
        chunk, outliers, local, rank = SHADOW[family]
        return "shadow", (chunk, (b - (outliers + local + 1) * chunk + 1) // chunk, outliers, local, rank, 0)
    if b and family == "quest":
        return "quest", (16, b, 0, 0)
    if b:
        return "cut", policies(b)[{"streaming": "stream", "snapstream": "snapstream_r64"}.get(family, family)]
    name, p = numbers(text)
    if name in CHOICES:
        return "resnap" if name == "resnap" else "recall" if "recall" in p else "chosen", text
    size = lambda key, default: int(p.pop(key, default))
    if name == "quest":
        out = name, (size("page", 16), size("budget", 1024), size("skip", 0), size("ring", 0))
    elif name == "shadowkv":
        rank = size("rank", 128) if p.pop("keys", "exact") == "lowrank" else 0
        chunk = size("chunk", 8)
        out = "shadow", (chunk, max(1, size("budget", 256) // chunk), size("outliers", 48), size("local", 4), rank, size("ring", 0))
    elif name in ("loki", "infinigen"):
        share = lambda key, default: round(1000 * float(p.pop(key, default)))
        if name == "loki":
            out = "components", (name, share("dims", 0.25), size("calib", 1024), size("budget", 1024), 0, size("ring", 0))
        else:
            out = "components", (name, share("dims", 0.3), size("calib", 1024), share("most", 0.2), float(p.pop("alpha", 4)), size("ring", 0))
    elif name == "squeezed":
        share = lambda key, default: round(1000 * float(p.pop(key, default)))
        fine = share("clusters", 0.05)
        out = name, (fine, max(1, fine // 5) if size("levels", 1) == 2 else 0, share("sparsity", 0.9), size("tail", 64), size("obs", 100), size("ring", 0))
    assert not p, f"{text}: {p}"
    return out


def score(pred, a, sf):
    j = torch.arange(a.shape[1], device=a.device)[None]
    ln = (a >= 0).sum(1, keepdim=True)
    mm = (j >= sf[:, None]) & (j < ln - 1)
    hit = pred == a
    em = (hit | ~mm).all(1).float()
    ta = (hit & mm).sum(1).float() / mm.sum(1).clamp_min(1)
    return em.cpu(), ta.cpu()


@torch.no_grad()
def run(m, ev, spec, dev, tasks=None, stream_w=True, say=print):
    res = {}
    only = os.environ.get("POLICIES", "").split("+") if os.environ.get("POLICIES") else None
    for ctx, n, bs, budgets in spec:
        for (task, cx), d in sorted(ev.items()):
            if cx != ctx or (tasks and task not in tasks):
                continue
            t0 = time.time()
            acc = {}
            def add(name, em, ta):
                acc.setdefault(name, [[], []])
                acc[name][0].append(em); acc[name][1].append(ta)
            for b in range(0, min(n, len(d["prompt"])), bs):
                e = min(n, b + bs)
                p = torch.from_numpy(d["prompt"][b:e]).long().to(dev)
                a = torch.from_numpy(d["ans"][b:e]).long().to(dev)
                sf = torch.from_numpy(d["sf"][b:e]).to(dev)
                texts = [x for x in only or [] if "/" in x or ":" in x]
                kinds = {form(x)[0] for x in texts}
                legacy = [x for x in only or [] if x not in texts]
                want = "all" if not only or any(x != "quest" and x not in SHADOW for x in legacy) else "cut" in kinds
                chosen = [form(x)[1] for x in texts if form(x)[0] in ("chosen", "recall", "resnap")]
                Ks, Vs, votes, xl = prefill(m, p, want, chosen=chosen)
                add("full", *score(decode(m, Ks, Vs, None, 0, xl, a), a, sf))
                for bud in budgets:
                    for name, q in policies(bud).items():
                        if only and name not in only:
                            continue
                        add(f"{name}/{bud}", *score(decode(m, Ks, Vs, kept(votes, ctx, q), q["ring"], xl, a), a, sf))
                    for name, vote, recent, running in (("h2o_step", "h2o", bud // 2, True), ("tova", "sage", 1, False)):
                        if not only or name in only:
                            add(f"{name}/{bud}", *score(decode_step(m, Ks, Vs, [v[vote] for v in votes], recent, bud, running, xl, a), a, sf))
                    for name, (chunk, outliers, local, rank) in SHADOW.items():
                        if (not only or name in only) and bud >= (outliers + local + 2) * chunk - 1 and (not rank or m.kv > 1):
                            take = (bud - (outliers + local + 1) * chunk + 1) // chunk
                            add(f"{name}/{bud}", *score(decode_shadow(m, Ks, Vs, chunk, take, outliers, local, rank, 0, xl, a), a, sf))
                    if not only or "quest" in only:
                        add(f"quest/{bud}", *score(decode_quest(m, Ks, Vs, 16, bud, QUEST_SKIP, 0, xl, a), a, sf))
                for name in texts:
                    kind, q = form(name)
                    if kind == "chosen":
                        add(name, *score(decode(m, Ks, Vs, [v[q] for v in votes], Choice(q, ctx).ring, xl, a, Choice(q, ctx).after), a, sf))
                    elif kind == "truncated":    # the first half and the second half of that many tokens, as LongBench cuts texts
                        cut_ = torch.cat([p[:, :q // 2], p[:, ctx - (q - q // 2):]], 1) if q < ctx else p
                        Kt, Vt, _, xt = prefill(m, cut_, False)
                        add(name, *score(decode(m, Kt, Vt, None, 0, xt, a), a, sf))
                    elif kind == "cut":
                        add(name, *score(decode(m, Ks, Vs, kept(votes, ctx, q), q["ring"], xl, a), a, sf))
                    elif kind == "quest":
                        add(name, *score(decode_quest(m, Ks, Vs, *q, xl, a), a, sf))
                    elif kind == "components":
                        add(name, *score(decode_components(m, Ks, Vs, *q, xl, a), a, sf))
                    elif kind == "resnap":
                        c = Choice(q, ctx).p
                        add(name, *score(decode_resnap(m, Ks, Vs, [v[q] for v in votes], c["topk"], c["every"], c["obs"], c["pool"], xl, a), a, sf))
                    elif kind == "recall":
                        c = Choice(q, ctx)
                        add(name, *score(decode_recall(m, Ks, Vs, [v[q] for v in votes], c.first, c.recent, c.recall, c.page, xl, a), a, sf))
                    elif kind == "shadow":
                        add(name, *score(decode_shadow(m, Ks, Vs, *q, xl, a), a, sf))
                squeezed = {x: form(x)[1] for x in texts if form(x)[0] == "squeezed"}
                for i in range(len(p) if squeezed else 0):
                    for tail, obs in {q[3:5] for q in squeezed.values()}:
                        C = Context(m, p[i:i + 1, :-tail], obs)
                        for name in (x for x, q in squeezed.items() if q[3:5] == (tail, obs)):
                            read = []
                            add(name, *score(decode_squeezed(m, C, p[i:i + 1, -tail:], a[i:i + 1], *squeezed[name][:3], read, squeezed[name][5]), a[i:i + 1], sf[i:i + 1]))
                            one = torch.tensor([sum(read) / len(read)])
                            add("read " + name, one, one)
                if stream_w:
                    for bud in budgets[:1]:
                        Kw, Vw, vw, xw = prefill(m, p, False, window=bud - SINK)
                        z = torch.zeros(len(p), m.kv, ctx, dtype=torch.bool, device=dev)
                        z[..., :SINK] = True
                        add(f"stream_w/{bud}", *score(decode(m, Kw, Vw, [z] * m.c.L, bud - SINK, xw, a), a, sf))
                del Ks, Vs, votes
            m._cs.clear()
            r = {k: (round(torch.cat(v[0]).mean().item(), 4), round(torch.cat(v[1]).mean().item(), 4), [int(x) for x in torch.cat(v[0]).tolist()]) for k, v in acc.items()}
            res[f"{task}@{ctx}"] = r
            say(f"{task}@{ctx} n={min(n, len(d['prompt']))} {time.time() - t0:.1f}s " + " ".join(f"{k}={v[0]}" for k, v in r.items()), flush=True)
    return res


def join(res, more):
    """adds what further prompts gave"""
    for key, policies in more.items():
        have = res.setdefault(key, {})
        for name, (exact, tokens, hits) in policies.items():
            e, t, h = have.get(name, (0, 0, []))
            a, b = len(h), len(hits)
            have[name] = (round((e * a + exact * b) / (a + b), 4), round((t * a + tokens * b) / (a + b), 4), list(h) + hits)


def table(res, ctx, budgets):
    rows = [k for k in res if k.endswith(f"@{ctx}")]
    names = list(dict.fromkeys(x for r in rows for x in res[r]))
    out = []
    out.append("| policy | " + " | ".join(r.split("@")[0] for r in rows) + " | mean |")
    out.append("|" + "---|" * (len(rows) + 2))
    for n in names:
        v = [res[r][n][0] for r in rows]
        out.append(f"| {n} | " + " | ".join("%.0f" % (100 * x) for x in v) + " | %.1f |" % (100 * sum(v) / len(v)))
    return "\n".join(out)


def load(path, dev):
    """a Hugging Face folder of train.py's"""
    import glob
    from safetensors.torch import load_file
    arch = {"llama": "llama", "deepseek_v3": "deepseek"}[json.load(open(path + "/config.json"))["model_type"]]
    m = M.open_lm(arch)
    for f in sorted(glob.glob(path + "/*.safetensors")):
        m.load_hf(load_file(f))
    with torch.no_grad():
        for p in m.parameters():
            p.copy_(p.to(torch.bfloat16).float())
    return m.to(dev).eval()


def prompts(path):
    """{(task, ctx): arrays} of a pickle of evalgen.py, or of `shoal lab ruler --write-prompts`"""
    if path.endswith(".pkl"):
        return pickle.load(open(path, "rb"))
    import gzip
    out = {}
    for key, d in json.load(gzip.open(path)).items():
        task, ctx = key.split("@")
        ans = np.full((len(d["ans"]), max(map(len, d["ans"]))), -1, np.int32)
        for row, a in zip(ans, d["ans"]):
            row[:len(a)] = a
        out[task, int(ctx)] = dict(prompt=np.array(d["prompt"], np.int32), ans=ans, sf=np.array(d["sf"]))
    return out


if __name__ == "__main__":
    data, ck, evp, out, spec = sys.argv[1:6]
    dev = sys.argv[6] if len(sys.argv) > 6 else "cuda"
    torch.backends.cuda.matmul.allow_tf32 = False
    m = load(ck, dev)
    ev = prompts(evp)
    k, of = (int(x) for x in os.environ.get("SHARD", "0/1").split("/"))    # the tasks of one process of several
    every = sorted({t for t, _ in ev})[k::of]
    res = json.load(open(out)) if os.path.exists(out) else {}
    t0 = time.time()
    for one in spec.split(","):
        ctx, n, batch, budgets = one.split(":")
        ctx, n, batch = int(ctx), int(n), int(batch)
        budgets = tuple(int(x) for x in budgets.split("+") if x)
        for lo in range(0, n, batch):    # all tasks of a batch before the next one
            for task in every:
                if len(res.get(f"{task}@{ctx}", {}).get("full", [0, 0, []])[2]) > lo:
                    continue
                part = {(task, ctx): {a: v[lo:min(n, lo + batch)] for a, v in ev[task, ctx].items()}}
                if len(part[task, ctx]["prompt"]):
                    join(res, run(m, part, [(ctx, batch, batch, budgets)], dev, stream_w=False))
                    json.dump(res, open(out + ".new", "w"), indent=0)
                    os.replace(out + ".new", out)
        print(f"\nexact match %, ctx {ctx}, n={n} a task ({time.time() - t0:.0f} s so far)\n" + table(res, ctx, budgets) + "\n", flush=True)
