"""Writes the golden files of this folder with the Hugging Face tokenizers library.

    pip install tokenizers==0.23.3 && python make_goldens.py

hf/NAME.tokenizer.json is a small tokenizer trained here on text made here;
hf/NAME.golden.json is what the library makes of the strings below, and of
random ids. NAMEs without a tokenizer.json here are the folders beside hf.
"""
import json, os, random
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

N, P, D, PP = normalizers, pre_tokenizers, decoders, processors
HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "hf")

NASTY = [
    "", " ", "  ", "   ", "\n", "\r\n", "\n\n\n", "\t", " \n ", "a", "A b", " a", "a ", "  a  b  ", "Hello, world!",
    "the quick brown fox jumps over the lazy dog", "don't I'll WE'RE you'd it's 'S 'ſ 'LL 'Re", "x'sy 'll'll ''s '",
    "1234567890 12 3.14159 0x1F ²½Ⅷ ٣٤٥६७", "func main() {\n\tfmt.Println(\"hi\")\n}\n", "a  b   c    d     e",
    "line one\nline two\r\nline three\n\n  indented\n\t\ttabs \n", "trailing spaces   ", "trailing newline \n",
    "naïve café façade — “quotes” … 5€", "e\u0301 cafe\u0301 A\u030a\u0301 \u1e9b\u0323 \u212b \u2126", "ﬁ ﬀ ① ㌔ ｆｕｌｌ　ｗｉｄｔｈ ℌ",
    "日本語のテキスト と 漢字", "中文字符，標點。", "한국어 텍스트 \u1112\u1161\u11ab", "Привет мир ΑΣ Σ σς", "עברית العربية", "हिन्दी देवनागरी क्‍ष",
    "ไทย ภาษา", "🙂 emoji 👩‍👩‍👧‍👦 family 🇩🇪 ✅ \u2764\ufe0f", "\u200b\u200d\ufeff\u00a0\u3000x", "a\u0000b\u0001\u001f\u007f",
    "\U0001f600\U00020000\U000e0001\U0010ffff", "a" + "\u0301" * 40 + "b", "a" + "\u0323\u0301" * 20, "İstanbul ISTANBUL ß ẞ ŉ",
    "!!!!!!??!!", "...---...", "--------------------------------", "=====\n=====", "a.b,c;d:e", "(foo)[bar]{baz}<qux>", "user@example.com https://x.y/z?a=b&c=d#e",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "ababababababab" * 5, "<s>", "</s> <s>", "<s>a</s>b <s> c", "<unk>x<0x41><0x0A>",
    "  <mask>  a", "a <mask>b  <r>  c<r>\n\n<mask>", "word sword words word, word", "wordword word", "<|x|><|x|> <|x|", "<|x|>y<|x|>", "[INST] hi [/INST] [inst]",
    "Foo foo FOO fOo\u0301", "▁a ▁ ▁▁b a▁b", "Ġa Ċ ġ", "mixed 漢字and日本語with English123and456", "tab\tsep\tvalues\n1\t2\t3", "\u2028x\u2029y\u0085z\u000bw\u000c",
    "  \u00a0 \u2003 x", "\n \n  \n   \nx", "x\n \n", "½cup 3½", "a\u0300\u0301 \u0301lead", "__init__ snake_case camelCase HTTPServer2", "C'est l'été, n'est-ce pas?",
    "ABCdef GHIjkl mnoPQR XyZ", "A\u0301B a\u0301b ǅ ǆ ʰ", "<r>", "<r> <mask>", "<mask><mask> <mask>", "x<e>\n y", "  <e>  ", "#$%^&*+=|~`\\/@", "0 1 22 333 4444 55555", "\ud7a3\uac00\u11a8",
]

WORDS = """the of and to in is was for on that by this with from at are as be it not or an which have has had but
function return value string error reader writer buffer token model layer cache memory network cluster packet number test
hello world quick brown fox jumps over lazy dog word words sword foo bar baz init snake case camel print main package import
naïve café façade été 日本語 の テキスト 漢字 中文 字符 한국어 Привет мир 123 456 7890 3.14 don't it's we're I'll user@example.com""".split()


def corpus(seed=7, lines=1500):
    rng = random.Random(seed)
    for _ in range(lines):
        line = []
        for _ in range(rng.randint(3, 14)):
            w = rng.choice(WORDS)
            if rng.random() < 0.15: w = w.capitalize()
            if rng.random() < 0.12: w += rng.choice(",.;:!?")
            if rng.random() < 0.05: w = "(" + w + ")"
            line.append(w)
        yield rng.choice(["", "", "", "  ", "\t"]) + rng.choice([" ", " ", " ", "  "]).join(line) + rng.choice(["", "\n", "\n\n"])


BYTES = ["<0x%02X>" % b for b in range(256)]
ALPHABET = P.ByteLevel.alphabet()


def train(tok, size, special=(), alphabet=(), **kw):
    tr = trainers.BpeTrainer(vocab_size=size, special_tokens=list(special), initial_alphabet=list(alphabet), show_progress=False, **kw)
    tok.train_from_iterator(corpus(), tr)
    return tok


def edit(tok, **fields):
    """Changes fields of the model that the trainer does not set."""
    d = json.loads(tok.to_str())
    d["model"].update(fields)
    return Tokenizer.from_str(json.dumps(d))


def spm(size=700, fallback=True, fuse=True, normalizer=None, pre=None, decoder=None, bos=True, first=()):
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=fuse, byte_fallback=fallback))
    if normalizer: t.normalizer = normalizer
    if pre: t.pre_tokenizer = pre
    if decoder: t.decoder = decoder
    # The trainer must see words even where the tokenizer itself does not cut.
    keep_n, keep_p = t.normalizer, t.pre_tokenizer
    t.pre_tokenizer = P.Metaspace(prepend_scheme="always")
    train(t, size, ["<unk>", "<s>", "</s>"] + list(first) + (BYTES if fallback else []))
    d = json.loads(t.to_str())
    # Byte tokens are ordinary vocabulary, not added tokens.
    d["added_tokens"] = [a for a in d["added_tokens"] if a["content"] not in BYTES]
    t = Tokenizer.from_str(json.dumps(d))
    t.normalizer, t.pre_tokenizer = keep_n, keep_p
    if bos:
        t.post_processor = PP.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", t.token_to_id("<s>"))])
    return t


def extras(t, normalized=True):
    t.add_special_tokens([AddedToken("<|x|>", normalized=False), AddedToken("<mask>", lstrip=True, normalized=False)])
    t.add_tokens([
        AddedToken("<r>", rstrip=True, normalized=False), AddedToken("<e>", lstrip=True, rstrip=True, normalized=False),
        AddedToken("word", single_word=True, normalized=False), AddedToken("[INST]", normalized=normalized),
        AddedToken("<|x|", normalized=False),
    ])
    return t


def blevel(pre, size=500, normalizer=None, special=("<|x|>",), post=None, alphabet=ALPHABET, decoder=None, **model):
    t = Tokenizer(models.BPE())
    if normalizer: t.normalizer = normalizer
    t.pre_tokenizer = pre
    t.decoder = decoder or D.ByteLevel()
    train(t, size, special, alphabet)
    if post: t.post_processor = post
    return edit(t, **model) if model else t


LLAMA2_DECODER = D.Sequence([D.Replace("▁", " "), D.ByteFallback(), D.Fuse(), D.Strip(" ", 1, 0)])
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace("{1,3}", "")
CL100K = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
O200K = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
KIMI = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def split(p, behavior="isolated", invert=False):
    return P.Split(Regex(p) if not isinstance(p, tuple) else p[0], behavior, invert)


def byte_split(*stages):
    return P.Sequence(list(stages) + [P.ByteLevel(add_prefix_space=False, use_regex=False)])


def deepseek():
    with open(os.path.join(HERE, "deepseek_v3", "tokenizer.json")) as f:
        d = json.load(f)
    return Tokenizer.from_str(json.dumps(d)).pre_tokenizer


def configs():
    yield "spm_llama2", extras(spm(normalizer=N.Sequence([N.Prepend("▁"), N.Replace(" ", "▁")]), decoder=LLAMA2_DECODER))
    yield "spm_first", extras(spm(pre=P.Metaspace(prepend_scheme="first", split=False), decoder=LLAMA2_DECODER))
    yield "spm_first_split", extras(spm(normalizer=N.Strip(), pre=P.Metaspace(prepend_scheme="first", split=True), decoder=LLAMA2_DECODER, bos=False))
    yield "spm_always", extras(spm(fallback=False, fuse=False, pre=P.Metaspace(), decoder=D.Metaspace()))
    yield "spm_never", extras(spm(fallback=False, fuse=True, pre=P.Metaspace(prepend_scheme="never"), decoder=D.Metaspace(prepend_scheme="never"), bos=False))
    g = spm(normalizer=N.Replace(" ", "▁"), pre=P.Split(" ", "merged_with_previous"), decoder=D.Sequence([D.Replace("▁", " "), D.ByteFallback(), D.Fuse()]))
    g.add_tokens([AddedToken(s, normalized=False) for s in ["\n", "\n\n", "▁▁", "▁▁▁"]])
    yield "spm_gemma", extras(g)
    yield "spm_fallback_metaspace", extras(spm(pre=P.Metaspace(), decoder=D.Sequence([D.ByteFallback(), D.Metaspace(), D.Fuse()])))
    yield "spm_ignore_merges", extras(edit(spm(pre=P.Metaspace(), decoder=D.Metaspace()), ignore_merges=True))
    yield "gpt2", extras(blevel(P.ByteLevel(add_prefix_space=False)))
    yield "gpt2_prefix", extras(blevel(P.ByteLevel(add_prefix_space=True)))
    yield "roberta", blevel(P.ByteLevel(add_prefix_space=True), special=("<s>", "</s>", "<|x|>"), post=PP.RobertaProcessing(("</s>", 1), ("<s>", 0)))
    bos = PP.Sequence([PP.ByteLevel(trim_offsets=False), PP.TemplateProcessing(single="<s> $A </s>", pair="<s> $A $B", special_tokens=[("<s>", 0), ("</s>", 1)])])
    yield "llama3_ignore_merges", extras(blevel(byte_split(split(LLAMA3)), special=("<s>", "</s>", "<|x|>"), post=bos, ignore_merges=True))
    yield "llama3_removed_invert", blevel(byte_split(split(LLAMA3, "removed", True)))
    yield "qwen2_nfc", extras(blevel(byte_split(split(QWEN2)), normalizer=N.NFC()))
    yield "deepseek", extras(blevel(deepseek()))
    yield "cl100k", blevel(byte_split(split(CL100K)))
    yield "o200k", extras(blevel(byte_split(split(O200K))))
    yield "kimi", blevel(byte_split(split(KIMI)))
    yield "falcon", extras(blevel(P.Sequence([P.Punctuation("contiguous"), P.ByteLevel(add_prefix_space=False), P.Digits(False), split("[0-9][0-9][0-9]")])))
    yield "starcoder", blevel(P.Sequence([P.Digits(True), P.ByteLevel(add_prefix_space=False)]))
    yield "no_pretokenizer", extras(blevel(P.ByteLevel(add_prefix_space=False, use_regex=False)))
    for b in ["isolated", "removed", "merged_with_previous", "merged_with_next", "contiguous"]:
        for invert in [False, True]:
            yield "split_%s%s" % (b, "_invert" if invert else ""), blevel(byte_split(split(r"\d|[aeiou]|[ \t]+", b, invert)), size=320)
    yield "split_string", blevel(byte_split(split((" ",), "merged_with_next"), split(("",), "isolated")), size=300)
    yield "split_words", blevel(byte_split(split(r"\w+|[^\w\s]+"), split(r"\W", "merged_with_next"), split(r"^\S|\h{2}", "merged_with_previous")), size=400)
    yield "punctuation", blevel(byte_split(P.Punctuation("merged_with_previous"), P.WhitespaceSplit()))
    cased = N.Sequence([N.NFKC(), N.Lowercase(), N.NFD(), N.StripAccents(), N.Replace(Regex(r"\s+"), " "), N.Strip()])
    w = Tokenizer(models.BPE(unk_token="[UNK]"))
    w.normalizer, w.pre_tokenizer = cased, P.Whitespace()
    train(w, 400, ["[UNK]", "[CLS]", "[SEP]"])
    w.add_tokens([AddedToken("Foo", normalized=True), AddedToken("[INST]", normalized=True, single_word=True)])
    w.post_processor = PP.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    yield "words_lower", w
    for form in ["NFKD", "NFD", "NFKC"]:
        yield "form_" + form.lower(), blevel(P.ByteLevel(add_prefix_space=False), size=320, normalizer=getattr(N, form)())
    c = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    c.pre_tokenizer = P.Sequence([P.WhitespaceSplit(), P.Punctuation()])
    yield "suffix", train(c, 400, ["<unk>"], end_of_word_suffix="</w>")
    c = Tokenizer(models.BPE(unk_token="<unk>", continuing_subword_prefix="##", fuse_unk=True))
    c.pre_tokenizer = P.Whitespace()
    yield "prefix", train(c, 400, ["<unk>"], continuing_subword_prefix="##")
    lone = blevel(P.ByteLevel(add_prefix_space=False), size=300)
    lone.normalizer = N.Lowercase()
    lone.add_tokens([AddedToken("FoO", normalized=True), AddedToken("Hello, w", normalized=True)])
    yield "normalized_added", lone
    fs = spm(pre=P.Metaspace(), decoder=D.Sequence([D.ByteFallback(), D.Fuse(), D.Replace("▁", " "), D.Strip(" ", 2, 1)]))
    yield "decode_fused", fs
    ds = spm(pre=P.Metaspace(), decoder=D.Sequence([D.Strip("▁", 1, 1), D.Replace(Regex("[aeiou]"), "_"), D.ByteFallback()]))
    yield "decode_tokens", ds


def broken_runs(t, ids):
    """Byte runs that are no UTF-8 as a whole but hold a valid character: there we differ, on purpose."""
    run = b""
    for tok in [t.id_to_token(i) for i in ids] + [None]:
        if tok in BYTES:
            run += bytes([BYTES.index(tok)])
            continue
        try: run.decode()
        except UnicodeDecodeError:
            if run.decode(errors="ignore"): return True
        run = b""
    return False


def decode(t, ids, skip):
    """None where the library itself fails: Strip at the end of an empty token."""
    try: return t.decode(ids, skip_special_tokens=skip)
    except BaseException as e:
        if type(e).__name__ != "PanicException": raise


def golden(t, seed):
    rng = random.Random(seed)
    cases = []
    for s in NASTY:
        ids = t.encode(s).ids
        cases.append({"text": s, "ids": ids, "ids_no_special": t.encode(s, add_special_tokens=False).ids,
                      "decoded": decode(t, ids, True), "decoded_all": decode(t, ids, False)})
    top = max(t.get_vocab().values())
    bytes_ = [t.token_to_id(b) for b in BYTES if t.token_to_id(b) is not None]
    decodes = []
    for i in range(60):
        ids = [rng.choice(bytes_) if bytes_ and rng.random() < 0.5 else rng.randint(0, top) for _ in range(rng.randint(1, 9))]
        d = {"ids": ids, "decoded": decode(t, ids, True), "decoded_all": decode(t, ids, False)}
        if broken_runs(t, ids): d["broken_run"] = True
        decodes.append(d)
    return {"cases": cases, "decodes": decodes}


def save(name, data):
    with open(os.path.join(OUT, name), "w") as f:
        json.dump(data, f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    os.makedirs(OUT, exist_ok=True)
    for name, t in configs():
        save(name + ".tokenizer.json", json.loads(t.to_str()))
        # What is dumped is what a reader of the file gets.
        t = Tokenizer.from_str(t.to_str())
        save(name + ".golden.json", golden(t, name))
    for name in ["llama", "qwen2", "deepseek_v3", "fry"]:
        save(name + ".golden.json", golden(Tokenizer.from_file(os.path.join(HERE, name, "tokenizer.json")), name))
