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
SYSTEM = ("You are a helpful assistant.", "Be brief.", "Answer with the tools that you have.", "You are an agent. Use the tools.")
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
    def made(r):
        vs = {k: r.choice(noun) if t is STR else r.randrange(1000) for k, t in own.items()}
        n = r.randrange(1000)
        q = r.choice(("Do {f} with {a}.", "{f}: {a}.", "Please {f}, {a}.")).format(f=" ".join((act, what)), a=" and ".join("%s %s" % x for x in vs.items()))
        return q, vs, r.choice(('{"done": true, "id": %d}' % n, "id %d" % n)), "It is done, with id %d." % n
    act, what = r.choice(("create", "delete", "move", "start", "stop", "open", "close", "book", "order", "paint")), r.choice(noun)
    own = {k: r.choice((STR, INT)) for k in r.sample(("size", "color", "count", "place", "owner", "level", "name", "day", "price", "room"), r.randrange(1, 4))}
    verb, thing = r.choice(("lookup", "find", "query", "get", "search")), r.choice(noun)
    return [(tool("get_weather", "The weather in a city.", _schema(city=STR)), weather), (tool("get_time", "The time in a city.", _schema(city=STR)), clock),
            (tool("add", "Adds two numbers.", _schema(a=INT, b=INT)), add), (tool("read_file", "Reads a file.", _schema(path=STR)), read),
            (tool("send_message", "Sends a message to somebody.", _schema(to=STR, text=STR)), send), (tool("%s_%s" % (verb, thing), "Finds the number of a key.", _schema(key=STR)), look),
            (tool("%s_%s" % (act, what), "%ss a %s." % (act.capitalize(), what), _schema(**own)), made)]


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


KINDS = ("call", "both", "result", "two", "plain", "json")


def dialogue(r, noun, pairs, kind=None):
    """-> kind, turns: (who, text), who is user or assistant; the last is the assistant's"""
    kind = kind or r.choices(KINDS, (.3, .1, .24, .1, .1, .16))[0]
    if kind == "json":
        return kind, list(zip(("user", "assistant"), as_json(r, noun)))
    fs = r.sample(functions(r, noun), r.randrange(1, 5))
    turns = [("user", shown([t for t, _ in fs]))]
    if r.random() < .2:
        turns.append(("user", r.choice(SYSTEM)))
    if kind == "plain":
        return kind, turns + list(zip(("user", "assistant"), r.choice(pairs)))
    begin = len(turns)
    for _ in range(2 if kind == "two" else 1):
        turns += exchange(r, fs, 2 if kind == "both" else 1)
    return kind, turns[:begin + 2] if kind in ("call", "both") else turns


def exchange(r, fs, calls=1):
    """a question (or two in one), the calls that it needs, their results, the answer"""
    asked = [(t["function"]["name"], *ask(r)) for t, ask in (r.choice(fs) for _ in range(calls))]
    return ([("user", " And ".join(q for _, q, _, _, _ in asked)), ("assistant", "".join(call(f, args) for f, _, args, _, _ in asked))]
            + [("user", "<tool_response>\n%s\n</tool_response>" % result) for _, _, _, result, _ in asked] + [("assistant", " ".join(answer for *_, answer in asked))])


def sample(g, total):
    """token ids and classes, as Gen.chat_turns: dialogues one after the other, those with functions long ones"""
    import gen, chatpairs
    import numpy as np
    ids, cls = [], []
    while len(ids) < total:
        ids.append(gen.BOS); cls.append(0)
        kind, turns = dialogue(g.r, gen.NOUN, chatpairs.P, "json" if g.r.random() < .25 else None)
        if kind != "json":
            fs = g.r.sample(functions(g.r, gen.NOUN), g.r.randrange(1, 5))
            turns = [("user", shown([t for t, _ in fs]))] + [("user", g.r.choice(SYSTEM))] * (g.r.random() < .2)
            for _ in range(g.r.randrange(3, 9)):
                turns += exchange(g.r, fs, 1 + (g.r.random() < .15)) if g.r.random() < .85 else list(zip(("user", "assistant"), g.r.choice(chatpairs.P)))
        for who, text in turns:
            v = g.enc(text) + [gen.END]
            ids += [gen.USER if who == "user" else gen.ASSISTANT] + v
            cls += [0] + [0 if who == "user" else 2] * len(v)
    return np.array(ids[:total], np.int32), np.array(cls[:total], np.uint8)


def evaluate(folder, n):
    """how often the greedy answer is the expected one to the token: each token of it is the likeliest behind those before it"""
    import torch, gen, chatpairs, evalpol
    from evalgen import load_tok
    dev = "cuda" if torch.cuda.is_available() else "cpu"
    m, tok = evalpol.load(folder, dev), load_tok(folder)
    enc = lambda s: tok.encode(s, add_special_tokens=False).ids
    r = random.Random(77)
    for kind in KINDS:
        good = 0
        for _ in range(n):
            turns = dialogue(r, gen.NOUN, chatpairs.P, kind)[1]
            want = torch.tensor(enc(turns[-1][1]) + [gen.END])
            ids = [gen.BOS] + [t for who, text in turns[:-1] for t in [gen.USER if who == "user" else gen.ASSISTANT] + enc(text) + [gen.END]] + [gen.ASSISTANT]
            with torch.no_grad():
                x = m.body(torch.tensor([ids + want[:-1].tolist()]).to(dev), m.eager, torch.float32)
                good += bool((m.logits(x[len(ids) - 1:]).argmax(-1).cpu() == want).all())
            m._cs.clear()
        print("%-6s %d of %d" % (kind, good, n), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "template":
        sys.stdout.write(TEMPLATE)
    else:
        evaluate(sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 50)
