"""Simon Willison's llm, by its command line and a model of extra-openai-models.yaml."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

from check import MODEL, QUESTION, URL, check, end

FUNCTIONS = '''
def get_weather(city: str) -> str:
    "The weather in a city."
    return '{"sky": "rain", "degrees": 3}'
'''


def llm(*words):
    with tempfile.TemporaryDirectory() as home:
        pathlib.Path(home, "extra-openai-models.yaml").write_text(
            f"- model_id: shoal\n  model_name: {MODEL}\n  api_base: {URL}/v1\n  supports_tools: true\n  supports_schema: true\n"
        )
        env = {**os.environ, "LLM_USER_PATH": home, "OPENAI_API_KEY": "none"}
        done = subprocess.run(
            [sys.executable, "-m", "llm", "-m", "shoal", "--no-log", *words], env=env, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


def prompt():
    return bool(llm("Say hello.", "-o", "max_tokens", "16").strip())


def whole():
    return bool(llm("Say hello.", "--no-stream", "-o", "max_tokens", "16").strip())


def functions():
    return "rain" in llm(QUESTION, "--functions", FUNCTIONS, "-o", "temperature", "0")


def schema():
    got = json.loads(llm("John is 30 years old.", "--schema", "name,age int"))
    return isinstance(got["name"], str) and isinstance(got["age"], int) and len(got) == 2


for name, do in [("prompt", prompt), ("prompt, not streamed", whole), ("--functions", functions), ("--schema", schema)]:
    check("llm", "llm", name, do)
end()
