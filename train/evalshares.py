"""Shoal's answers and the reference's, as a Markdown table and a plot. Usage:
evalshares.py LENGTH ROWS results.jsonl OUT.svg|- pol.json [pol.json ...]
ROWS: lines of what is on the x axis (a share, a number of outliers, a sparsity) and its policies; a line without a digit is
drawn across. accuracy.sh writes it; the name of the file says what it is. Each cell is the percent of whichever of the two has answered
more prompts, in brackets how far Shoal is from the reference on the prompts that both have. Exit 1 when a cell of eight samples and more is over a quarter off."""
import sys, json, os
from collections import defaultdict

EASY = ["passkey", "niah_single_noise", "niah_single_text", "niah_multikey", "chat_niah"]
NINE = EASY + ["niah_multiquery", "kv_json", "kv_hex", "vt"]
COLUMNS = {"easy": EASY, "multiquery": ["niah_multiquery"], "kv_json": ["kv_json"], "kv_hex": ["kv_hex"], "vt": ["vt"], "mean9": NINE,
           "multivalue": ["niah_multivalue"], "fwe": ["fwe"], "niah_second": ["niah_second"], "kv_second": ["kv_second"], "niah_all": ["niah_all"]}
COLOURS = {"full": "#222222", "streaming": "#7f7f7f", "snapstream": "#d55e00", "quest": "#0072b2", "shadowkv": "#009e73", "shadowkv low rank": "#8c6d00",
           "squeezed": "#cc79a7", "truncated": "#bbbbbb", "knorm": "#56b4e9", "lagkv": "#44aa99", "h2o": "#882255", "sage": "#999933", "snapkv": "#332288", "pyramidkv": "#117733", "adakv": "#661100",
           "squeezed, two levels": "#e69f00"}

HEADS = {"shares": "share read", "outliers": "outlier chunks", "sparsity": "sparsity", "baselines": "share kept"}
length, rows, results, plot = int(sys.argv[1]), [l.split() for l in open(sys.argv[2])], sys.argv[3], sys.argv[4]
head = HEADS.get(os.path.basename(sys.argv[2]), "")
ours, ref, read = defaultdict(dict), defaultdict(dict), defaultdict(list)
for r in (json.loads(l) for l in (open(results) if os.path.exists(results) else ()) if l.endswith("\n")):
    if r["length"] == length:
        ours[r["policy"], r["task"]][r["index"]] = int(r["exact"])
for path in sys.argv[5:]:
    for key, policies in json.load(open(path)).items():
        task, at = key.split("@")
        for name, (share, _, hits) in policies.items():
            if int(at) == length and name.startswith("read "):
                read[name[5:]].append(share)
            elif int(at) == length:
                ref[name, task] = dict(enumerate(hits))


def family(policy):
    name = policy.split(":")[0].split("/")[0].split("_")[0]
    return name + (", two levels" if "levels=2" in policy else " low rank" if "lowrank" in policy else "")


def mean(of, policy, tasks):
    v = [100 * sum(of[policy, t].values()) / len(of[policy, t]) for t in tasks if of[policy, t]]
    return sum(v) / len(v) if len(v) == len(tasks) else None


def best(policy, tasks):
    """the percent of whichever has more answers"""
    return mean(max((ours, ref), key=lambda of: sum(len(of[policy, t]) for t in tasks)), policy, tasks)


def cell(policy, tasks):
    if best(policy, tasks) is None:
        return "-"
    same = lambda of: {(policy, t): {i: x for i, x in of[policy, t].items() if i in ours[policy, t] and i in ref[policy, t]} for t in tasks}
    a, b = mean(defaultdict(dict, same(ours)), policy, tasks), mean(defaultdict(dict, same(ref)), policy, tasks)
    digits = 1 if len(tasks) == 9 else 0
    return f"{best(policy, tasks):.{digits}f}" + ("" if a is None or a == b else f" ({a - b:+.{digits}f})")


print(f"| {head} | policy | " + " | ".join(COLUMNS) + " |\n" + "|---" * (len(COLUMNS) + 2) + "|")
same = total = far = 0
samples = set()
for x, *policies in rows:
    for p in policies:
        for t in NINE + ["niah_multivalue", "fwe", "niah_second", "kv_second", "niah_all"]:
            both = [(v, ref[p, t][i]) for i, v in ours[p, t].items() if i in ref[p, t]]
            samples |= {len(both)} - {0}
            same, total = same + sum(v == w for v, w in both), total + len(both)
            far += len(both) > 7 and abs(sum(v - w for v, w in both)) > len(both) / 4
        note = f" ({100 * sum(read[p]) / len(read[p]):.1f} % of the clustered keys)" if read[p] else ""
        print(f"| {x} | {p}{note} | " + " | ".join(cell(p, c) for c in COLUMNS.values()) + " |")
        x = ""
print(f"\n{length} tokens, samples a cell: {sorted({max(len(ours[k]), len(ref[k])) for k in list(ours) + list(ref)} - {0})}, with both answers: {sorted(samples)}; answers alike {same} of {total} ({100 * same / max(1, total):.2f}%); cells over a quarter off: {far}")

if plot != "-":
    try:
        import matplotlib
    except ImportError:
        sys.exit("evalshares.py: no plot: matplotlib is not installed")
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "shoal", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    import matplotlib.pyplot as plt
    panels = [("nine tasks", NINE), ("a second question", ["niah_second", "kv_second"])]
    fig, axes = plt.subplots(1, len(panels), figsize=(9, 3.4), sharey=True)
    at = [r[0] for r in rows if any(c.isdigit() for c in r[0])]
    for ax, (title, tasks) in zip(axes, panels):
        lines = defaultdict(dict)
        for x, *policies in rows:
            for p in policies:
                v, line = best(p, tasks), lines[family(p)]
                if v is not None:
                    line[x] = max(v, line.get(x, 0))
        for f, points in lines.items():
            colour = COLOURS.get(f)
            if points and not set(points) & set(at):
                ax.axhline(*points.values(), color=colour, ls="--", label=f)
            else:
                on = [i for i, x in enumerate(at) if x in points]
                ax.plot(on, [points[at[i]] for i in on], color=colour, marker="o", ms=4, label=f)
        ax.set_xticks(range(len(at)), at)
        ax.set_xlabel(head)
        ax.set_title(f"{title}, {length} tokens: exact answers, %", fontsize=9)
        ax.set_ylim(-3, 103)
        ax.grid(axis="y", alpha=.3)
    fig.legend(*axes[0].get_legend_handles_labels(), loc="lower center", ncols=4, frameon=False)
    fig.tight_layout(rect=(0, .13, 1, 1))
    fig.savefig(plot, metadata={"Date": None})
sys.exit(far > 0)
