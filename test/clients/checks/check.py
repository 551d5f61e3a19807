"""Functions that the checks of every Python client share: one line of output for each check, and the exit code."""

import importlib.metadata
import os
import sys

URL = os.environ["SHOAL_URL"]
MODEL = "fry-tools"
KEY = "none"  # the server requires no key; most clients do

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
QUESTION = "What is the weather in Oslo?"

failures = 0


def check(client, package, name, do):
    """Runs one check. It fails by an exception or by a value that is not None or True."""
    global failures
    try:
        got = do()
        reason = None if got is None or got is True else f"got {got!r}"
    except BaseException as e:  # a client may end the interpreter
        reason = f"{type(e).__name__}: {e}"
    version = importlib.metadata.version(package)
    if reason is None:
        print(f"ok   {client} {version} {name}", flush=True)
    else:
        failures += 1
        print(f"FAIL {client} {version} {name}: {' '.join(reason.split())[:300]}", flush=True)


def end():
    sys.exit(1 if failures else 0)
