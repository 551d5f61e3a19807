"""Build the evaluation prompts. Usage: evalgen.py DATA OUT.pkl ctx:n,ctx:n; OUT-ctx.json.gz beside it are for Shoal"""
import sys, os, pickle, time
import numpy as np

def load_corp(data, split):
    """{kind: (tokens, where lines start)}; the Go authors' training text is a kind of its own"""
    kinds = ("code", "eng") + (("codego",) if split == "train" and os.path.exists(f"{data}/codego_train.npy") else ())
    return {k: (np.load(f"{data}/{k}_{split}.npy", mmap_mode="r"), np.load(f"{data}/{k}_{split}_starts.npy", mmap_mode="r")) for k in kinds}

def load_tok(data):
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from tokenizers import Tokenizer
    return Tokenizer.from_file(f"{data}/tokenizer.json")

def work(a):
    data, task, ctx, n, seed = a
    import gen
    corp = load_corp(data, "val")
    g = gen.Gen(load_tok(data), corp, seed)
    return [g.eval_sample(task, ctx) for _ in range(n)]

def build(data, spec, procs=14, tasks=None, seed=1000):
    import multiprocessing as mp, gen
    tasks = tasks or gen.Gen.EVAL
    jobs, key = [], []
    for ctx, n in spec:
        for ti, t in enumerate(tasks):
            for c in range(0, n, 25):
                jobs.append((data, t, ctx, min(25, n - c), seed + ctx * 131 + ti * 17 + c * 7919)); key.append((t, ctx))
    with mp.get_context("spawn").Pool(procs) as p:
        res = p.map(work, jobs, chunksize=1)
    out = {}
    for k, r in zip(key, res):
        out.setdefault(k, []).extend(r)
    fin = {}
    for k, r in out.items():
        A = max(len(x[1]) for x in r)
        ans = np.full((len(r), A), -1, np.int32)
        for i, x in enumerate(r):
            ans[i, :len(x[1])] = x[1]
        fin[k] = dict(prompt=np.stack([x[0] for x in r]), ans=ans, sf=np.array([x[5] for x in r]), text=[x[2] for x in r],
                      anstext=[x[3] for x in r], depth=np.array([np.nan if x[4] is None else x[4] for x in r]))
    return fin

def shoal(f, ctx, out):
    """the prompts of one length as `shoal lab ruler --prompts` takes them"""
    import gzip, json
    d = {f"{t}@{c}": dict(prompt=x["prompt"].tolist(), ans=[[int(i) for i in a if i >= 0] for a in x["ans"]], sf=x["sf"].tolist(),
                          depth=[None if np.isnan(y) else float(y) for y in x["depth"]]) for (t, c), x in f.items() if c == ctx}
    with gzip.open(out, "wt") as z:
        json.dump(d, z)

if __name__ == "__main__":
    t0 = time.time()
    spec = [tuple(map(int, s.split(":"))) for s in sys.argv[3].split(",")]
    f = build(sys.argv[1], spec, procs=int(os.environ.get("PROCS", "14")))
    pickle.dump(f, open(sys.argv[2], "wb"))
    for c, _ in spec:
        shoal(f, c, sys.argv[2].replace(".pkl", f"-{c}.json.gz"))
    print("eval sets", {k: v["prompt"].shape[0] for k, v in f.items() if k[0] == "vt"}, "answers up to", max(v["ans"].shape[1] for v in f.values()), round(time.time() - t0, 1), "s", flush=True)
