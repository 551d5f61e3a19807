"""Sequences and tokens per second of one memory, full beside ShadowKV with files, by context: ShadowKV's table 3 in kind, as a Markdown
table and a plot. Usage: throughput.py SHOAL DISK OUT.svg [CONTEXT...]   (MODEL, FIT: the shape, and how many sequences full holds)
DISK: a folder for the files that is not there yet, with room for a few times what full holds."""
import json, os, subprocess, sys

shoal, disk, plot = sys.argv[1:4]
contexts = [int(x) for x in sys.argv[4:]] or [8192, 16384, 32768]
model, fit = os.environ.get("MODEL", "llama-3.2-1b"), os.environ.get("FIT", "2")
policies = {"full": "full", "ShadowKV, 1/32 read": "shadowkv:chunk=16,int8=1,budget={},outliers=6,local=2"}
rows = []
for n in contexts:
    command = [shoal, "lab", "batch", "--json", "-m", model, "--quant", "q8_0", "--kv-type", "bf16", "--filled", "--prompt", str(n), "--output", "24",
               "--fit", fit, "--kv-disk", disk, "--kv-disk-size", "200GiB"]
    for p in policies.values():
        command += ["--policy", p.format(n // 128)]
    rows.append(json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout))
    m = rows[-1]["machine"]
    print(f"{n}: done, {m['cpu']}, {m['cores']} cores, load {m['load_average']}", file=sys.stderr)

print("| tokens | caches in memory, MiB | full: sequences | tokens/s | ShadowKV: sequences | tokens/s | sequences | tokens/s, times |\n" + "|---" * 8 + "|")
for r in rows:
    a, b = r["policies"]
    print(f"| {r['prompt_tokens']} | {r['kv_memory_bytes'] / 2**20:.0f} | {a['max_sequences']} | {a['decode_tokens_per_s']:.1f} | {b['max_sequences']} | "
          f"{b['decode_tokens_per_s']:.1f} | {b['sequences_over_first']:.1f} x | {b['decode_over_first']:.2f} |")

import matplotlib
matplotlib.use("svg")
matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "shoal", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
import matplotlib.pyplot as plt
fig, axes = plt.subplots(1, 2, figsize=(9, 3.2))
for ax, key, title in zip(axes, ("max_sequences", "decode_tokens_per_s"), ("sequences at once", "tokens/s of all")):
    for i, (name, colour) in enumerate(zip(policies, ("#222222", "#009e73"))):
        bars = ax.bar([x + .4 * i for x in range(len(rows))], [r["policies"][i][key] for r in rows], .38, color=colour, label=name)
        ax.bar_label(bars, fmt="%.0f")
    ax.set_xticks([x + .2 for x in range(len(rows))], [r["prompt_tokens"] for r in rows])
    ax.set_xlabel("tokens of each sequence")
    ax.set_title(f"{rows[0]['model']}, memory of {fit} full caches: {title}", fontsize=9)
fig.legend(*axes[0].get_legend_handles_labels(), loc="lower center", ncols=2, frameon=False)
fig.tight_layout(rect=(0, .08, 1, 1))
fig.savefig(plot, metadata={"Date": None})
