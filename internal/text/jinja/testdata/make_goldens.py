"""Renders every template with every chat, and the expressions of expressions.txt,
with Python's jinja2 set up as transformers sets it up, into goldens.json.

Usage: pip install jinja2==3.1.6 && python make_goldens.py
"""

import copy
import datetime
import json
import pathlib

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = pathlib.Path(__file__).parent
NOW = datetime.datetime(2026, 3, 4, 15, 6, 7, 89000)


class Generation(Extension):
    """{% generation %} marks what the model wrote; here its text is just printed."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller):
        return caller()


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise TemplateError(message)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


def render(env, source, variables):
    try:
        # A copy: the filter indent appends to a list that it is wrongly given.
        return {"text": env.from_string(source).render(**copy.deepcopy(variables))}
    except Exception as e:  # the Go side must fail too; the words may differ
        return {"error": f"{type(e).__name__}: {e}"}


def main():
    env = environment()
    chats = json.loads((HERE / "chats.json").read_text())
    out = {"renders": [], "expressions": []}
    for path in sorted((HERE / "templates").glob("*.jinja")):
        for name, chat in chats.items():
            variables = {"bos_token": "<s>", "eos_token": "</s>", **chat}
            out["renders"].append({"template": path.name, "chat": name, **render(env, path.read_text(), variables)})
    values = json.loads((HERE / "values.json").read_text())
    for block in (HERE / "expressions.txt").read_text().split("\n%%\n"):
        out["expressions"].append({"source": block, **render(env, block, values)})
    (HERE / "goldens.json").write_text(json.dumps(out, ensure_ascii=False, indent=1) + "\n")
    bad = sum("error" in e for e in out["expressions"])
    print(len(out["renders"]), "renders,", len(out["expressions"]), "expressions, of which", bad, "fail")


if __name__ == "__main__":
    main()
