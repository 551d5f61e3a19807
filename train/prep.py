"""Tokenize the corpus, with a given tokenizer or a new byte-level BPE (4096). Usage: prep.py SRC DST [tokenizer.json]"""
import sys, os, lzma, random, json, time, re, glob
import numpy as np
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
SPECIALS = ["<|bos|>", "<|eos|>", "<|user|>", "<|assistant|>", "<|end|>", "<|system|>", "<|pad|>", "<|reserved|>"]
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CHAT = ("{{ bos_token }}{% for m in messages %}{% if m['role'] == 'assistant' %}<|assistant|>{% else %}<|user|>{% endif %}"
        "{{ m['content'] }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}")


ARRAYS = {"code_valgo": "codego_val", "code_traingo": "codego_train"}
LINE = re.compile(r"^[ \t]*//(?!go:|nolint|line |export | ?\+build)[ \t]?(.*)$")
BLOCK = re.compile(r"/\*(.*?)\*/", re.S)


def docs(path):
    """the documents of a file of corpus.go, plain or .xz"""
    f = lzma.open(path, "rt", encoding="utf-8", newline="") if path.endswith(".xz") else open(path, encoding="utf-8", newline="")
    return [d for d in f.read().split("\0") if d.strip()]


def prose(code):
    """the longer comments of a Go file, as one text; None if there are none"""
    found, run = [], []
    for l in code.split("\n") + [""]:
        m = LINE.match(l)
        if m:
            run.append(m.group(1))
        elif run:
            found.append("\n".join(run)); run = []
    found += BLOCK.findall(code)
    found = [t for t in map(str.strip, found) if len(t) >= 120 and not t.startswith("Copyright") and t.count(" ") >= len(t) / 12]
    return "\n\n".join(found) if sum(map(len, found)) >= 200 else None


def train_tok(code, eng, out):
    from tokenizers import Tokenizer, models, pre_tokenizers, decoders, trainers, processors, Regex
    import gen
    r = random.Random(7)
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    txt = r.sample(code, len(code) // 4) + r.sample(eng, len(eng) // 2)
    # numbers, so that every group of three digits is one token
    for _ in range(60):
        txt.append(" ".join(str(r.randrange(10 ** 8, 10 ** 9)) for _ in range(8000)))
    for _ in range(40):
        txt.append(" ".join("%02d %d" % (r.randrange(100), r.randrange(10)) for _ in range(2000)))
    # the tasks' own words
    for _ in range(60000):
        k = r.choice(gen.ADJ) + "-" + r.choice(gen.NOUN)
        n, q, p, q2, p2 = gen.KINDS[0]
        a = dict(vt="number", k=k, v=str(r.randrange(10 ** 6)))
        txt.append(n.format(**a) + "\nQuestion: " + q.format(**a) + "\nAnswer:" + p.format(**a) + " " + a["v"] + ".\n" + ' "%s": "%s",\n' % (k, a["v"]))
    for _ in range(12000):
        txt.append(" ".join(r.choices(gen.ADJ + gen.NOUN, k=16)) + "\n")
    tr = trainers.BpeTrainer(vocab_size=4096, special_tokens=SPECIALS, show_progress=False, min_frequency=2,
                             initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tok.train_from_iterator(txt, tr, length=len(txt))
    tok.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False),
                                              processors.TemplateProcessing(single="<|bos|> $A", pair="<|bos|> $A <|bos|> $B",
                                                                            special_tokens=[("<|bos|>", 0)])])
    tok.save(out)
    return tok


_tok = None
def _init(path):
    global _tok
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from tokenizers import Tokenizer
    _tok = Tokenizer.from_file(path)


def _enc(chunk):
    out = [np.zeros(0, np.uint16)]
    for e in _tok.encode_batch(chunk, add_special_tokens=False):
        out.append(np.array(e.ids + [1], dtype=np.uint16))
    return np.concatenate(out), sum(len(d.encode()) for d in chunk)


def _file(path):
    """tokens and bytes of a file's documents, and of the prose in them"""
    ds = docs(path)
    random.Random(path[-8:]).shuffle(ds)
    a, n = _enc(ds)
    b, m = _enc([t for t in map(prose, ds) if t]) if "code_train" in path or "code_val." in path else (np.zeros(0, np.uint16), 0)
    return a, n, b, m


def split(path, dst, limit):
    """a large file in pieces of whole documents, for the pool"""
    out = []
    for i, d in enumerate(docs(path)):
        if i % limit == 0:
            out.append(f"{dst}/tmp-%03d-{os.path.basename(path).split('.txt')[0]}" % len(out) + ("." if "val" in path else ""))
            f = open(out[-1], "w", encoding="utf-8", newline="")
        f.write(d + "\0")
        if i % limit == limit - 1:
            f.close()
    f.close()
    return out


def main():
    src, dst = sys.argv[1], sys.argv[2]
    os.makedirs(dst, exist_ok=True)
    t0 = time.time()
    tp = f"{dst}/tokenizer.json"
    paths = {n: sorted(p for p in glob.glob(f"{src}/{n}*.txt*") if re.fullmatch(n + r"(-\d+)?\.txt(\.xz)?", os.path.basename(p))) for n in ("code_train", "code_traingo", "code_val", "code_valgo", "eng_train", "eng_val")}
    print({k: len(v) for k, v in paths.items()}, flush=True)
    if len(sys.argv) > 3:
        open(tp, "w").write(open(sys.argv[3]).read())
    else:
        train_tok([d for p in paths["code_traingo"] + paths["code_train"] for d in docs(p)], [d for p in paths["eng_train"] for d in docs(p)], tp)
        print("tokenizer trained", round(time.time() - t0, 1), flush=True)
    import multiprocessing as mp
    from tokenizers import Tokenizer
    tok = Tokenizer.from_file(tp)
    isnl = np.array([tok.decode([i]).endswith("\n") for i in range(tok.get_vocab_size())])
    isnl[:8] = False
    isnl[1] = True
    got, sizes = {}, {}
    with mp.get_context("spawn").Pool(int(os.environ.get("PROCS", os.cpu_count())), _init, (tp,)) as pool:
        pieces = pool.starmap(split, [(p, dst, 250) for n in paths for p in paths[n]], chunksize=1)
        names = [n for n in paths for p in paths[n]]
        jobs = [(n, q) for n, ps in zip(names, pieces) for q in ps]
        print("unpacked", round(time.time() - t0, 1), flush=True)
        for (n, q), (a, nb, b, mb) in zip(jobs, pool.imap(_file, [q for _, q in jobs], chunksize=1)):
            for k, x, y in ((n, a, nb), (n.replace("code", "eng").replace("traingo", "train"), b, mb)):
                got.setdefault(k, []).append(x)
                sizes[k] = sizes.get(k, 0) + y
            os.remove(q)
    for n, v in got.items():
        a = np.concatenate(v)
        if not len(a):
            continue
        k, n = n, ARRAYS.get(n, n)
        st = np.flatnonzero(isnl[a]) + 1
        np.save(f"{dst}/{n}.npy", a)
        np.save(f"{dst}/{n}_starts.npy", st[st < len(a) - 20000].astype(np.int32))
        sizes[k] /= len(a)
        print(n, len(a), "tokens", "%.4f" % sizes[k], "bytes a token", round(time.time() - t0, 1), flush=True)
    json.dump({ARRAYS.get(k, k): v for k, v in sizes.items()}, open(f"{dst}/bytes_a_token.json", "w"))
    d3 = sum(tok.token_to_id("%03d" % i) is not None for i in range(1000))
    print("vocab", tok.get_vocab_size(), "three-digit tokens", d3, "two-digit", sum(tok.token_to_id("%02d" % i) is not None for i in range(100)))
    json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|bos|>", "eos_token": "<|end|>", "pad_token": "<|pad|>",
               "add_bos_token": True, "clean_up_tokenization_spaces": False, "model_max_length": 8192, "chat_template": CHAT},
              open(f"{dst}/tokenizer_config.json", "w"), indent=1)


if __name__ == "__main__":
    main()
