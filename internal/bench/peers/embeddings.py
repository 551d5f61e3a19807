"""Embeddings of texts of 512 tokens: Shoal and llama.cpp's server in turn on this machine.
Usage: embeddings.py --shoal PATH --llama PATH/llama-server MODEL.gguf

Both read the same GGUF file with the same threads and get the same lists of token ids by
/v1/embeddings. A row has the tokens/s and the CPU seconds of the server's processes for 1,000
tokens. On a shared machine only the CPU time compares."""
import argparse, json, os, random, signal, socket, statistics, subprocess, tempfile, time, urllib.error, urllib.request

TOKENS = 512  # of a text


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def processes(root):
    """The process and its descendants."""
    out = [root]
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as f:
                parent = int(f.read().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
        if parent == root:
            out += processes(int(pid))
    return out


def cpu_seconds(root):
    ticks = 0
    for pid in processes(root):
        with open(f"/proc/{pid}/stat") as f:
            ticks += sum(map(int, f.read().rsplit(")", 1)[1].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


class Server:
    def __init__(self, name, command, port, seconds=300):
        self.name, self.url = name, f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + seconds
        while True:
            try:
                with urllib.request.urlopen(self.url + "/health", timeout=5):
                    return
            except (urllib.error.URLError, OSError):
                if self.process.poll() is not None or time.monotonic() > end:
                    self.stop()
                    raise RuntimeError(f"{name} does not serve: {' '.join(command)}") from None
                time.sleep(0.2)

    def embed(self, texts):
        """Wall and CPU seconds of one request."""
        request = urllib.request.Request(self.url + "/v1/embeddings", json.dumps({"input": texts, "cache": False}).encode(), {"Content-Type": "application/json"})
        cpu, began = cpu_seconds(self.process.pid), time.monotonic()
        try:
            answer = urllib.request.urlopen(request, timeout=3600)
        except urllib.error.HTTPError as e:
            raise RuntimeError(f"{self.name}: status {e.code}: {e.read()[:300]}") from None
        with answer:
            got = len(json.load(answer)["data"])
        if got != len(texts):
            raise RuntimeError(f"{self.name} gave {got} vectors for {len(texts)} texts")
        return time.monotonic() - began, cpu_seconds(self.process.pid) - cpu

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", help="a GGUF file, or for Shoal alone a folder")
    p.add_argument("--shoal", required=True, help="the shoal binary")
    p.add_argument("--llama", help="llama.cpp's llama-server")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--texts", type=int, default=16, help="of a request (default 16)")
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--pooling", default="last")
    p.add_argument("--vocabulary", type=int, default=10000, help="token ids are random below this (default 10000)")
    a = p.parse_args()
    port, other = free_port(), free_port()
    folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    data = folder.name
    servers = [Server("Shoal", [a.shoal, "up", "--nodes", "1", "--threads", str(a.threads), "--pooling", a.pooling, "--listen", f"127.0.0.1:{port}", "--data-dir", data, "-m", a.model], port)]
    try:
        if a.llama:
            servers.append(Server("llama.cpp", [a.llama, "-m", a.model, "--embeddings", "--pooling", a.pooling, "-t", str(a.threads), "-tb", str(a.threads),
                                                "-c", str(TOKENS * 16), "-np", "8", "-b", str(TOKENS * 8), "-ub", str(TOKENS * 4), "--port", str(other)], other))
        times = {s.name: [] for s in servers}
        random.seed(1)
        for round in range(a.rounds + 1):
            texts = [[random.randrange(100, a.vocabulary) for _ in range(TOKENS)] for _ in range(a.texts)]
            for s in servers if round % 2 else servers[::-1]:
                took = s.embed(texts)
                if round:  # the first warms up
                    times[s.name].append(took)
        tokens = TOKENS * a.texts
        print("| program | tokens/s | CPU s for 1,000 tokens |\n| --- | --- | --- |")
        cpu = {}
        for name, list in times.items():
            cpu[name] = statistics.median(c for _, c in list) * 1000 / tokens
            print(f"| {name} | {tokens / statistics.median(w for w, _ in list):.0f} | {cpu[name]:.4f} |")
        if a.llama:
            print(f"CPU time of llama.cpp / Shoal: {cpu['llama.cpp'] / cpu['Shoal']:.2f}")
    finally:
        for s in servers:
            s.stop()


main()
