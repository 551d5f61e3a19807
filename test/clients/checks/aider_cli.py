"""aider: requests to the server. fry-tools cannot write code, so the content of its answers is not checked."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

from check import KEY, MODEL, URL, check, end


def aider(model, **env):
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "hello.py").write_text("print('hello')\n")
        pathlib.Path(folder, "settings.json").write_text(
            json.dumps({model: {"max_input_tokens": 8192, "max_output_tokens": 64, "litellm_provider": model.split("/")[0], "mode": "chat"}})
        )
        pathlib.Path(folder, "models.yml").write_text(f"- name: {model}\n  extra_params:\n    max_tokens: 64\n")
        log = pathlib.Path(folder, "chat.md")
        done = subprocess.run(
            [sys.executable, "-m", "aider", "--model", model, "--message", "Say hello.", "--no-git", "--yes-always", "--no-stream", "--edit-format", "ask",
             "--no-check-update", "--analytics-disable", "--no-show-model-warnings", "--no-auto-commits", "--map-tokens", "0", "--no-pretty", "--timeout", "60",
             "--model-metadata-file", "settings.json", "--model-settings-file", "models.yml", "--llm-history-file", str(log), "hello.py"],
            cwd=folder, env={**os.environ, "HOME": folder, **env}, capture_output=True, text=True, timeout=240, stdin=subprocess.DEVNULL,
        )
        said = done.stdout + done.stderr
        errors = [line for line in said.splitlines() if "litellm." in line or "Error" in line]
        assert done.returncode == 0 and not errors, (done.returncode, errors[:1])
        return "ASSISTANT" in log.read_text() or said[-300:]


for name, do in {
    "openai/": lambda: aider(f"openai/{MODEL}", OPENAI_API_BASE=URL + "/v1", OPENAI_API_KEY=KEY),
    "ollama_chat/": lambda: aider(f"ollama_chat/{MODEL}", OLLAMA_API_BASE=URL),
}.items():
    check("aider", "aider-chat", name, do)
end()
