"""Decode and prefill of Shoal and of other programs in turn on this machine, as a table
beside what is asked. Usage: pairs.py --help, README.md.

A measurement is one process (or the processes of one cluster). In every round each row
runs both sides, one right after the other, first the one that was second before: what a
machine's memory gives moves from minute to minute, and the pairs move with it. Ratios
are of medians. Beside each figure stands how much of all cores other processes took."""
import argparse, json, os, re, resource, socket, statistics, subprocess, sys, time


class Rig:
    """Runs programs, and knows what else the machine did meanwhile."""

    def __init__(self, args):
        self.args, self.end = args, time.monotonic() + args.seconds

    def left(self):
        return self.end - time.monotonic()

    def run(self, command):
        """Output of a command that may take what is left of the time."""
        p = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=max(1, self.left()))
        if p.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: status {p.returncode}: {p.stderr[-300:] or p.stdout[-300:]}")
        return p.stdout

    def shoal(self, what, *flags):
        out = json.loads(self.run([self.args.shoal, "lab", what, "--json", *map(str, flags)]))
        return out["tokens_per_s"] if what == "cluster" else out["mean_tokens_per_s"]

    def model(self, name):
        return os.path.join(self.args.models, name)


def processor_time():
    """All that all processes took, and the machine's time, in ticks of all cores."""
    with open("/proc/stat") as f:
        user, nice, system, idle, wait, irq, soft, steal = map(int, f.readline().split()[1:9])
    return user + nice + system + irq + soft, user + nice + system + idle + wait + irq + soft + steal


def own_time():
    r = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (r.ru_utime + r.ru_stime) * os.sysconf("SC_CLK_TCK")


def measured(measure):
    """A figure, and the share of all cores that others took meanwhile."""
    (busy, total), own = processor_time(), own_time()
    figure = measure()
    (busy2, total2), own2 = processor_time(), own_time()
    return figure, max(0, busy2 - busy - (own2 - own)) / max(1, total2 - total)


# Ours: decode and prefill of one socket in this process, or a cluster of node processes.

def decode(model, quant, *more):
    return lambda rig: rig.shoal("decode", "-m", model, "--quant", quant, "--threads", rig.args.threads, *more)


def prefill(model, quant, length):
    return lambda rig: rig.shoal("prefill", "-m", model, "--quant", quant, "--threads", rig.args.threads, "--context", length, "--chunk", length, "--repeat", 2)


def cluster(model, nodes, batch=1):
    tokens = 64 if batch == 1 else 16
    return lambda rig: rig.shoal("cluster", "-m", model, "--quant", "q4_0", "--nodes", nodes, "--batch", batch, "--tokens", tokens, "--limit", "60s")


# Theirs.

def llama_bench(program, model, *flags):
    """llama-bench of llama.cpp or ik_llama.cpp, tokens/s."""
    def measure(rig):
        out = rig.run([getattr(rig.args, program), "-m", rig.model(model), "-t", str(rig.args.threads), "-r", "1", "-o", "json", *flags])
        return json.loads(out[out.index("["):])[-1]["avg_ts"]
    return measure


def ik_bench(model, *flags):
    """llama-bench of ik_llama.cpp with its weights repacked (-rtr)."""
    return llama_bench("ik", model, "-rtr", "1", *flags)


def people_run(name, shape, quant):
    """Rows of a model that people run, decode and prefill; its file is made by its name (models.py)."""
    file = f"{shape}-{quant.removesuffix('_0')}.gguf"
    return [(f"{name} {quant.upper()}, decode, llama.cpp", decode(shape, quant, "--tokens", 48), "bench", llama_bench("bench", file, "-p", "0", "-n", "48"), None),
            (f"{name} {quant.upper()}, prefill 512, llama.cpp", prefill(shape, quant, 512), "bench", llama_bench("bench", file, "-p", "512", "-n", "0"), None)]


def best(*ways):
    """The better of several settings of a peer counts."""
    return lambda rig: max(way(rig) for way in ways)


def batched(program, model, prompt, tokens, sequences, *more):
    """llama-batched-bench of llama.cpp or ik_llama.cpp, tokens/s of all sequences together."""
    def measure(rig):
        room = sequences * (prompt + tokens) + prompt if more else sequences * (prompt + tokens)
        command = [getattr(rig.args, program), "-m", rig.model(model), "-t", str(rig.args.threads), "-tb", str(rig.args.threads), "-c", str(room + 512),
                   "-b", "2048", "-ub", "512", "-npp", str(prompt), "-ntg", str(tokens), "-npl", str(sequences), "-fa", "off", *more]
        for _ in range(3):  # its last line is lost when it ends before its log is written
            rows = [[x.strip() for x in line.strip("|").split("|")] for line in rig.run(command).splitlines() if line.startswith("|")]
            if len(rows) > 2:  # names, a line, figures
                return float(rows[2][rows[0].index("S_TG t/s")])
        raise ValueError("it printed no figures")
    return measure


def dllama(model, nodes, *more):
    """distributed-llama's own figure of decode after a prompt of 127 tokens."""
    def measure(rig):
        threads = rig.args.threads if nodes == 1 else 1
        common = ["--nthreads", str(threads), *more]
        ports, workers = free_ports(nodes - 1), []
        try:
            for port in ports:
                workers.append(subprocess.Popen([rig.args.dllama, "worker", "--host", "127.0.0.1", "--port", str(port), *common],
                                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            time.sleep(1 if workers else 0)  # they say nothing when they listen, and take one connection
            out = rig.run([rig.args.dllama, "inference", "--model", rig.model(model), "--tokenizer", rig.model(model + ".t"), "--buffer-float-type", "q80",
                           "--max-seq-len", "4096", "--prompt", "a" * 127, "--steps", "192", "--temperature", "0", *common,
                           *(["--workers"] + [f"127.0.0.1:{p}" for p in ports] if ports else [])])
        finally:
            for w in workers:
                w.kill()
            for w in workers:
                w.wait()
        return float(re.findall(r"tokens/s:\s*([\d.]+)", out)[-1])
    return measure


def free_ports(n):
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [s.getsockname()[1] for s in held]
    for s in held:
        s.close()
    return ports


SMALL, LARGE, TURBO = "bench160m", "llama-3.2-1b", ("--net-turbo", "0")

# name, ours, program of the peer, theirs, ratio asked (None: nothing)
PAIRS = [
    ("1B Q8_0, decode", decode(LARGE, "q8_0", "--tokens", 48), "ik", ik_bench(f"{LARGE}-q8.gguf", "-p", "0", "-n", "48"), 1.25),
    ("1B Q4_0, decode", decode(LARGE, "q4_0", "--tokens", 48), "ik", ik_bench(f"{LARGE}-q4.gguf", "-p", "0", "-n", "48"), 1.6),
    ("1B Q8_0, prefill 512", prefill(LARGE, "q8_0", 512), "ik", ik_bench(f"{LARGE}-q8.gguf", "-p", "512", "-n", "0"), 1.7),
    ("1B Q8_0, decode at 4096", decode(LARGE, "q8_0", "--context", 4096, "--tokens", 16), "ik",
     ik_bench(f"{LARGE}-q8.gguf", "-p", "0", "-n", "0", "-gp", "4096,24", "-fa", "1"), 1.3),
    ("160M Q8_0, decode", decode(SMALL, "q8_0", "--tokens", 64), "ik", ik_bench(f"{SMALL}-q8.gguf", "-p", "0", "-n", "64"), None),
    ("160M Q8_0, decode at 4096", decode(SMALL, "q8_0", "--context", 4096, "--tokens", 32), "ik",
     best(*[ik_bench(f"{SMALL}-q8.gguf", "-p", "0", "-n", "0", "-gp", "4096,32", "-fa", fa) for fa in "01"]), 1.6),
    ("160M Q8_0, 16 sequences of 512", decode(SMALL, "q8_0", "--context", 512, "--batch", 16, "--tokens", 24), "llama",
     batched("llama", f"{SMALL}-q8.gguf", 512, 16, 16), 5),
    ("160M Q8_0, 32 sequences of 4096", decode(SMALL, "q8_0", "--context", 4096, "--batch", 32, "--tokens", 6), "llama",
     batched("llama", f"{SMALL}-q8.gguf", 4096, 4, 32, "-pps"), 8),
    ("1B Q4_0, 2 nodes", cluster(LARGE, 2), "dllama", dllama(f"{LARGE}.m", 2), 2.5),
    ("1B Q4_0, 4 nodes", cluster(LARGE, 4), "dllama", dllama(f"{LARGE}.m", 4, *TURBO), 2),
    ("160M Q4_0, 1 node", cluster(SMALL, 1), "dllama", dllama(f"{SMALL}.m", 1), None),
    ("160M Q4_0, 2 nodes", cluster(SMALL, 2), "dllama", best(dllama(f"{SMALL}.m", 2), dllama(f"{SMALL}.m", 2, *TURBO)), 2.5),
    ("160M Q4_0, 4 nodes", cluster(SMALL, 4), "dllama", dllama(f"{SMALL}.m", 4, *TURBO), 2),
    ("160M Q4_0, 16 streams over 2 nodes, theirs one", cluster(SMALL, 2, 16), "dllama", dllama(f"{SMALL}.m", 2), 10),
    ("160M Q4_0, 16 streams over 4 nodes, theirs one", cluster(SMALL, 4, 16), "dllama", dllama(f"{SMALL}.m", 4, *TURBO), 10),
    *people_run("1B", LARGE, "q8_0"), *people_run("8B", "llama-3.1-8b", "q4_0"), *people_run("8B", "llama-3.1-8b", "q8_0"),
    *people_run("30B A3B", "qwen3-30b-a3b", "q4_0"), *people_run("Gemma 4 26B A4B", "gemma-4-26b-a4b", "q4_0"),
    *people_run("Qwen3.5 35B A3B", "qwen3.5-35b-a3b", "q4_0"), *people_run("gpt-oss 20B", "gpt-oss-20b", "q8_0"), *people_run("gpt-oss 20B", "gpt-oss-20b", "mxfp4"),
]

PROGRAMS = {"ik": "ik_llama.cpp", "llama": "llama.cpp", "bench": "llama.cpp", "dllama": "distributed-llama"}


def parse():
    p = argparse.ArgumentParser(description="Pairs of Shoal and other programs, in turn.")
    p.add_argument("--shoal", required=True, help="our binary")
    p.add_argument("--models", required=True, help="folder that models.py has filled")
    p.add_argument("--ik", help="llama-bench of ik_llama.cpp")
    p.add_argument("--llama", help="llama-batched-bench of llama.cpp")
    p.add_argument("--bench", metavar="PATH", help="llama-bench of llama.cpp: rows of models that people run")
    p.add_argument("--dllama", help="dllama of distributed-llama")
    p.add_argument("--only", default="", help="rows whose name matches this pattern")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--seconds", type=float, default=3600, help="no measurement begins after this, and none goes on")
    return p.parse_args()


def main():
    args = parse()
    rows = [row for row in PAIRS if getattr(args, row[2]) and re.search(args.only, row[0])]
    if not rows:
        sys.exit("no row: name the binary of a peer (--ik, --llama, --dllama), and rows that there are (--only)")
    rig, got = Rig(args), {row[0]: [] for row in rows}
    for n in range(args.rounds):
        for row in rows:
            if rig.left() <= 0:
                print("the time is over", file=sys.stderr)
                break
            try:
                got[row[0]].append(pair(rig, row, n % 2 == 1))
            except (subprocess.TimeoutExpired, RuntimeError, ValueError, LookupError) as e:
                print(f"{row[0]}: no pair: {e}", file=sys.stderr)
    print(table(rows, got))


def pair(rig, row, theirs_first):
    """Both sides of a row, one right after the other: (figure, others' share) of ours, of theirs."""
    name, ours, program, theirs, _ = row
    out = [None, None]
    for side in (1, 0) if theirs_first else (0, 1):
        out[side] = figure, others = measured(lambda: (ours, theirs)[side](rig))
        print(f"{name}: {('shoal', PROGRAMS[program])[side]} {figure:.1f} tokens/s, others {others:.0%}", file=sys.stderr, flush=True)
    return out


def table(rows, got):
    """Markdown: all figures of both sides in the order of the rounds, the ratio of medians."""
    out = ["| tokens/s | ours | peer | ratio of medians | asked | others took, at most |", "| --- | --- | --- | --- | --- | --- |"]
    for name, _, program, _, asked in rows:
        if not got[name]:
            out.append(f"| {name} | | {PROGRAMS[program]} | not run | {asked or 'not asked'} | |")
            continue
        a, b = zip(*got[name])
        ratio = statistics.median(x for x, _ in a) / statistics.median(x for x, _ in b)
        figures = [", ".join(f"{x:.1f}" for x, _ in side) for side in (a, b)]
        out.append(f"| {name} | {figures[0]} | {PROGRAMS[program]} {figures[1]} | {ratio:.2f} | {asked or 'not asked'} | {max(o for _, o in a + b):.0%} |")
    return "\n".join(out)


if __name__ == "__main__":
    main()
