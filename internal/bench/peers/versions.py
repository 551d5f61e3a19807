"""Two builds of shoal beside each other, in turn. Usage: versions.py OLD NEW [--rounds 5] [--cluster-rounds 16] [--only WORD] [--models fry,llama-3.2-1b]

Each row runs OLD, NEW, NEW, OLD, ... with the same flags and prints both medians of tokens a second, and their ratio
(above 1: NEW is faster), with the least and the greatest ratio of neighbours. Nothing else should run on the machine.
Rows over node processes vary by 10 % from run to run on two cores, so they get more rounds: five of them once told of a
loss of 5 to 18 % that sixteen did not find (4376 and 4356, 440 and 440 tokens/s).
Exit 1 when a row is more than 5 % slower, or the median of all rows more than 3 %."""
import argparse, json, os, statistics, subprocess, sys

a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
a.add_argument("old"), a.add_argument("new")
a.add_argument("--rounds", type=int, default=5)
a.add_argument("--cluster-rounds", type=int, default=16)
a.add_argument("--only", default="")
a.add_argument("--models", default="fry,llama-3.2-1b")
a.add_argument("--threads", default="")
a = a.parse_args()
env = dict(os.environ, SHOAL_WEIGHTS_CACHE="off")

def rows(model):
    for batch in (1, 16):
        for context in (128, 4096):
            yield f"decode --batch {batch} --context {context} --tokens 48"
    yield "prefill --context 2048 --repeat 3"
    for n in (1, 2, 4):
        for batch in (1, 16):
            yield f"cluster --nodes {n} --batch {batch} --tokens 48"

def group(binary):
    """The command that the measurements stand under: lab, or bench in builds before November 2026."""
    return "lab" if subprocess.run([binary, "lab", "decode", "--help"], env=env, capture_output=True).returncode == 0 else "bench"

groups = {binary: group(binary) for binary in (a.old, a.new)}

def rate(binary, row, model):
    p = subprocess.run([binary, groups[binary], *row.split(), "-m", model, "--json"] + (["--threads", a.threads] if a.threads else []), env=env, capture_output=True, text=True, timeout=300)
    if p.returncode:
        sys.exit(f"{binary} {groups[binary]} {row}: {p.stderr[-500:]}")
    d = json.loads(p.stdout)
    return next(d[k] for k in ("median_tokens_per_s", "tokens_per_s") if k in d)

ratios = []
for model in a.models.split(","):
    for row in rows(model):
        if a.only not in row:
            continue
        old, new = [], []
        for i in range(a.cluster_rounds if row.startswith("cluster") else a.rounds):
            for side in ((0, 1), (1, 0))[i % 2]:
                (old, new)[side].append(rate((a.old, a.new)[side], row, model))
        ratio, each = statistics.median(new) / statistics.median(old), [n / o for n, o in zip(new, old)]
        ratios.append(ratio)
        print(f"{model:14} {row:45} {statistics.median(old):9.1f} {statistics.median(new):9.1f}  {ratio:.3f} ({min(each):.2f} to {max(each):.2f})", flush=True)
print(f"median of {len(ratios)} rows {statistics.median(ratios):.3f}, least {min(ratios):.3f}")
sys.exit(statistics.median(ratios) < 0.97 or min(ratios) < 0.95)
