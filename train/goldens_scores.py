"""Writes internal/eval/score/testdata/goldens.json: scores of texts by the packages that benchmarks use.
Usage: goldens_scores.py, with rouge 1.0.1, fuzzywuzzy 0.18 and python-Levenshtein installed (LongBench's requirements), and rouge-score 0.1.2
(Infinite-Bench's)."""
import json, os, random, re, string
from collections import Counter
from rouge import Rouge
from fuzzywuzzy import fuzz
from rouge_score.rouge_scorer import RougeScorer

OUT = os.path.dirname(os.path.abspath(__file__)) + "/../internal/eval/score/testdata/goldens.json"
r = random.Random(7)
WORDS = "the cat sat on a mat and an owl saw it the end of day was near near cat".split()


def norm(s):
    s = "".join(c for c in s.lower() if c not in set(string.punctuation))
    return re.sub(r"\b(a|an|the)\b", " ", s).split()


def f1(a, b):
    a, b = norm(a), norm(b)
    n = sum((Counter(a) & Counter(b)).values())
    return 0 if n == 0 else 2 * n / len(a) * n / len(b) / (n / len(a) + n / len(b))


def rouge(a, b):
    try:
        return Rouge().get_scores([a], [b], avg=True)["rouge-l"]["f"]
    except Exception:
        return 0.0


def code(a, b):
    line = ""
    for x in a.lstrip("\n").split("\n"):
        if "`" not in x and "#" not in x and "//" not in x:
            line = x
            break
    return fuzz.ratio(line, b) / 100


def classes(text, want, all):
    named = [c for c in all if c in text]
    for c in named:  # LongBench removes from the list that it walks
        if c in want and c != want:
            named.remove(c)
    return 1 / len(named) if want in named else 0


def sentence():
    return " ".join(r.choice(WORDS) for _ in range(r.randrange(1, 12)))


def text():
    return r.choice((". ", ".", " . ", "\n")).join(sentence() for _ in range(r.randrange(1, 5))) + r.choice(("", ".", "...", " \n"))


cases = []
def add(metric, text, answers, want, all=None):
    c = {"metric": metric, "text": text, "answers": answers, "want": want}
    if all:
        c["classes"] = all
    cases.append(c)


for a, b in [("", ""), ("a", ""), ("", "b"), ("...", "x"), (". .", "x. y"), ("The cat.", "the cat")] + [(text(), text()) for _ in range(60)]:
    add("rouge_l", a, [b], rouge(a, b))
for a, b in [("The Eiffel Tower!", "eiffel tower"), ("a—the b", "b"), ("naïve the_x", "naïve the_x the"), ("", "x"), ("über-Straße 7", "überstraße 7")] + [(text(), text()) for _ in range(30)]:
    add("f1", a, [b], f1(a, b))
    add("exact", a, [b], float(norm(a) == norm(b)))
def line():
    return "".join(r.choice("abx =()+i") for _ in range(r.randrange(0, 30)))
for a, b in [("", ""), ("", "x"), ("# no\n`x`\n// y\nx := 1\nmore", "x := 1"), ("\n\n\ty = 2", "y = 2"), ("größe = 1", "grösse = 1")] + [(line(), line()) for _ in range(60)]:
    add("edit", a, [b], code(a, b))
ALL = ["Person", "Person group", "Place", "Place city", "group", "Number"]
for _ in range(40):
    a, b = " or ".join(r.sample(ALL, r.randrange(0, 4))), r.choice(ALL)
    add("class", a, [b], classes(a, b, ALL), ALL)
summaries = RougeScorer(["rougeLsum"])
for a, b in [("", ""), ("a", ""), ("...", "x"), ("Größe\nist 7", "gr e ist"), ("The K-cat.\n\nSat", "sat\nthe cat")] + [(text(), text()) for _ in range(60)]:
    add("rouge_lsum", a, [b], summaries.score(b, a)["rougeLsum"].fmeasure)
os.makedirs(os.path.dirname(OUT), exist_ok=True)
with open(OUT, "w", encoding="utf-8") as f:
    f.write("[\n" + ",\n".join(json.dumps(c, ensure_ascii=False) for c in cases) + "\n]\n")
print(len(cases), "cases")
