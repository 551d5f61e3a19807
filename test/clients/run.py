#!/usr/bin/env python3
"""Runs the SDKs and programs that people use against `shoal up` with models/fry-tools,
and those of embeddings against tiny models of this repository.

    make clients                          all of them
    make clients ARGS='openai llm'        some
    make clients ARGS='--url http://...'  against a server that runs

Every client is installed in the version below, into a separate folder of $SHOAL_CLIENTS
(default ~/.cache/shoal/clients). The first run downloads about 2 GB.
A check verifies what a client returns and prints "ok" or "FAIL", the client, its version
and the check. The exit code is 0 if none failed. It needs Go, Python 3.10
or later with venv, and Node.js 20 or later with npm.
"""

import argparse
import contextlib
import hashlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CHECKS = HERE / "checks"
CACHE = pathlib.Path(os.environ.get("SHOAL_CLIENTS") or pathlib.Path.home() / ".cache/shoal/clients")

# name: packages of PyPI, script
PYTHON = {
    "openai": (["openai==3.57.0"], "openai_sdk.py"),
    "anthropic": (["anthropic==2.14.0"], "anthropic_sdk.py"),
    "ollama": (["ollama==0.6.3"], "ollama_sdk.py"),
    "litellm": (["litellm==1.110.2"], "litellm_sdk.py"),
    "langchain": (["langchain-openai==1.7.4", "langchain-anthropic==1.7.10", "langchain-ollama==1.1.0"], "langchain_sdk.py"),
    "instructor": (["instructor==1.17.0"], "instructor_sdk.py"),
    "pydantic-ai": (["pydantic-ai-slim[openai]==2.38.0"], "pydantic_ai_sdk.py"),
    "llm": (["llm==0.36"], "llm_cli.py"),
    "aider": (["aider-chat==0.86.2"], "aider_cli.py"),
    "embeddings": (["openai==3.57.0", "ollama==0.6.3", "cohere==7.3.1", "langchain-openai==1.7.4", "llama-index-embeddings-openai==0.7.0", "llama-index-embeddings-ollama==0.10.0"], "embeddings_sdk.py"),
    "mteb": (["mteb==2.26.24", "sentence-transformers==6.2.0"], "mteb_harness.py"),
}
BY_NAME = {"mteb"}  # run only if it is named: it installs 5 GB
# name: script; package.json lists the packages
NODE = {"ai-sdk": "ai_sdk.mjs", "openai-npm": "openai_sdk.mjs"}
# name: models that it needs instead of fry-tools, by the variable that has the URL of each
VECTORS = ROOT / "internal/engine/pooling/recipe/testdata"
OWN = {"embeddings": {"SHOAL_URL": VECTORS / "qwen3_embedding", "SHOAL_RERANK_URL": VECTORS / "qwen3_reranker"}, "mteb": {"SHOAL_URL": VECTORS / "qwen3_embedding"}}
TIMEOUT = 900  # seconds for the checks of one client


def installed(folder, what, words, install):
    """Runs install() unless it has already run for the same words."""
    stamp = folder / "installed"
    mark = hashlib.sha256("\n".join(words).encode()).hexdigest()
    if stamp.is_file() and stamp.read_text() == mark:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    print(f"installing {what}", flush=True)
    install()
    stamp.write_text(mark)


def quiet(*command, **more):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **more)
    if done.returncode != 0:
        raise RuntimeError((done.stderr or done.stdout).strip()[-400:])


def python_command(name):
    packages, script = PYTHON[name]
    folder = CACHE / name

    def install():
        quiet(sys.executable, "-m", "venv", str(folder))
        quiet(str(folder / "bin/pip"), "install", "-q", "--disable-pip-version-check", *packages)

    installed(folder, " ".join(packages), [*packages, sys.version.split()[0]], install)
    return [str(folder / "bin/python"), str(CHECKS / script)]


def node_command(name):
    folder = CACHE / "npm"
    manifest = (HERE / "package.json").read_text()

    def install():
        shutil.copy(HERE / "package.json", folder)
        quiet("npm", "install", "--no-audit", "--no-fund", cwd=folder)

    installed(folder, "the npm packages", [manifest], install)
    shutil.copytree(CHECKS, folder / "checks", dirs_exist_ok=True)  # Node.js looks for packages from a script's folder up
    return ["node", str(folder / "checks" / NODE[name])]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """`shoal up` with a model on a free port."""

    def __init__(self, model=ROOT / "models/fry-tools"):
        self.model = model

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="shoal-clients-")
        binary, log = pathlib.Path(self.folder.name, "shoal"), pathlib.Path(self.folder.name, "log")
        subprocess.run(["go", "build", "-o", str(binary), "./cmd/shoal"], cwd=ROOT, check=True)
        self.url = f"http://127.0.0.1:{free_port()}"
        with log.open("w") as out:
            self.process = subprocess.Popen(
                [str(binary), "up", "--nodes", "2", "--listen", self.url.removeprefix("http://"), "--kv-memory", "512MiB",
                 "--data-dir", str(pathlib.Path(self.folder.name, "data")), "-m", str(self.model)],
                stdout=out, stderr=subprocess.STDOUT, cwd=self.folder.name,
            )
        until = time.monotonic() + 180
        while True:
            try:
                with urllib.request.urlopen(self.url + "/ready", timeout=5):
                    return self.url
            except (urllib.error.URLError, OSError):
                if self.process.poll() is not None or time.monotonic() > until:
                    text = log.read_text()[-2000:]
                    self.__exit__()
                    raise RuntimeError(f"shoal up does not serve:\n{text}") from None
                time.sleep(0.2)

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.folder.cleanup()


def run(name, url):
    """Runs the checks of one client and returns whether all passed."""
    try:
        command = python_command(name) if name in PYTHON else node_command(name)
    except (RuntimeError, OSError) as e:
        print(f"FAIL {name} cannot be installed: {' '.join(str(e).split())}", flush=True)
        return False
    with contextlib.ExitStack() as servers:
        urls = {variable: servers.enter_context(Server(model)) for variable, model in OWN.get(name, {}).items()}
        return checks(name, command, {"SHOAL_URL": url, "SHOAL_MODELS": str(VECTORS), **urls})


def checks(name, command, variables):
    try:
        return subprocess.run(command, env={**os.environ, **variables, "PYTHONDONTWRITEBYTECODE": "1"}, stderr=subprocess.DEVNULL, timeout=TIMEOUT, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        print(f"FAIL {name} took more than {TIMEOUT} s", flush=True)
        return False


def main():
    names = [*PYTHON, *NODE]
    args = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    args.add_argument("clients", nargs="*", metavar="CLIENT", help=f"clients to run, of {', '.join(names)}; by default all but {', '.join(sorted(BY_NAME))}")
    args.add_argument("--url", help="a server that runs already and serves fry-tools")
    args = args.parse_args()
    if unknown := [c for c in args.clients if c not in names]:
        sys.exit(f"no client {unknown[0]}; there are {', '.join(names)}")
    chosen = args.clients or [n for n in names if n not in BY_NAME]
    if args.url:
        failed = [c for c in chosen if not run(c, args.url.rstrip("/"))]
    else:
        with Server() as url:
            failed = [c for c in chosen if not run(c, url)]
    print(f"{len(chosen) - len(failed)} of {len(chosen)} clients passed" + (f"; failed: {', '.join(failed)}" if failed else ""))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
