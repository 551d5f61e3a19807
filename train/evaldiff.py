"""Shoal's answers beside the reference's, cell by cell. Usage: evaldiff.py results.jsonl pol.json [pol.json ...]
results.jsonl is of `shoal lab ruler -o DIR --prompts FILE`, pol.json of evalpol.py on the same FILE. Only samples that
both have answered count. Exit 1 when a cell is more than 5 points off."""
import sys, json
from collections import defaultdict

OURS = {"stream": "streaming", "snapstream_r64": "snapstream", "snapstream_w32_r64": "snapstream_w32", "snapstream_p15_r64": "snapstream_p15"}
TASKS = ["passkey", "niah_single_noise", "niah_single_text", "niah_multikey", "niah_multiquery", "kv_json", "kv_hex", "vt", "chat_niah", "niah_multivalue", "fwe", "niah_second", "kv_second", "niah_all"]

ours, ref = defaultdict(dict), defaultdict(dict)
for line in open(sys.argv[1]):
    r = json.loads(line)
    ours[r["policy"], r["task"]][r["index"]] = int(r["exact"])
for path in sys.argv[2:]:
    for key, policies in json.load(open(path)).items():
        for name, (_, _, hits) in policies.items():
            family, _, budget = name.partition("/")
            ref[OURS.get(family, family) + ("/" + budget if budget else ""), key.split("@")[0]] = dict(enumerate(hits))
names = list(dict.fromkeys(p for p, _ in ours))
print("| policy | " + " | ".join(TASKS[:9]) + " | mean9 | " + " | ".join(TASKS[9:]) + " |")
print("|---" * (len(TASKS) + 2) + "|")
same = total = far = 0
counts = set()
for p in names:
    cells, mine, its = {}, {}, {}
    for t in TASKS:
        both = sorted(set(ours[p, t]) & set(ref[p, t]))
        counts.add(len(both))
        if not both:
            cells[t] = "-"
            continue
        a, b = [ours[p, t][i] for i in both], [ref[p, t][i] for i in both]
        mine[t], its[t] = 100 * sum(a) / len(both), 100 * sum(b) / len(both)
        cells[t] = f"{mine[t]:.0f} ({mine[t] - its[t]:+.0f})" if mine[t] != its[t] else f"{mine[t]:.0f}"
        same, total, far = same + sum(x == y for x, y in zip(a, b)), total + len(both), far + (abs(mine[t] - its[t]) > 5)
    nine = [t for t in TASKS[:9] if t in mine]
    mean = lambda v: sum(v[t] for t in nine) / max(1, len(nine))
    print(f"| {p} | " + " | ".join(cells[t] for t in TASKS[:9]) + f" | {mean(mine):.1f} ({mean(mine) - mean(its):+.1f}) | " + " | ".join(cells[t] for t in TASKS[9:]) + " |")
print(f"\nsamples a cell: {sorted(counts)}; answers alike {same} of {total} ({100 * same / max(1, total):.2f}%); cells more than 5 points off: {far}")
sys.exit(far > 0)
