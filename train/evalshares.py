"""Shoal's answers and the reference's at equal bytes read, as a Markdown table and a plot. Usage:
evalshares.py LENGTH SHARES results.jsonl OUT.svg|- pol.json [pol.json ...]
SHARES: lines of a share and its policies (accuracy.sh writes it). Each cell is the percent of whichever of the two has answered
more prompts, in brackets how far Shoal is from the reference on the prompts that both have. Exit 1 when a cell of eight samples and more is over a quarter off."""
import sys, json
from collections import defaultdict

EASY = ["passkey", "niah_single_noise", "niah_single_text", "niah_multikey", "chat_niah"]
NINE = EASY + ["niah_multiquery", "kv_json", "kv_hex", "vt"]
COLUMNS = {"easy": EASY, "multiquery": ["niah_multiquery"], "kv_json": ["kv_json"], "kv_hex": ["kv_hex"], "vt": ["vt"], "mean9": NINE,
           "multivalue": ["niah_multivalue"], "fwe": ["fwe"], "niah_second": ["niah_second"], "kv_second": ["kv_second"], "niah_all": ["niah_all"]}
COLOURS = {"full": "#222222", "streaming": "#7f7f7f", "snapstream": "#d55e00", "quest": "#0072b2", "shadowkv": "#009e73", "shadowkv low rank": "#8c6d00",
           "squeezed": "#cc79a7", "squeezed, two levels": "#e69f00"}

length, shares, results, plot = int(sys.argv[1]), [l.split() for l in open(sys.argv[2])], sys.argv[3], sys.argv[4]
ours, ref, read = defaultdict(dict), defaultdict(dict), defaultdict(list)
for r in (json.loads(l) for l in open(results) if l.endswith("\n")):
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


print("| share read | policy | " + " | ".join(COLUMNS) + " |\n" + "|---" * (len(COLUMNS) + 2) + "|")
same = total = far = 0
samples = set()
for share, *policies in shares:
    for p in policies:
        for t in NINE + ["niah_multivalue", "fwe", "niah_second", "kv_second", "niah_all"]:
            both = [(x, ref[p, t][i]) for i, x in ours[p, t].items() if i in ref[p, t]]
            samples |= {len(both)} - {0}
            same, total = same + sum(x == y for x, y in both), total + len(both)
            far += len(both) > 7 and abs(sum(x - y for x, y in both)) > len(both) / 4
        note = f" ({100 * sum(read[p]) / len(read[p]):.1f} % of the clustered keys)" if read[p] else ""
        print(f"| {share} | {p}{note} | " + " | ".join(cell(p, c) for c in COLUMNS.values()) + " |")
        share = ""
print(f"\n{length} tokens, samples a cell: {sorted({max(len(ours[k]), len(ref[k])) for k in list(ours) + list(ref)} - {0})}, with both answers: {sorted(samples)}; answers alike {same} of {total} ({100 * same / max(1, total):.2f}%); cells over a quarter off: {far}")

if plot != "-":
    W, H, out = 440, 300, []
    at = {s[0]: i for i, s in enumerate(s for s in shares[1:])}
    text = lambda x, y, s, **k: out.append(f'<text x="{x:.0f}" y="{y:.0f}" font-size="12" fill="#333" ' + " ".join(f'{a.replace("_", "-")}="{b}"' for a, b in k.items()) + f">{s}</text>")
    names = []
    for panel, (title, tasks) in enumerate([("nine tasks", NINE), ("a second question", ["niah_second", "kv_second"])]):
        X = lambda share: panel * W + 60 + at[share] * (W - 110) / max(1, len(at) - 1)
        Y = lambda v: H - 30 - v * (H - 80) / 100
        text(panel * W + 60, 30, f"{title}, {length} tokens: exact answers, %", font_weight="bold")
        for v in range(0, 101, 20):
            out.append(f'<path d="M{panel * W + 50} {Y(v):.1f}H{(panel + 1) * W - 40}" stroke="#ddd"/>')
            text(panel * W + 44, Y(v) + 4, v, text_anchor="end")
        for s in at:
            text(X(s), H - 10, s + " read", text_anchor="middle")
        lines = defaultdict(list)
        for s, *policies in shares[1:]:
            top = {}
            for p in policies:
                v = best(p, tasks)
                if v is not None:
                    top[family(p)] = max(v, top.get(family(p), 0))
            for f, v in top.items():
                lines[f].append((X(s), Y(v)))
        full = best("full", tasks)
        if full is not None:
            lines["full"] = [(X(s), Y(full)) for s in at]
        for f, points in lines.items():
            c = COLOURS.get(f, "#56b4e9")
            out.append(f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}" fill="none" stroke="{c}" stroke-width="2"/>')
            out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{c}"/>' for x, y in points]
        names = names or list(lines)
    for i, f in enumerate(names):
        x, y = 60 + i % 4 * 205, H + 15 + i // 4 * 20
        out.append(f'<path d="M{x} {y - 4}h22" stroke="{COLOURS.get(f, "#56b4e9")}" stroke-width="3"/>')
        text(x + 28, y, f)
    open(plot, "w").write(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * W} {H + 45}" font-family="system-ui, sans-serif"><rect width="100%" height="100%" fill="#fff"/>\n' + "\n".join(out) + "\n</svg>\n")
sys.exit(far > 0)
