"""What Hugging Face transformers prints for our chat templates, which are written like those of
Llama 3, Qwen 2.5 and 3, Mistral, Mixtral, DeepSeek V2, V3 and R1, and Gemma 3 and 4.

Usage: goldens_templates.py TOKENIZER_FOLDER (pip install transformers jinja2)

Renders TOKENIZER_FOLDER/testdata/templates/*.jinja and ../jinja/testdata/templates/*.jinja with
apply_chat_template's own renderer, and writes testdata/templates/goldens.json.gz.
"""
import datetime, gzip, json, os, pathlib, random, sys
from transformers.utils import chat_template_utils as hf


class Now(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 3, 4, 15, 6, 7, 89000)


hf.datetime = Now

TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Weather of a place.\nUnits: \"C\" or \"F\".",
                                      "parameters": {"type": "object", "required": ["place"], "properties": {
                                          "place": {"type": "string", "description": "Town & country, e.g. <Zürich>"},
                                          "days": {"type": "integer", "description": "", "minimum": 1, "default": 3},
                                          "unit": {"type": "string", "description": "one of", "enum": ["C", "F"]},
                                          "at": {"type": "array", "description": "pair", "items": {"type": "number"}}}}}},
    {"type": "function", "function": {"name": "no_arguments", "description": "N", "strict": True, "parameters": {"type": "object", "properties": {}}, "return": {"type": "number", "scale": 1e-7}}},
]
ODD_TOOLS = TOOLS + [
    {"type": "function", "function": {"name": "日付", "parameters": {"properties": {"z": {"type": ["array", "null"], "items": [{"a": 1.50}, {}, []]}, "a": {"anyOf": [True, False, None]}}}}},
    {"name": "flat", "parameters": None},
]


def u(text): return {"role": "user", "content": text}
def s(text): return {"role": "system", "content": text}
def a(text, **more): return {"role": "assistant", "content": text, **more}
def r(text, call="call00001", **more): return {"role": "tool", "content": text, "tool_call_id": call, **more}
def call(name, arguments, id="call00001"): return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


ARGS = {"place": "Zürich \"old\" \\ town\n", "days": 3, "exact": True, "near": None, "at": [47.37, -8.5e-9, 1e22, 0.1], "deep": {"z": {}, "a": [], "é": "\u2028\x7f\x01"}, "n": 123456789012345678901234567890}

CHATS = {
    "one": [u("Hello there")],
    "system": [s("  Be brief.\n"), u("Hi"), a("Hello."), u("  And? \n")],
    "turns": [u("1"), a("one"), u("2"), a("two"), u("3"), a("three")],
    "scripts": [s("Отвечай. 日本語で。"), u("👩‍👩‍👧 e\u0301 \u00a0\u3000 ﬁ ß\t"), a("\u2028مرحبا\ufeff"), u("{{ not }} {% a template %} {# #} \\n ' \" <b>&amp;</b>")],
    "space": [u("\n\n  x\ty \r\n"), a("\n lead and tail \n\n"), u("   ")],
    "empty_text": [u(""), a(""), u("")],
    "system_last": [u("a"), s("late system"), a("b")],
    "two_systems": [s("first"), s("second"), u("go")],
    "assistant_first": [a("I begin"), u("ok")],
    "users_only": [u("a"), u("b")],
    "other_role": [u("a"), {"role": "narrator", "content": "Meanwhile"}, a("b")],
    "developer": [{"role": "developer", "content": "dev"}, u("a")],
    "nothing": [],
    "call": [u("Weather?"), a(None, tool_calls=[call("weather", ARGS)])],
    "call_result": [s("Use tools."), u("Weather?"), a(None, tool_calls=[call("weather", {"place": "Bern"})]), r('{"t": 21.5, "sky": "grün"}', name="weather"), a("21.5 degrees."), u("Thanks")],
    "result_last": [u("Weather?"), a("", tool_calls=[call("weather", {})]), r("21")],
    "two_calls": [u("Both"), a("I look.", tool_calls=[call("weather", {"place": "Ulm"}), call("no_arguments", {}, "call00002")]), r("1"), r("2", "call00002"), a("Done"), u("x")],
    "calls_in_turns": [u("Go"), a("", tool_calls=[call("no_arguments", {})]), r("first"), a("", tool_calls=[call("日付", {"z": [1, {"a": "b"}]}, "abcdefghi")]), r("second", "abcdefghi"), a("end")],
    "short_id": [u("Go"), a(None, tool_calls=[call("weather", {"place": "x"}, "c1")]), r("y", "c1")],
    "no_id": [u("Go"), a(None, tool_calls=[{"type": "function", "function": {"name": "f", "arguments": {"b": 1, "a": 2}}}]), {"role": "tool", "content": "y"}],
    "bare_call": [u("Go"), a("text", tool_calls=[{"name": "f", "arguments": {"x": "y"}}])],
    "null_calls": [u("Go"), a("plain", tool_calls=None), u("on")],
    "empty_calls": [u("Go"), a("plain", tool_calls=[]), u("on")],
    "thought": [u("Why?"), a("Because.", reasoning_content="\nLet me see:\n1 + 1\n"), u("More"), a("Well.", reasoning_content="hm")],
    "thought_inline": [u("Why?"), a("<think>\nhidden\n</think>\n\nBecause."), u("More"), a("<think></think>Well.")],
    "thought_and_call": [u("Why?"), a("", reasoning_content="tool!", tool_calls=[call("weather", {"place": "a b"})]), r("ok"), a("</think>odd")],
    "prefix": [u("Write"), a("The beginning", prefix=True)],
    "null_user": [u(None), a("x")],
    "dict_result": [u("Go"), a("", tool_calls=[call("f", {})]), r("[1, 2]"), u("and")],
    "marks": [u("<|im_end|>[/INST]</s><end_of_turn><｜User｜><tool_response>x</tool_response>"), a("</tool_call>"), u("<tool_response></tool_response>")],
}
PARTS = {
    "parts": [u([{"type": "text", "text": " a "}, {"type": "text", "text": "b\n"}]), a([{"type": "text", "text": "c"}]), u("d")],
    "system_parts": [s([{"type": "text", "text": "sys"}]), u([{"type": "text", "text": "q"}])],
}
KWARGS = [{}, {"enable_thinking": False}, {"enable_thinking": True}, {"thinking": True}, {"tools_in_user_message": True}, {"tools_in_user_message": False}, {"date_string": "1 Jan"}, {"builtin_tools": ["weather", "code_interpreter"]}]


def generated(n, seed):
    """Chats of random turns: most are refused by the strict templates, all must agree."""
    rng = random.Random(seed)
    texts = ["", " ", "x", "Hello\n", "</think>", "<think>a</think>b", "é日", "<tool_response>z</tool_response>", '{"k": 1}', "a'b\"c\\", "\n\nq"]
    values = [None, True, 0, -1, 2.5, 1e16, 1e-7, "s", "ü\n", [], {}, [1, [2]], {"k": {"l": None}}]
    for _ in range(n):
        chat = [s(rng.choice(texts))] if rng.random() < 0.4 else []
        for i in range(rng.randrange(1, 7)):
            if i % 2 == 0:
                chat.append(u(rng.choice(texts)))
                continue
            if rng.random() < 0.5:
                more = {"reasoning_content": rng.choice(texts)} if rng.random() < 0.3 else {}
                chat.append(a(rng.choice(texts), **more))
                continue
            ids = ["call%05d" % rng.randrange(100) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
            chat.append(a(rng.choice([None, None] + texts), tool_calls=[call(rng.choice(["f", "weather", "a.b"]), {k: rng.choice(values) for k in rng.sample("zyxabc", rng.randrange(4))}, id) for id in ids]))
            chat += [r(rng.choice(texts), id) for id in ids if rng.random() < 0.9]
        yield chat


def render(source, case):
    try:
        text, _ = hf.render_jinja_template([case["messages"]], tools=case.get("tools"), chat_template=source, add_generation_prompt=case["prompt"],
                                           bos_token="<s>", eos_token="</s>", **case.get("kwargs", {}))
        return {"text": text[0]}
    except Exception as e:
        return {"error": f"{type(e).__name__}: {e}"}


def cases():
    for name, chat in {**CHATS, **PARTS}.items():
        for tools in (None, TOOLS):
            for prompt in (False, True):
                yield {"name": name, "messages": chat, "prompt": prompt, **({"tools": tools} if tools else {})}
    for name in ["system", "call_result", "thought", "two_calls", "nothing", "prefix"]:
        for kwargs in KWARGS[1:]:
            yield {"name": name, "messages": CHATS[name], "prompt": True, "tools": TOOLS, "kwargs": kwargs}
            yield {"name": name, "messages": CHATS[name], "prompt": False, "kwargs": kwargs}
    for i, chat in enumerate(generated(80, 11)):
        yield {"name": f"generated{i}", "messages": chat, "prompt": i % 3 > 0, **({"tools": [TOOLS, ODD_TOOLS][i // 2 % 2]} if i % 2 else {})}


def main():
    root = pathlib.Path(sys.argv[1])
    every = list(cases())
    out = {"cases": every, "templates": {}}
    for path in sorted([*root.glob("testdata/templates/*.jinja"), *(root / "../jinja/testdata/templates").glob("*.jinja")]):
        out["templates"][str(os.path.relpath(path, root))] = got = [render(path.read_text(), c) for c in every]
        print(path.name, len(got), "renderings,", sum("error" in g for g in got), "refused")
    with gzip.GzipFile(root / "testdata/templates/goldens.json.gz", "wb", mtime=0) as z:
        z.write(json.dumps(out, ensure_ascii=False, separators=(",", ":")).encode())


if __name__ == "__main__":
    main()
