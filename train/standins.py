"""Writes small files in the form of published benchmarks: internal/eval/suite/standins. All texts are ours: sentences of
internal/eval/haystack with facts put between them, in the words that models/fry was trained on.
Usage: standins.py (in this folder)"""
import json, os, random

HERE = os.path.dirname(os.path.abspath(__file__))
HAY = HERE + "/../internal/eval/haystack/"
OUT = HERE + "/../internal/eval/suite/standins/"
r = random.Random(45)
PROSE = [l.strip() for l in open(HAY + "english.txt", encoding="utf-8") if 60 < len(l) < 400 and "`" not in l]
CODE = open(HAY + "code.txt", encoding="utf-8").read().split("\n")
ADJ = "gentle fierce happy brave calm clever eager grand humble jolly mighty noble proud rapid swift vivid".split()
NOUN = "otter fox wolf bear lion tiger eagle hawk raven robin sparrow swan goose crane whale shark".split()
N = 2


def words(n):
    out = []
    while len(out) < n:
        k = r.choice(ADJ) + "-" + r.choice(NOUN)
        if k not in out:
            out.append(k)
    return out


def number(n=7):
    return str(r.randrange(10 ** (n - 1), 10 ** n))


def hide(facts, size=2400, sep="\n"):
    """prose of about `size` characters with the facts between its paragraphs"""
    text = []
    while sum(map(len, text)) < size:
        text.append(r.choice(PROSE))
    for f in facts:
        text.insert(r.randrange(len(text) + 1), f)
    return sep.join(text)


def needle(k, v):
    return f"One of the special magic numbers for {k} is: {v}."


def ask(k):
    return f"What is the special magic number for {k} mentioned in the provided text?"


def write(name, rows):
    path = OUT + name
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="\n") as f:
        if name.endswith("data.json"):
            json.dump(rows, f, ensure_ascii=False, indent=1)
            f.write("\n")
        else:
            f.writelines(json.dumps(x, ensure_ascii=False) + "\n" for x in rows)


def longbench():
    def put(name, make, language="en", classes=None):
        rows = []
        for i in range(N):
            q, c, a = make()
            rows.append({"input": q, "context": c, "answers": a, "length": len(c.split()), "dataset": name, "language": language, "all_classes": classes, "_id": "%s-%d" % (name, i)})
        write(f"longbench/{name}.jsonl", rows)
    def single():
        (k,), v = words(1), number()
        return ask(k), hide([needle(k, v)]), [v]
    def several():
        ks = words(4)
        vs = [number() for _ in ks]
        ps = [f"Passage {i + 1}:\n" + hide([needle(k, v)], 500) for i, (k, v) in enumerate(zip(ks, vs))]
        i = r.randrange(4)
        return ask(ks[i]), "\n\n".join(ps), [vs[i]]
    def summary(q=""):
        s = r.sample(PROSE, 4)
        return q, hide(s, 1800), [" ".join(s)]
    kinds = {"number": ("How many {}s are there?", "Count"), "place": ("Where does the {} live?", "Location"), "person": ("Who keeps the {}?", "Person")}
    names = sorted(c for _, c in kinds.values())
    def typed():
        def one(k):
            return kinds[k][0].format(r.choice(NOUN)), kinds[k][1]
        ex = [one(r.choice(list(kinds))) for _ in range(30)]
        q, c = one(r.choice(list(kinds)))
        return f"Question: {q}\nType:", "\n".join(f"Question: {a}\nType: {b}" for a, b in ex), [c]
    def trivia():
        ks = words(6)
        vs = [number() for _ in ks]
        f = "Passage:\n{}\nQuestion:\n{}\nAnswer:\n{}"
        return (f.format(hide([needle(ks[5], vs[5])], 400), ask(ks[5]), "").rstrip("\n") + "\n", "\n".join(f.format(needle(k, v), ask(k), v) for k, v in zip(ks[:5], vs)), [vs[5]])
    def dialogue():
        def one():
            a, b = r.sample(("Ann", "Ben", "Cleo", "Dan"), 2)
            k, d = r.choice(NOUN), r.choice(("Monday", "Friday", "Sunday"))
            return f"Dialogue: {a}: Shall we see the {k}?\n{b}: Yes, on {d}.\n", f"{a} and {b} will see the {k} on {d}."
        ex = [one() for _ in range(12)]
        d, s = one()
        return d + "Summary: ", "\n".join(a + "Summary: " + b for a, b in ex), [s]
    def counted():
        p = r.sample(PROSE, 6)
        p += r.sample(p, r.randrange(0, 4))
        r.shuffle(p)
        return "", "\n\n".join(f"Paragraph {i + 1}: {x}" for i, x in enumerate(p)), [str(len(set(p)))]
    def found(word="Paragraph "):
        p = r.sample(PROSE, 10)
        i = r.randrange(10)
        return " ".join(p[i].split()[:14]), "\n\n".join(f"{word}{j + 1}: {x}" for j, x in enumerate(p)), [f"{word}{i + 1}"]
    def code(both=False):
        while True:
            at = r.randrange(len(CODE) - 60)
            want = CODE[at + 50]
            if len(want.strip()) > 12 and "//" not in want and "`" not in want:
                break
        c = "\n".join(CODE[at:at + 50]) + "\n"
        if both:
            head = "\n".join(CODE[:30]) + "\n"
            return c, head, [want]
        return "", c, [want]
    ZH = ["河边有一座小城，城里的人每天清晨去市场买鱼。", "图书馆在山脚下，窗外能看到苹果树。", "老师把地图挂在墙上，讲述海洋的故事。", "冬天的湖面结了冰，孩子们在上面滑行。", "工程师修好了桥，火车又能通过山谷。", "农夫种了玉米和豆子，秋天收成很好。"]
    def chinese():
        k, v = r.choice(("狐狸", "老鹰", "海豚", "熊猫")), number()
        t = [r.choice(ZH) for _ in range(40)]
        t.insert(r.randrange(40), f"{k}的特别数字是{v}。")
        return f"{k}的特别数字是多少？", "".join(t), [v]
    def chinesesum():
        t = r.sample(ZH, 4)
        return "", "".join(r.choice(ZH) for _ in range(20)) + "".join(t), ["".join(t)]
    def chinesekind():
        kinds = ["体育", "财经", "天气"]
        ex = "\n".join(f"新闻内容：\n{r.choice(ZH)}\n类别：{r.choice(kinds)}" for _ in range(12))
        return f"新闻内容：\n{r.choice(ZH)}\n类别：", ex, [r.choice(kinds)]
    def chinesefound():
        p = [r.choice(ZH) + r.choice(ZH) for _ in range(8)]
        i = r.randrange(8)
        return p[i], "\n\n".join(f"段落{j + 1}：{x}" for j, x in enumerate(p)), [f"段落{i + 1}"]
    for n in ("narrativeqa", "qasper", "multifieldqa_en"):
        put(n, single)
    for n in ("hotpotqa", "2wikimqa", "musique"):
        put(n, several)
    for n in ("gov_report", "multi_news"):
        put(n, summary)
    put("qmsum", lambda: summary("Summarize the discussion."))
    put("trec", typed, classes=names)
    put("triviaqa", trivia), put("samsum", dialogue), put("passage_count", counted), put("passage_retrieval_en", found)
    put("lcc", code, "go"), put("repobench-p", lambda: code(True), "go")
    put("multifieldqa_zh", chinese, "zh"), put("dureader", chinese, "zh"), put("vcsum", chinesesum, "zh")
    put("lsht", chinesekind, "zh", ["体育", "财经", "天气"]), put("passage_retrieval_zh", chinesefound, "zh")


def longbench2():
    rows = []
    for length in ("short", "medium", "long"):
        for _ in range(N):
            ks, v = words(1), number()
            c = [number() for _ in range(3)]
            i = r.randrange(4)
            c.insert(i, v)
            rows.append({"_id": "s%02d" % len(rows), "domain": "Single-Document QA", "sub_domain": "Stand-in", "difficulty": r.choice(("easy", "hard")), "length": length,
                         "question": ask(ks[0]), **{"choice_" + l: x for l, x in zip("ABCD", c)}, "answer": "ABCD"[i],
                         "context": hide([needle(ks[0], v)], {"short": 1200, "medium": 2400, "long": 4800}[length])})
    write("longbench-v2/data.json", rows)


def infinitebench():
    def put(name, make):
        rows = []
        for i in range(N):
            c, q, a, o = make()
            rows.append({"id": i, "context": c, "input": q, "answer": a, "options": o})
        write(f"infinitebench/{name}.jsonl", rows)
    noise = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
    def passkey(n):
        v, t = number(n), [noise] * 25
        t.insert(r.randrange(26), f"The pass key is {v}. Remember it. {v} is the pass key. ")
        return "".join(t), "What is the pass key?\nAnswer: The pass key is", [v], []
    def kv():
        ks = words(40)
        vs = [number() for _ in ks]
        i = r.randrange(40)
        return json.dumps(dict(zip(ks, vs)), indent=1), f'What is the value of the key "{ks[i]}" in the JSON data?\nAnswer:', [vs[i]], []
    def book():
        (k,), v = words(1), number()
        return hide([needle(k, v)]), ask(k), [v], []
    def choice():
        c, q, (v,), _ = book()
        o = [number() for _ in range(3)]
        o.insert(r.randrange(4), v)
        return c, q, [v], o
    def summary():
        s = r.sample(PROSE, 4)
        return hide(s, 1600), "", [" ".join(s)], []
    def chinese():
        k, v = r.choice(("狐狸", "老鹰")), number()
        return "河边有一座小城。" * 30 + f"{k}的特别数字是{v}。" + "山上有一座塔。" * 30, f"{k}的特别数字是多少？", [v], []
    def dialogue():
        n = r.choice(("ANN", "BEN", "CLEO"))
        t = [f"{a}: {r.choice(PROSE)[:80]}" for a in ("ANN", "BEN", "CLEO") * 6]
        t = [x.replace(n + ":", "$$MASK$$:") if i > 8 else x for i, x in enumerate(t)]
        return "\n".join(t), "", [n], []
    def find():
        a = [r.randrange(1, 100) for _ in range(150)]
        return str(a), "You should answer with only one number. The largest number of the list is:", [max(a)], []
    def calc():
        at, e, out = r.randrange(50), "", []
        e = str(at)
        for _ in range(12):
            d = r.randrange(1, 50)
            s = r.choice("+-") if at > d else "+"
            at = at + d if s == "+" else at - d
            e += f" {s} {d}"
            out.append(at)
        return e, "", out, []
    def run():
        d = [r.randrange(1, 30) for _ in range(20)]
        f = "\n".join(f"def func_{i}(x):\n    return " + (f"func_{i + 1}(x) + {d[i]}" if i < 3 else f"x - {d[i]}") for i in range(20))
        return f, "Please give me the exact number of the return value of func_0(7).", [7 + d[0] + d[1] + d[2] - d[3]], []
    def debug():
        ns = r.sample([f"step_{w}" for w in NOUN], 8)
        bad = r.randrange(4)
        f = "\n".join(f"def {n}(x):\n    y = x + {r.randrange(9)}\n    return {'z' if i == bad else 'y'}\n" for i, n in enumerate(ns))
        o = ns[:4]
        want = o[bad]
        r.shuffle(o)
        return f, "", [want], o
    put("passkey", lambda: passkey(5)), put("number_string", lambda: passkey(10)), put("kv_retrieval", kv), put("longbook_sum_eng", summary)
    put("longbook_choice_eng", choice), put("longbook_qa_eng", book), put("longbook_qa_chn", chinese), put("longdialogue_qa_eng", dialogue)
    put("math_find", find), put("math_calc", calc), put("code_run", run), put("code_debug", debug)


def ruler():
    def put(name, make):
        rows = []
        for i in range(N):
            q, a, lead = make()
            rows.append({"index": i, "input": q, "outputs": a, "length": len(q) // 3, "length_w_model_temp": len(q) // 3, "answer_prefix": lead})
        write(f"ruler/{name}/validation.jsonl", rows)
    intro = "Some special magic numbers are hidden within the following text. Make sure to memorize it. I will quiz you about the numbers afterwards.\n"
    def niah(n, values=1, asked=1):
        ks = words(n)
        fs = [(k, number()) for k in ks for _ in range(values)]
        want = ks[:asked]
        many = values * asked > 1
        q = ", ".join(want)
        body = intro + hide([needle(k, v) for k, v in fs], 2400)
        f = "s" if many else ""
        return (body + f"\nQuestion: What {'are all' if many else 'is'} the special magic number{f} for {q} mentioned in the provided text?\nAnswer:",
                [v for k, v in fs if k in want], f" The special magic number{f} for {q} mentioned in the provided text {'are' if many else 'is'}")
    def vt():
        names, v = ["".join(r.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(3)) for _ in range(5)], number(5)
        lines = ["The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."] * 25
        at = sorted(r.sample(range(25), 5), reverse=True)
        for i, p in zip(range(4, -1, -1), at):
            lines.insert(p, f"VAR {names[i]} = " + (v if i == 0 else "VAR " + names[i - 1]))
        return ("Memorize and track the chains of variable assignment hidden in the following text.\n" + "\n".join(lines) +
                f"\nQuestion: Find all variables that are assigned the value {v} in the text above.\nAnswer:", names,
                f" According to the chain of variable assignment in the text above, the variables assigned the value {v} are:")
    def cwe():
        ws = words(40)
        seq = ws[:10] * 8 + ws[10:]
        r.shuffle(seq)
        return ("Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones that appear most often.\n" +
                " ".join(f"{i + 1}. {w}" for i, w in enumerate(seq)) + "\nQuestion: What are the 10 most common words in the above list?\nAnswer:", ws[:10],
                " The top 10 words that appear most often in the list are:")
    def fwe():
        ws = r.sample(NOUN, 10)
        seq = ws[:1] * 60 + ws[1:2] * 40 + ws[2:3] * 25 + ws[3:] * 5
        r.shuffle(seq)
        return ("Read the following coded text and track the frequency of each coded word. Find the three most frequently appeared coded words.\n" +
                " ".join(seq) + "\nQuestion: What are the three most frequently appeared words in the above coded text?\nAnswer:", ws[:3], " The three most frequently appeared words are:")
    def qa():
        ks = words(6)
        docs = [f"Document {i + 1}:\n" + hide([needle(k, number())], 350) for i, k in enumerate(ks)]
        i = r.randrange(6)
        v = docs[i].split(f"for {ks[i]} is: ")[1].split(".")[0]
        return ("Answer the question based on the given documents.\n\n" + "\n\n".join(docs) + f"\n\nQuestion: {ask(ks[i])}\n", [v], "Answer:")
    for n, a in (("niah_single_1", (1,)), ("niah_single_2", (1,)), ("niah_single_3", (1,)), ("niah_multikey_1", (4,)), ("niah_multikey_2", (8,)), ("niah_multikey_3", (12,)),
                 ("niah_multivalue", (1, 4)), ("niah_multiquery", (6, 1, 4))):
        put(n, lambda: niah(*a))
    put("vt", vt), put("cwe", cwe), put("fwe", fwe), put("qa_1", qa), put("qa_2", qa)


def maths():
    rows = []
    for _ in range(4):
        a, b, c = r.randrange(3, 20), r.randrange(2, 9), r.randrange(1, 9)
        rows.append({"question": f"A farmer packs {a} boxes with {b} apples each. Then {c} apples are eaten. How many apples are left?",
                     "answer": f"The boxes hold {a} * {b} = <<{a}*{b}={a * b}>>{a * b} apples.\nAfter eating {c} there are {a * b} - {c} = <<{a * b}-{c}={a * b - c}>>{a * b - c}.\n#### {a * b - c}"})
    write("gsm8k/test.jsonl", rows)
    rows = []
    for i in range(4):
        a, b = r.randrange(2, 9), r.randrange(2, 9)
        rows.append({"problem": f"What is $\\frac{{{a}}}{{{a * b}}}$ in lowest terms?", "solution": f"Both are divisible by {a}, so the value is $\\boxed{{\\frac{{1}}{{{b}}}}}$.",
                     "answer": f"\\frac{{1}}{{{b}}}", "subject": "Prealgebra", "level": 1 + i % 2, "unique_id": f"test/prealgebra/{i}.json"})
    write("math/test.jsonl", rows)


longbench(), longbench2(), infinitebench(), ruler(), maths()
