"""Decode of Shoal and distributed-llama in turn on the simulated network (test/wire), as root.
Usage: wire.py --wire bin/wire --shoal bin/shoal --dllama PATH --models bin/peers, README.md.

Both sides run the same shape with 4-bit weights, one sequence, one thread a node. Each round
runs both sides of a row, one right after the other, in a different order every round. A row
with the same number of nodes and delay is one pair; ratios are of medians."""
import argparse, json, os, re, statistics, subprocess, sys, tempfile

SHAPES = {"160m": "bench160m.m", "1b": "llama-3.2-1b.m"}

# On the machine itself, inside `wire run`: workers on hosts w1, w2, ..., the root on w0.
DLLAMA = """
set -eu
nodes=$1 dllama=$2 model=$3 threads=$4
pids=
trap 'kill $pids 2>/dev/null || true' EXIT
workers=
for i in $(seq 1 $((nodes - 1))); do
  "$WIRE" exec "w$i" "$dllama" worker --host "10.77.1.$((i + 1))" --port 9990 --nthreads "$threads" >/dev/null 2>&1 &
  pids="$pids $!"
  workers="$workers 10.77.1.$((i + 1)):9990"
done
sleep 1
"$WIRE" exec w0 "$dllama" inference --model "$model" --tokenizer "$model.t" --buffer-float-type q80 --max-seq-len 4096 \\
  --prompt aaaaaaaaaaaaaaaa --steps 64 --temperature 0 --nthreads "$threads" --net-turbo "$5" --workers $workers
"""


def dllama(args, shape, nodes, delay, turbo):
    hosts = ", ".join(f"w{i}" for i in range(nodes))
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as f:
        f.write(f"mtu: 9000\nhost: {{rate: {args.rate}, delay: {delay / 2:g}us}}\nracks: {{w: [{hosts}]}}\n")
        f.flush()
        out = subprocess.run([args.wire, "run", f.name, "--", "bash", "-c", DLLAMA, "dllama", str(nodes), args.dllama, os.path.join(args.models, SHAPES[shape]), str(args.threads), turbo],
                             capture_output=True, text=True, errors="replace", timeout=args.limit)
    if out.returncode != 0:
        raise RuntimeError(f"dllama: status {out.returncode}: {out.stderr[-300:]}")
    return float(re.findall(r"tokens/s:\s*([\d.]+)", out.stdout)[-1])


def shoal(args, shape, nodes, delay):
    with tempfile.TemporaryDirectory() as out:
        done = subprocess.run([args.wire, "compare", f"shoal={args.shoal}", "--shapes", shape, "--nodes", str(nodes), "--delays", f"{delay}us", "--rates", args.rate, "--rows", "1", "--prompt", "0",
                               "--tokens", "48", "--rounds", "1", "--quant", "q4_0", "--threads", str(args.threads), "--kv-memory", "256MiB", "--out", out],
                              capture_output=True, text=True, timeout=args.limit)
        if done.returncode != 0:
            raise RuntimeError(f"shoal: status {done.returncode}: {done.stderr[-300:]}")
        with open(os.path.join(out, "wire.json")) as f:
            return next(c["tokens_per_s"] for c in json.load(f) if c["delay_ns"] == delay * 1000)


def main():
    p = argparse.ArgumentParser(description="Shoal and distributed-llama on a simulated network.")
    p.add_argument("--wire", required=True, help="the tool of test/wire")
    p.add_argument("--shoal", required=True)
    p.add_argument("--dllama", required=True)
    p.add_argument("--models", required=True, help="folder that models.py has filled")
    p.add_argument("--shapes", default="160m", help="of 160m, 1b")
    p.add_argument("--nodes", default="2,4")
    p.add_argument("--delays", default="100,250,1000", help="one way, in microseconds; 1 and more")
    p.add_argument("--rate", default="1gbit")
    p.add_argument("--threads", type=int, default=1, help="of each node")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--limit", type=float, default=300, help="seconds for one measurement")
    args = p.parse_args()
    for name in ("wire", "shoal", "dllama", "models"):
        setattr(args, name, os.path.abspath(getattr(args, name)))
    print("| shape | nodes | one way, us | Shoal, tokens/s | distributed-llama | ratio of medians |\n| --- | --- | --- | --- | --- | --- |")
    for shape in args.shapes.split(","):
        for nodes in map(int, args.nodes.split(",")):
            for delay in map(int, args.delays.split(",")):
                got = {"shoal": [], "dllama": []}
                for n in range(args.rounds):
                    for side in ("shoal", "dllama") if n % 2 == 0 else ("dllama", "shoal"):
                        figure = shoal(args, shape, nodes, delay) if side == "shoal" else max(dllama(args, shape, nodes, delay, turbo) for turbo in "01")
                        got[side].append(figure)
                        print(f"{shape} {nodes} nodes {delay} us: {side} {figure:.1f}", file=sys.stderr, flush=True)
                a, b = got["shoal"], got["dllama"]
                print(f"| {shape} | {nodes} | {delay} | {', '.join(f'{x:.1f}' for x in a)} | {', '.join(f'{x:.1f}' for x in b)} | {statistics.median(a) / statistics.median(b):.2f} |", flush=True)


if __name__ == "__main__":
    main()
