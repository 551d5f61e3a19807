"""Synthetic long-context retrieval tasks inside Go-source / English haystacks.

Token classes (of the token as a TARGET): 0 ignored, 1 natural text, 2 answer, 3 template text, 4 answer from a compressed cache.
"""
import json, os, random, re
import numpy as np

ADJ = """red blue green yellow purple orange white black silver golden brown gray pink bright dark quiet loud
gentle fierce happy sad brave calm clever eager fancy grand humble jolly kind lively mighty noble proud rapid
sharp sleepy swift tender vivid warm wild wise young ancient bitter bold broad busy cold cool crisp curious deep
dry early empty exact fair famous fast fine firm fresh full giant glad good great hard heavy hidden high hollow
huge icy large late light little lonely long lost low lucky magic modern narrow new nice odd old open pale plain
polite poor public pure rare ready rich rough round royal rude safe salty secret short shy silent simple slow
small smooth soft solid sour square steady steep strong sunny sweet tall thick thin tiny tired tough useful vast
weak wet wide winter wooden""".split()
NOUN = """otter fox wolf bear lion tiger eagle hawk raven robin sparrow swan goose duck owl crane whale shark
dolphin salmon trout crab horse pony sheep goat cow bull pig dog cat mouse rabbit squirrel badger deer moose
camel monkey panda koala zebra snake lizard turtle frog beetle spider bee ant river lake ocean island mountain
valley forest meadow desert canyon beach harbor bridge castle tower village city garden orchard farm field road
street market temple palace cottage cabin tent window door table chair lamp mirror clock carpet pillow blanket
basket bottle cup plate spoon knife fork hammer wrench ladder rope anchor sail boat ship train wagon bicycle
engine wheel rocket planet comet star moon sun cloud storm thunder rain snow wind fire flame candle torch stone
rock sand clay iron copper silver gold crystal diamond pearl ruby apple banana cherry grape lemon melon olive
peach pear plum berry bread butter cheese honey sugar pepper salt coffee tea milk soup rice corn bean carrot
onion potato tomato flower rose tulip daisy lily maple oak pine willow leaf seed root branch feather shadow
whisper music drum violin piano guitar flute trumpet song dance story letter paper pencil book map flag crown
sword shield arrow helmet mask ribbon button pocket jacket sweater scarf glove boot hat ring bell key lock box
doctor teacher farmer sailor painter writer singer dancer king queen prince baker miller tailor hunter guard
pilot captain wizard giant dragon""".split()
CONS = "bcdfghjklmnprstvwz"
VOW = "aeiou"

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n"

CODE = 0.8  # of the natural text; the rest is comments and documents

# Special tokens, ids fixed by the order in prep.py
BOS, EOS, USER, ASSISTANT, END = 0, 1, 2, 3, 4
N_SPECIAL = 8

KINDS = [
    # (needle line, question, prefix, plural question, plural prefix)
    ("One of the special magic {vt}s for {k} is: {v}.\n",
     "What is the special magic {vt} for {k} mentioned in the provided text?",
     " The special magic {vt} for {k} mentioned in the provided text is",
     "What are all the special magic {vt}s for {k} mentioned in the provided text?",
     " The special magic {vt}s for {k} mentioned in the provided text are"),
]
INTRO = "Some special magic {vt}s are hidden within the following text. Make sure to memorize it. I will quiz you about the {vt}s afterwards.\n"
INTRO_KV = "Extract the value corresponding to the specified key in the JSON data below.\n"
INTRO_VT = "Memorize and track the chains of variable assignment hidden in the following text.\n"
INTRO_FWE = "Read the following coded text and track the frequency of each coded word. Find the three most frequently appeared coded words.\n"
INTRO_PK = "There is an important info hidden inside a lot of irrelevant text. Find it and memorize it. I will quiz you about the important information there.\n"

ASSOC_FMT = [
    (' "{k}": "', '{v}', '",\n'),
    ("{k} =", " {v}", "\n"),
    ("{k}:", " {v}", "\n"),
    ("One of the special magic numbers for {k} is:", " {v}", ".\n"),
    ("VAR {k} =", " {v}", "\n"),
    ("{k} ->", " {v}", ";\n"),
]


class Gen:
    def __init__(self, tok, corp, seed, go=1.0):
        """corp: {'code': (ids uint16, line starts int), 'eng': (...)}, maybe with 'codego', the Go authors' part, of which
        a token is read `go` times as often as one of 'code'"""
        self.tok = tok
        self.corp = corp
        self.r = random.Random(seed)
        self.np = np.random.default_rng(seed)
        self.V = tok.get_vocab_size()
        self.nl = tok.encode("\n", add_special_tokens=False).ids[0]
        self.noise = np.array(self.enc(NOISE), dtype=np.int32)
        dot = self.noise[self.noise == self.enc("is green.")[-1]][:1]
        self.noise_starts = [0] + [int(i) + 1 for i in np.flatnonzero(self.noise == dot)] if len(dot) else [0]
        n = {k: len(x) for k, (x, _) in corp.items()}
        self.go = go * n["codego"] / (go * n["codego"] + n["code"]) if "codego" in n else 0
        self.isnl = np.zeros(self.V, dtype=bool)
        for i in range(N_SPECIAL, self.V):
            if tok.decode([i]).endswith("\n"):
                self.isnl[i] = True

    # ---- pieces
    def enc(self, s):
        return self.tok.encode(s, add_special_tokens=False).ids

    def number(self, n=None):
        n = n or self.r.choice((5, 6, 6, 7, 7, 7, 8, 9))
        return str(self.r.randrange(10 ** (n - 1), 10 ** n))

    def hexs(self, n=8):
        return "%0*x" % (n, self.r.getrandbits(4 * n))

    def upper(self, n=3):
        return "".join(self.r.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(n))

    def word2(self):
        return self.r.choice(ADJ) + "-" + self.r.choice(NOUN)

    def keys(self, n, kind):
        f = {"word": self.word2, "hex": self.hexs, "var": self.upper, "num": self.number,
             "word3": lambda: self.word2() + "-" + self.number(3)}[kind]
        s, out = set(), []
        while len(out) < n:
            k = f()
            if k not in s:
                s.add(k)
                out.append(k)
        return out

    def value(self, vt):
        return {"number": self.number, "word": self.word2, "code": self.hexs}[vt]()

    def text(self):
        """a kind of natural text by chance"""
        if self.r.random() >= CODE:
            return "eng"
        return "codego" if self.go and self.r.random() < self.go else "code"

    def hay(self, n, kind):
        if n <= 0:
            return np.zeros(0, np.int32)
        if kind == "noise":
            reps = n // len(self.noise) + 2
            o = self.r.choice(self.noise_starts)
            return np.tile(self.noise, reps)[o:o + n]
        if kind == "mix":
            kind = self.text()
        ids, starts = self.corp[kind]
        out, left = [], n
        while left > 0:
            s = int(starts[self.r.randrange(len(starts))])
            seg = ids[s:s + left].astype(np.int32)
            seg[seg == EOS] = self.nl
            out.append(seg)
            left -= len(seg)
        return np.concatenate(out)

    # ---- assembling
    def assemble(self, total, head, events, hay_kind, tail=None):
        """head: list[(ids|str, cls)]; events: list[(pos, [(str|ids, cls)])]; total: exact token count.
        Events with pos < 1 are laid at that fraction of the haystack, later ones after it."""
        strs, slots = [], []
        def conv(pieces):
            o = []
            for s, c in pieces:
                if isinstance(s, str):
                    slots.append((o, len(o)))
                    strs.append(s)
                    o.append([None, c])
                else:
                    o.append([s, c])
            return o
        head = conv(head)
        ev = [(p, conv(x)) for p, x in events]
        if strs:
            for (o, i), e in zip(slots, self.tok.encode_batch(strs, add_special_tokens=False)):
                o[i][0] = e.ids
        fixed = sum(len(s) for s, _ in head) + sum(len(s) for _, x in ev for s, _ in x)
        n = total - fixed
        if n < 0:
            return None
        h = self.hay(n, hay_kind)
        hc = 3 if hay_kind == "noise" else int(os.environ.get("HAY_CLASS", "1"))
        cuts = np.flatnonzero(self.isnl[h]) + 1 if n else np.zeros(0, int)
        cuts = cuts[cuts < n]
        ids, cls = [], []
        for s, c in head:
            ids.append(np.asarray(s, np.int32)); cls.append(np.full(len(s), c, np.uint8))
        at = 0
        order = sorted(range(len(ev)), key=lambda i: ev[i][0])
        for i in order:
            p, x = ev[i]
            if p >= 1:
                to = n
            elif len(cuts):
                to = int(cuts[min(len(cuts) - 1, int(np.searchsorted(cuts, p * n)))])
            else:
                to = 0
            if to > at:
                ids.append(h[at:to]); cls.append(np.full(to - at, hc, np.uint8))
                at = to
            for s, c in x:
                ids.append(np.asarray(s, np.int32)); cls.append(np.full(len(s), c, np.uint8))
        if at < n:
            ids.append(h[at:]); cls.append(np.full(n - at, hc, np.uint8))
        return np.concatenate(ids), np.concatenate(cls)

    def qa_pieces(self, q, prefix, ans, chat, first_chat=False):
        """text mode: \nQuestion: q\nAnswer:prefix ans ; chat mode: question END ASSISTANT prefix ans END [USER]"""
        if not chat:
            return [("Question: " + q + "\nAnswer:" + prefix, 3), (ans + "\n", 2)]
        return [(q, 3), ([END, ASSISTANT], 3), (prefix.lstrip() if prefix else "", 3), (ans if prefix else ans.lstrip(), 2), ([END], 2)]

    def pack(self, total, intro, events, qas, hay_kind, chat, end=True, keep_intro=True):
        """qas: list[(pos, q, prefix, ans)]"""
        r = self.r
        head = [([BOS], 0)]
        if chat:
            head.append(([USER], 3))
        if intro and keep_intro:
            head.append((intro, 3))
        ev = list(events)
        # where the end block begins
        k = 0
        for pos, q, prefix, ans in qas:
            if pos < 1 and not chat:
                ev.append((pos, [("\n", 3)] + self.qa_pieces(q, prefix, ans, False)))
            else:
                pcs = self.qa_pieces(q, prefix, ans, chat)
                if k == 0:
                    pcs = [("\n", 3)] + pcs
                elif chat:
                    pcs = [([USER], 3)] + pcs
                ev.append((2 + k, pcs))
                k += 1
        return self.assemble(total, head, ev, hay_kind)

    # ---- tasks; each gives (intro, events, qas, hay_kind) for about `total` tokens
    def budget(self, total, per_item, per_q, lo_items, cap_items, nq):
        room = total * self.r.uniform(0.25, 0.85)
        nq = max(1, min(nq, int(0.5 * total / per_q)))
        ni = int(max(lo_items, min(cap_items, (room - nq * per_q) / per_item)))
        return ni, nq

    def nq(self, total):
        c = [1, 2, 4, 8, 12, 16]
        return self.r.choice(c)

    def qpos(self, after, inter):
        return self.r.uniform(after, 1.0) if inter else 1.5

    def t_niah(self, total, n=None, nq=None, vt=None, hay=None, keykind=None, nd=None):
        r = self.r
        vt = vt or r.choice(("number", "number", "number", "word", "code"))
        need, q, pre, _, _ = KINDS[0]
        if n is None:
            n, nq = self.budget(total, 24, 50, 1, r.choice((1, 4, 8, 16, 32, 48)), self.nq(total))
        kk = keykind or r.choice(("word", "word", "word3", "hex"))
        ks = self.keys(n, kk)
        vs = [self.number(nd) if (vt == "number" and nd) else self.value(vt) for _ in ks]
        ps = [r.random() for _ in ks]
        ev = [(p, [(need.format(vt=vt, k=k, v=v), 0)]) for p, k, v in zip(ps, ks, vs)]
        inter = r.random() < 0.4 and nq > 1
        qas = []
        for i in r.sample(range(n), min(n, nq)):
            qas.append((self.qpos(ps[i], inter), q.format(vt=vt, k=ks[i]), pre.format(vt=vt, k=ks[i]), " " + vs[i] + "."))
        self.depth = ps[0] if n == 1 else None
        return INTRO.format(vt=vt), ev, qas, hay or r.choice(("mix", "mix", "mix", "noise"))

    def t_mv(self, total, nv=None, n=None, nq=None, hay=None, nd=None):
        """multi-value: every key has nv values, answered in order of appearance"""
        r = self.r
        vt = "number"
        need, _, _, q, pre = KINDS[0]
        nv = nv or r.choice((2, 3, 4))
        if n is None:
            n, nq = self.budget(total, 24 * nv, 45 + 6 * nv, 1, r.choice((1, 2, 3, 6)), r.choice((1, 2, 4)))
        ks = self.keys(n, "word")
        ev, qas = [], []
        for j, k in enumerate(ks):
            ps = sorted(r.random() for _ in range(nv))
            vs = [self.number(nd) for _ in ps]
            ev += [(p, [(need.format(vt=vt, k=k, v=v), 0)]) for p, v in zip(ps, vs)]
            if j < nq:
                qas.append((1.5, q.format(vt=vt, k=k), pre.format(vt=vt, k=k), " " + ", ".join(vs) + "."))
        r.shuffle(qas)
        return INTRO.format(vt=vt), ev, qas, hay or r.choice(("mix", "mix", "noise"))

    def t_mq(self, total, nk=None, n=None, nq=None, hay=None, nd=None):
        """multi-query: several keys asked for at once"""
        r = self.r
        vt = "number"
        need, _, _, q, pre = KINDS[0]
        nk = nk or r.choice((2, 3, 4, 4, 6, 8))
        if n is None:
            n, nq = self.budget(total, 24, 60 + 16 * nk, nk, r.choice((4, 8, 16)), r.choice((1, 2, 3)))
        n = max(n, nk)
        ks = self.keys(n, "word")
        vs = [self.number(nd) for _ in ks]
        ev = [(r.random(), [(need.format(vt=vt, k=k, v=v), 0)]) for k, v in zip(ks, vs)]
        qas = []
        for _ in range(nq):
            s = r.sample(range(n), nk)
            kk = ", ".join(ks[i] for i in s)
            qas.append((1.5, q.format(vt=vt, k=kk), pre.format(vt=vt, k=kk), " " + ", ".join(vs[i] for i in s) + "."))
        return INTRO.format(vt=vt), ev, qas, hay or r.choice(("mix", "mix", "noise"))

    def t_passkey(self, total, hay=None, nd=None):
        v = self.number(nd or self.r.choice((5, 5, 6)))
        p = self.r.random()
        self.depth = p
        ev = [(p, [("The pass key is %s. Remember it. %s is the pass key.\n" % (v, v), 0)])]
        return INTRO_PK, ev, [(1.5, "What is the pass key?", " The pass key is", " " + v + ".")], hay or self.r.choice(("noise", "mix"))

    def t_kv(self, total, hexa=None, n=None, nq=None, nd=None):
        """JSON dictionary, filling (most of) the context"""
        r = self.r
        hexa = (r.random() < 0.4) if hexa is None else hexa
        per = 24 if hexa else 17
        if n is None:
            nq = min(self.nq(total), int(0.4 * total / 45) or 1)
            full = (total - 60 - nq * 50) / (per + 2)
            n = max(1, int(full * r.choice((0.1, 0.25, 0.5, 0.75, 0.95))))
        ks = self.keys(n, "hex" if hexa else r.choice(("word", "word", "word3")))
        vs = [self.hexs() if hexa else self.number(nd) for _ in ks]
        p = r.random()
        txt = "{\n" + "".join(' "%s": "%s",\n' % (k, v) for k, v in zip(ks, vs)) + "}\n"
        ev = [(p, [(txt, 0)])]
        qas = []
        for i in r.sample(range(n), min(n, nq or 1)):
            qas.append((1.5, 'What is the value of the key "%s" in the JSON data?' % ks[i],
                        ' The value associated with the key "%s" is:' % ks[i], ' "%s"' % vs[i]))
        self.depth = None
        return INTRO_KV, ev, qas, "mix"

    def t_vt(self, total, chains=None, hops=None, nq=None, hay=None, nd=None):
        r = self.r
        chains = chains or r.choice((1, 1, 2, 3, 4))
        hops = hops or r.choice((1, 2, 3, 4, 4))
        names = self.keys(chains * (hops + 1), "var")
        ev, qas = [], []
        train = nq is None
        for c in range(chains):
            nm = names[c * (hops + 1):(c + 1) * (hops + 1)]
            v = self.number(nd or 5)
            ps = sorted(r.random() for _ in nm)
            for j, (p, x) in enumerate(zip(ps, nm)):
                ev.append((p, [("VAR %s = %s\n" % (x, v if j == 0 else "VAR " + nm[j - 1]), 0)]))
            if train or c == 0:
                qas.append((1.5, "Find all variables that are assigned the value %s in the text above." % v,
                            " According to the chain of variable assignment in the text above, the variables assigned the value %s are:" % v,
                            " " + " ".join(nm)))
            if train:
                for x in r.sample(nm, min(len(nm), 2)):
                    qas.append((1.5, "What is the value of the variable %s?" % x, " The value of the variable %s is" % x, " " + v + "."))
        r.shuffle(qas)
        return INTRO_VT, ev, qas, hay or r.choice(("mix", "noise", "mix"))

    def coded(self, n):
        s = set()
        while len(s) < n:
            s.add("".join(self.r.choice(CONS) + self.r.choice(VOW) for _ in range(self.r.choice((2, 3)))))
        return list(s)

    def t_fwe(self, total, frac=None, plain=None):
        r = self.r
        n = int(total * (frac or r.choice((0.3, 0.6, 0.9, 1.4))) / 3.6)
        nw = max(8, min(250, n // 6))
        ws = r.sample(ADJ + NOUN, nw) if plain or (plain is None and r.random() < 0.6) else self.coded(nw)
        a = self.np.zipf(2.0, size=n)
        a = a[a <= len(ws)]
        cnt = np.bincount(a - 1, minlength=len(ws))
        top = np.argsort(-cnt, kind="stable")[:4]
        if len(set(cnt[top].tolist())) < 4 or cnt[top[3]] < 1:
            return self.t_fwe(total, frac, plain)
        self.r.shuffle(ws)
        seq = [ws[i - 1] for i in a]
        r.shuffle(seq)
        txt = "".join(" ".join(seq[i:i + 16]) + "\n" for i in range(0, len(seq), 16))
        ans = " " + " ".join(ws[i] for i in top[:3])
        return INTRO_FWE, [(0.3, [(txt, 0)])], [(1.5, "What are the three most frequently appeared words in the above coded text?",
                " The three most frequently appeared words are:", ans)], "mix"

    # ---- dense copying (no natural question)
    def copy_rand(self, total):
        r = self.r
        L = min(total // 2 - 2, r.choice((8, 16, 32, 64, 128, 256)))
        out_i, out_c = [np.array([BOS], np.int32)], [np.zeros(1, np.uint8)]
        left = total - 1
        hay = r.random() < 0.4
        while left > 0:
            seg = self.np.integers(N_SPECIAL, self.V, size=L).astype(np.int32)
            k = r.choice((2, 2, 3, 4))
            for j in range(k):
                if left <= 0:
                    break
                s = seg[:left]
                c = np.full(len(s), 2 if j else 0, np.uint8)
                if j:
                    c[0] = 0
                out_i.append(s); out_c.append(c); left -= len(s)
                if hay and left > 0:
                    h = self.hay(min(left, r.randrange(1, max(2, total // 6))), "mix")
                    out_i.append(h); out_c.append(np.full(len(h), 1, np.uint8)); left -= len(h)
        return np.concatenate(out_i), np.concatenate(out_c)

    def copy_assoc(self, total):
        """pairs listed once, then again in other order: every second-time value is an answer"""
        r = self.r
        fmt = r.choice(ASSOC_FMT)
        kk = r.choice(("word", "word", "word3", "hex", "var", "num"))
        vk = r.choice(("number", "number", "word", "code"))
        per = 14 + (6 if kk == "hex" else 0) + (8 if vk == "code" else 0) + (10 if "magic" in fmt[0] else 0)
        reps = r.choice((2, 2, 3))
        fill = r.choice((0.0, 0.0, 0.3, 0.6))
        n = max(2, int(total * (1 - fill) * r.uniform(0.5, 0.95) / (per * reps)))
        ks = self.keys(n, kk)
        vs = [self.value(vk) for _ in ks]
        a = self.tok.encode_batch([fmt[0].format(k=k) for k in ks], add_special_tokens=False)
        b = self.tok.encode_batch([fmt[1].format(v=v) for v in vs], add_special_tokens=False)
        c = self.enc(fmt[2])
        ids, cls = [BOS], [0]
        items = []
        for rep in range(reps):
            idx = list(range(n)); r.shuffle(idx)
            cl = 2 if rep else 0
            for i in idx:
                k, v = a[i].ids, b[i].ids
                items.append((k + v + c, [0] * len(k) + [cl] * (len(v) + len(c))))
        left = total - 1 - sum(len(x) for x, _ in items)
        if left > 0:
            h = self.hay(left, "mix")
            cuts = np.flatnonzero(self.isnl[h]) + 1
            at = np.sort(self.np.choice(cuts, size=len(items))) if len(cuts) else np.zeros(len(items), int)
            if fill == 0.0:
                at[:] = 0
            h, at = h.tolist(), at.tolist()
        else:
            h, at = [], [0] * len(items)
        p = 0
        for (x, y), q in zip(items, at):
            if q > p:
                ids += h[p:q]; cls += [1] * (q - p); p = q
            ids += x; cls += y
        ids += h[p:]; cls += [1] * (len(h) - p)
        return np.array(ids[:total], np.int32), np.array(cls[:total], np.uint8)

    def natural(self, total):
        ids, starts = self.corp[self.text()]
        while True:
            s = int(starts[self.r.randrange(len(starts))])
            seg = ids[s:s + total - 1].astype(np.int32)
            if len(seg) == total - 1:
                break
        ids = np.concatenate([np.array([BOS], np.int32), seg])
        cls = np.full(total, 1, np.uint8); cls[0] = 0
        return ids, cls

    def chat_turns(self, total):
        import chatpairs
        ids, cls = [BOS], [0]
        while len(ids) < total:
            if len(ids) > 1 and self.r.random() < 0.3:
                h = self.hay(self.r.randrange(20, max(21, total // 4)), "mix").tolist()
                ids += h + [EOS]; cls += [1] * len(h) + [0]
            q, a = self.r.choice(chatpairs.P)
            if self.r.random() < 0.15:
                q = q.lower()
            k = [USER] + self.enc(q) + [END, ASSISTANT]
            v = self.enc(a) + [END]
            ids += k + v; cls += [0] * len(k) + [2] * len(v)
        return np.array(ids[:total], np.int32), np.array(cls[:total], np.uint8)

    TASKS = ("niah", "mv", "mq", "passkey", "kv", "vt", "fwe")

    def train_sample(self, total, mix):
        r = self.r
        for _ in range(50):
            t = r.choices(list(mix), list(mix.values()))[0]
            if t == "natural":
                return self.natural(total)
            if t == "chat_turns":
                return self.chat_turns(total)
            if t == "tools":
                import tools
                return tools.sample(self, total)
            if t == "copy_rand":
                return self.copy_rand(total)
            if t == "copy_assoc":
                return self.copy_assoc(total)
            intro, ev, qas, hk = getattr(self, "t_" + t)(total)
            chat = r.random() < 0.3
            got = self.pack(total, intro, ev, qas, hk, chat, keep_intro=r.random() < 0.7)
            if got is not None:
                return got
        return self.natural(total)

    ENDS = dict(mq=.30, chat=.16, niah=.10, kv_json=.06, kv_hex=.10, vt=.14, mv=.09, passkey=.02, fwe=.03)

    def end_parts(self, task, total):
        """a task with one question, much as in eval_parts"""
        r = self.r
        seven = lambda: r.choice((7, 7, None))
        hay = lambda: r.choice(("mix", "mix", "mix", "noise"))
        if task == "mq":
            nk = r.choice((2, 3, 4, 4, 4, 6, 8))
            return self.t_mq(total, nk=nk, n=r.choice((nk, nk, nk + 4, 16)), nq=1, hay=hay(), nd=seven())
        if task in ("niah", "chat"):
            return self.t_niah(total, n=r.choice((1, 1, 4, 8, 16)), nq=1, hay=hay(), nd=seven())
        if task == "mv":
            return self.t_mv(total, n=r.choice((1, 2)), nq=1, hay=hay(), nd=seven())
        if task.startswith("kv"):
            hexa = task == "kv_hex"
            return self.t_kv(total, hexa=hexa, n=max(4, int((total - 150) * r.choice((.1, .4, .8)) / (26 if hexa else 19))), nq=1, nd=seven())
        if task == "vt":
            return self.t_vt(total, chains=1, hops=r.choice((2, 3, 4, 4)), nq=1, hay=hay(), nd=5)
        if task == "passkey":
            return self.t_passkey(total)
        return self.t_fwe(total, frac=r.choice((.6, 1.4)), plain=True)

    def end_sample(self, prompt, rows):
        """a prompt of exactly so many tokens that ends in a question, and its answer as class 4 in the `rows`
        tokens behind it (the rest of them ignored): for training with the prompt's cache compressed"""
        r = self.r
        while True:
            task = r.choices(list(self.ENDS), list(self.ENDS.values()))[0]
            intro, ev, qas, hk = self.end_parts(task, prompt)
            _, q, prefix, ans = qas[0]
            chat = task == "chat" or r.random() < 0.2
            head = [([BOS], 0)] + ([([USER], 3)] if chat else []) + ([(intro, 3)] if r.random() < 0.9 else [])
            if chat:
                tail = [("\n" + q, 3), ([END, ASSISTANT], 3)]
                a = [(self.enc(prefix.lstrip()), 3), (self.enc(ans), 4), ([END], 4)]
            else:
                tail = [("\nQuestion: " + q + "\nAnswer:" + prefix, 3)]
                a = [(self.enc(ans + "\n"), 4)]
            got = self.assemble(prompt, head, ev + [(2, tail)], hk)
            n = sum(len(x) for x, _ in a)
            if got is None or n > rows:
                continue
            pad = rows - n
            return (np.concatenate([got[0]] + [np.asarray(x, np.int32) for x, _ in a] + [np.full(pad, self.nl, np.int32)]),
                    np.concatenate([got[1]] + [np.full(len(x), c, np.uint8) for x, c in a] + [np.zeros(pad, np.uint8)]))

    def batch(self, B, T, mix, ends=0, rows=64):
        """B samples of T + 1 tokens and their classes; the first `ends` of them of end_sample"""
        ids = np.empty((B, T + 1), np.int32)
        cls = np.empty((B, T + 1), np.uint8)
        for b in range(B):
            i, c = self.end_sample(T + 1 - rows, rows) if b < ends else self.train_sample(T + 1, mix)
            ids[b], cls[b] = i, c
        return ids, cls

    # ---- evaluation prompts: exactly ctx prompt tokens, one question, canonical tokenization
    EVAL = ("passkey", "niah_single_noise", "niah_single_text", "niah_multikey", "niah_multivalue", "niah_multiquery",
            "kv_json", "kv_hex", "vt", "fwe", "chat_niah")

    def eval_parts(self, task, ctx):
        if task == "passkey":
            return self.t_passkey(ctx, hay="noise", nd=5)
        if task == "niah_single_noise":
            return self.t_niah(ctx, n=1, nq=1, vt="number", hay="noise", keykind="word", nd=7)
        if task in ("niah_single_text", "chat_niah"):
            return self.t_niah(ctx, n=1, nq=1, vt="number", hay="mix", keykind="word", nd=7)
        if task == "niah_multikey":
            return self.t_niah(ctx, n=8, nq=1, vt="number", hay="mix", keykind="word", nd=7)
        if task == "niah_multivalue":
            return self.t_mv(ctx, nv=4, n=1, nq=1, hay="mix", nd=7)
        if task == "niah_multiquery":
            return self.t_mq(ctx, nk=4, n=4, nq=1, hay="mix", nd=7)
        if task == "kv_json":
            return self.t_kv(ctx, hexa=False, n=max(4, int(self.shrink * (ctx - 150) * 0.85 / 19)), nq=1, nd=7)
        if task == "kv_hex":
            return self.t_kv(ctx, hexa=True, n=max(4, int(self.shrink * (ctx - 150) * 0.85 / 26)), nq=1)
        if task == "vt":
            return self.t_vt(ctx, chains=1, hops=4, nq=1, hay="noise", nd=5)
        if task == "fwe":
            return self.t_fwe(ctx, frac=1.6 * self.shrink, plain=True)
        raise KeyError(task)

    def eval_sample(self, task, ctx):
        """(prompt ids (ctx), answer ids, prompt text, answer text, depth, score_from): in chat the decoded
        prefix comes first; score_from is the index of the first answer token that counts."""
        chat = task.startswith("chat")
        self.shrink = 1.0
        for _ in range(200):
            self.depth = None
            intro, ev, qas, hk = self.eval_parts(task, ctx)
            _, q, prefix, ans = qas[0]
            bad = 0
            for delta in (0, 1, 2, 3, -1, 4, 5, -2, 6, 7):
                total = ctx + delta
                head = [([BOS], 0)] + ([([USER], 3)] if chat else []) + [(intro, 3)]
                if chat:
                    tail = [("\n" + q, 3), ([END, ASSISTANT], 3)]
                else:
                    tail = [("\nQuestion: " + q + "\nAnswer:" + prefix, 3)]
                got = self.assemble(total, head, ev + [(2, tail)], hk)
                if got is None:
                    self.shrink *= 0.93
                    break
                ids = got[0].tolist()
                # canonical: decode and encode again
                body = ids[2:-2] if chat else ids[1:]
                txt = self.tok.decode(body, skip_special_tokens=False)
                if "\ufffd" in txt:
                    continue
                again = self.enc(txt)
                full = ([BOS, USER] + again + [END, ASSISTANT]) if chat else [BOS] + again
                if len(full) == ctx:
                    a = self.enc(prefix.lstrip()) if chat else []
                    sf = len(a)
                    a = a + (self.enc(ans) + [END] if chat else self.enc(ans + "\n"))
                    return np.array(full, np.int32), np.array(a, np.int32), txt, (prefix.lstrip() if chat else "") + ans, self.depth, sf
        raise RuntimeError("no eval sample for %s %d" % (task, ctx))
