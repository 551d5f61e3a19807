"""Samples in which a model calls functions, uses their results, and answers in JSON, for train.py --tools.
python3 tools.py template            the chat template of such a model
python3 tools.py eval FOLDER [N]     how many of N fresh prompts of each kind FOLDER answers right, greedily"""
import json, random, sys

# What shoal's parser of the family hermes reads, and its grammars write.
TEMPLATE = r"""{{ bos_token }}{% if tools %}<|user|># Tools
{% for t in tools %}{{ t | tojson }}
{% endfor %}To call one, answer <tool_call>
{"name": NAME, "arguments": {...}}
</tool_call><|end|>{% endif %}{% for m in messages %}{% if m['role'] == 'assistant' %}<|assistant|>{{ m['content'] or '' }}{% for c in m['tool_calls'] or [] %}<tool_call>
{"name": "{{ c['function']['name'] }}", "arguments": {{ c['function']['arguments'] | tojson }}}
</tool_call>{% endfor %}{% elif m['role'] == 'tool' %}<|user|><tool_response>
{{ m['content'] }}
</tool_response>{% else %}<|user|>{{ m['content'] }}{% endif %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"""

CITY = "Oslo Rome Paris Berlin Madrid Lisbon Vienna Prague Dublin Athens London Tokyo Cairo Lima Delhi Boston Seoul Quito Kyoto Turin Milan Porto Genoa Basel".split()
NAME = "Ann Bob Carl Dora Emil Fred Gina Hans Ida Jon Kim Lea Max Nora Otto Pia".split()
SKY = "rain sun snow fog wind clouds hail storm".split()


def _schema(**props):
    return {"type": "object", "properties": props, "required": list(props)}


STR, INT = {"type": "string"}, {"type": "integer"}


def functions(r, noun):
    """-> list of (tool, ask(r) -> (question, arguments, result, answer))"""
    def weather(r):
        c, s, t = r.choice(CITY), r.choice(SKY), r.randrange(-9, 35)
        q = r.choice(("What is the weather in {c}?", "How is the weather in {c}?", "Is there rain in {c}?", "What's the weather like in {c}?", "Weather in {c}, please.")).format(c=c)
        return q, {"city": c}, json.dumps({"sky": s, "degrees": t}), "In %s there is %s, at %d degrees." % (c, s, t)
    def clock(r):
        c, h, m = r.choice(CITY), r.randrange(24), r.randrange(60)
        return r.choice(("What time is it in {c}?", "Tell me the time in {c}.")).format(c=c), {"city": c}, "%02d:%02d" % (h, m), "In %s it is %02d:%02d." % (c, h, m)
    def add(r):
        a, b = r.randrange(1000), r.randrange(1000)
        return r.choice(("What is {a} plus {b}?", "Add {a} and {b}.", "What is {a} + {b}?")).format(a=a, b=b), {"a": a, "b": b}, str(a + b), "It is %d." % (a + b)
    def read(r):
        p = "%s/%s.go" % (r.choice(noun), r.choice(noun))
        n = r.randrange(5, 500)
        return r.choice(("Read the file {p}.", "How many lines has {p}?", "Open {p}.")).format(p=p), {"path": p}, "%d lines" % n, "The file %s has %d lines." % (p, n)
    def send(r):
        n, w = r.choice(NAME), r.choice(noun) + " " + r.choice(noun)
        return r.choice(('Send "{w}" to {n}.', 'Tell {n}: "{w}"')).format(w=w, n=n), {"to": n, "text": w}, "sent", "I sent it to %s." % n
    def look(r):
        k, v = r.choice(noun), str(r.randrange(1000, 999999))
        return r.choice(("What is the number of {k}?", "Look up {k}.", "Find the number of the {k}.")).format(k=k), {"key": k}, v, "The number of %s is %s." % (k, v)
    def tool(name, about, schema):
        return {"type": "function", "function": {"name": name, "description": about, "parameters": schema}}
    verb, thing = r.choice(("lookup", "find", "query", "get", "search")), r.choice(noun)
    return [(tool("get_weather", "The weather in a city.", _schema(city=STR)), weather), (tool("get_time", "The time in a city.", _schema(city=STR)), clock),
            (tool("add", "Adds two numbers.", _schema(a=INT, b=INT)), add), (tool("read_file", "Reads a file.", _schema(path=STR)), read),
            (tool("send_message", "Sends a message to somebody.", _schema(to=STR, text=STR)), send), (tool("%s_%s" % (verb, thing), "Finds the number of a key.", _schema(key=STR)), look)]


def call(name, arguments):
    return '<tool_call>\n{"name": %s, "arguments": %s}\n</tool_call>' % (json.dumps(name), json.dumps(arguments))


def shown(tools):
    return "# Tools\n" + "".join(json.dumps(t) + "\n" for t in tools) + 'To call one, answer <tool_call>\n{"name": NAME, "arguments": {...}}\n</tool_call>'


def as_json(r, noun):
    """a schema, facts, and the object that they make"""
    make = {"name": lambda: (r.choice(NAME), STR), "city": lambda: (r.choice(CITY), STR), "age": lambda: (r.randrange(9, 99), INT), "pet": lambda: (r.choice(noun), STR),
            "size": lambda: (r.randrange(1, 300), INT), "color": lambda: (r.choice("red green blue white black".split()), {"enum": "red green blue white black".split()}), "good": lambda: (r.random() < .5, {"type": "boolean"})}
    keys = r.sample(list(make), r.randrange(2, 5))
    got = {k: make[k]() for k in keys}
    facts = "; ".join("%s: %s" % (k, json.dumps(v[0]) if isinstance(v[0], bool) else v[0]) for k, v in r.sample(list(got.items()), len(got)))
    return "Answer in JSON of this schema: %s\n%s" % (json.dumps(_schema(**{k: v[1] for k, v in got.items()})), facts), json.dumps({k: v[0] for k, v in got.items()})


KINDS = ("call", "result", "two", "plain", "json")


def dialogue(r, noun, pairs, kind=None):
    """-> kind, turns: (who, text), who is user or assistant; the last is the assistant's"""
    kind = kind or r.choices(KINDS, (.34, .26, .1, .12, .18))[0]
    if kind == "json":
        return kind, list(zip(("user", "assistant"), as_json(r, noun)))
    fs = r.sample(functions(r, noun), r.randrange(1, 5))
    turns = [("user", shown([t for t, _ in fs]))]
    if kind == "plain":
        q, a = r.choice(pairs)
        return kind, turns + [("user", q), ("assistant", a)]
    for _ in range(2 if kind == "two" else 1):
        t, ask = r.choice(fs)
        q, args, result, answer = ask(r)
        turns += [("user", q), ("assistant", call(t["function"]["name"], args))]
        if kind != "call":
            turns += [("user", "<tool_response>\n%s\n</tool_response>" % result), ("assistant", answer)]
    return kind, turns


def sample(g, total):
    """token ids and classes, as Gen.chat_turns"""
    import gen, chatpairs
    import numpy as np
    ids, cls = [gen.BOS], [0]
    while len(ids) < total:
        if len(ids) > 1:
            h = g.hay(g.r.randrange(20, max(21, total // 6)), "mix").tolist() if g.r.random() < .2 else []
            ids += h + [gen.BOS]
            cls += [1] * len(h) + [0]
        for who, text in dialogue(g.r, gen.NOUN, chatpairs.P)[1]:
            if who == "user":
                k = [gen.USER] + g.enc(text) + [gen.END]
                ids += k; cls += [0] * len(k)
            else:
                v = g.enc(text) + [gen.END]
                ids += [gen.ASSISTANT] + v; cls += [0] + [2] * len(v)
    return np.array(ids[:total], np.int32), np.array(cls[:total], np.uint8)


def evaluate(folder, n):
    import torch, gen, chatpairs
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
    dev = "cuda" if torch.cuda.is_available() else "cpu"
    m = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval().to(dev)
    tok = PreTrainedTokenizerFast.from_pretrained(folder)
    r = random.Random(77)
    for kind in KINDS:
        good = 0
        for _ in range(n):
            turns = dialogue(r, gen.NOUN, chatpairs.P, kind)[1]
            text = "<|bos|>" + "".join("<|%s|>%s<|end|>" % t for t in turns[:-1]) + "<|assistant|>"
            ids = torch.tensor([tok(text, add_special_tokens=False).input_ids]).to(dev)
            out = m.generate(ids, max_new_tokens=120, do_sample=False, eos_token_id=gen.END, pad_token_id=gen.END)
            good += tok.decode(out[0, ids.shape[1]:], skip_special_tokens=True).strip() == turns[-1][1]
        print("%-6s %d of %d" % (kind, good, n), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "template":
        sys.stdout.write(TEMPLATE)
    else:
        evaluate(sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 50)
