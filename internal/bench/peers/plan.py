"""How often the planner's choice is the fastest one. Usage: plan.py SHOAL [--models fry,llama-3.2-1b] [--nodes 1,2,4,8] [--rows 1,16] [--context 128,4096] [--seconds 3600]

Decode over nodes of this machine as shoal up does it, which tries how many threads are best, and with each number in all steps,
and with the other mapping, in turn, everything else as planned; every run starts its own processes, and they share what was
measured. Rounds go on until the time is over. For each cell: tokens a second (medians over rounds) of the plan and of each other
choice, how many threads were chosen, and how many cells the plan was the fastest in, or within 5 %.
Contexts over 1024 have at most --deep rows. Every figure is kept as a line of JSON in --out."""
import argparse, json, statistics, subprocess, sys, time

a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
a.add_argument("shoal")
for flag, default in dict(models="fry,llama-3.2-1b", nodes="1,2,4,8", rows="1,16", context="128,4096", quant="q8_0", out="plan.jsonl").items():
    a.add_argument("--" + flag, default=default)
for flag, default in dict(tokens=48, deep=16, rounds=3, seconds=3600).items():
    a.add_argument("--" + flag, type=int, default=default)
a = a.parse_args()
ints = lambda s: [int(x) for x in s.split(",")]
began, out, rates, plans, chosen, longest, cores = time.time(), open(a.out, "w"), {}, {}, {}, 10, 1
left = lambda: a.seconds - (time.time() - began)

def run(model, nodes, more):
    """One cluster, all its cells: {(context, rows): figures}."""
    global longest, cores
    d, start = {}, time.time()
    groups = {}  # contexts that are read with the same numbers of rows share a cluster
    for c in ints(a.context):
        some = ",".join(str(r) for r in ints(a.rows) if c <= 1024 or r <= a.deep)
        groups.setdefault(some, []).append(str(c))
    for some, contexts in groups.items():
        if not some:
            continue
        args = [a.shoal, "lab", "cluster", "-m", model, "--quant", a.quant, "--nodes", str(nodes), "--tokens", str(a.tokens), "--json", "--batch", some, "--context", ",".join(contexts), *more]
        try:
            p = subprocess.run(args, capture_output=True, text=True, timeout=max(1, left() + 5))
        except subprocess.TimeoutExpired:
            return d
        text = p.stdout
        if p.returncode:
            print(f"{' '.join(args[1:])}: {p.stderr[-300:]}", flush=True)
        while text.strip():
            f, end = json.JSONDecoder().raw_decode(text.strip())
            text = text.strip()[end:]
            d[f["context"], f["batch"]], cores = f, f["machine"]["cores"]
            out.write(json.dumps(f | dict(planned=not more)) + "\n")
    out.flush()
    longest = max(longest, time.time() - start)
    return d

def note(model, nodes, choice, d):
    for cell, f in d.items():
        rates.setdefault((model, nodes, *cell), {}).setdefault(choice, []).append(f["tokens_per_s"])
        if choice == "plan":
            chosen.setdefault((model, nodes, *cell), []).append(f["threads"])

def others(nodes, mapping):
    """Of four processors or more a node leaves one to messages (topology.ThreadsOf)."""
    even = max(1, cores // nodes)
    counts = {max(1, even - (even >= 4)), (even + 1) // 2, max(1, even // 4)} if even > 1 else set()
    return [(mapping, t) for t in sorted(counts, reverse=True)] + [(m, 0) for m in ("gather", "reduce") if nodes > 1 and m != mapping]

def table():
    fastest = near = cells = 0
    for (model, nodes, context, rows), r in sorted(rates.items()):
        m = {c: statistics.median(x) for c, x in r.items()}
        if "plan" not in m:
            continue
        one = statistics.median(rates.get((model, 1, context, rows), {}).get("plan", [0]))
        threads = ",".join(map(str, chosen[model, nodes, context, rows]))
        line = f"{model:12} {nodes:2} nodes {context:5} {rows:2} rows  {plans[model, nodes]:6} x {threads:8} {m['plan']:7.1f}  of one node {m['plan'] / one if one else 0:4.2f} |"
        rest = [x for c, x in m.items() if c != "plan"]
        print(line + "".join(f"  {c[0]} x {c[1] or 'chosen'} {x:.1f}" for c, x in m.items() if c != "plan"))
        if rest:
            cells += 1
            fastest += m["plan"] >= max(rest)
            near += m["plan"] >= 0.95 * max(rest)
    print(f"the plan is the fastest in {fastest} of {cells} cells, or within 5 % in {near}; {time.time() - began:.0f} s", flush=True)

for round in range(a.rounds):
    for model in a.models.split(","):
        for nodes in ints(a.nodes):
            if left() < longest:
                break
            d = run(model, nodes, [])
            for f in d.values():
                plans[model, nodes] = f["mapping"]
            note(model, nodes, "plan", d)
            if (model, nodes) not in plans:
                continue
            for mapping, threads in others(nodes, plans[model, nodes])[:: 1 - 2 * (round % 2)]:
                if left() > longest:
                    note(model, nodes, (mapping, threads), run(model, nodes, (["--threads", str(threads)] if threads else []) + (["--mapping", mapping] if nodes > 1 else [])))
    table()
    if left() < longest:
        break
