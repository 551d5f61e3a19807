"""Small tokenizers of encoder models (WordPiece, Unigram) and of files other than tokenizer.json, and what
the reference libraries make of difficult and generated strings. Usage: tokenizer_encoders.py OUT.json.gz

References: tokenizers, transformers, sentencepiece, tiktoken. The vocabularies are trained here.
"""
import base64, gzip, importlib.util, json, os, random, sys, tempfile, unicodedata
from tokenizers import Tokenizer, decoders as D, models, normalizers as N, pre_tokenizers as P, processors as PP, trainers
from tokenizer_conformance import corpus, strings

HERE = os.path.dirname(os.path.abspath(__file__))
spec = importlib.util.spec_from_file_location("make_goldens", os.path.join(HERE, "../internal/text/tokenizer/testdata/make_goldens.py"))
make_goldens = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make_goldens)
TEXTS = make_goldens.NASTY + strings(500, 21) + ["x" * 101, "x" * 100, "word" * 300, "\ud7a3\u0301" * 3, "1\u1734\u0816b\u07fd\u0898c\u1c89D\ua7cb"]
FAMILIES = {}


def bert(lower, accents=None, size=900):
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer = N.BertNormalizer(lowercase=lower, strip_accents=accents)
    t.pre_tokenizer = P.BertPreTokenizer()
    t.decoder = D.WordPiece(cleanup=not accents)
    t.train_from_iterator(corpus(), trainers.WordPieceTrainer(vocab_size=size, show_progress=False, limit_alphabet=300, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
    t.post_processor = PP.TemplateProcessing(single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return t


def pairs(t, seed):
    """Pairs with types, of every strategy of truncation, as the library cuts them."""
    r, out = random.Random(seed), []
    for i in range(60):
        a, b = r.randrange(len(TEXTS)), r.randrange(len(TEXTS))
        limit, cut = r.choice([0, 8, 12, 17, 40]), r.choice(["longest_first", "only_first", "only_second"])
        t.no_truncation()
        if limit:
            t.enable_truncation(limit, strategy=cut)
        row = {"a": a, "b": b, "limit": limit, "cut": cut}
        try:
            e = t.encode(TEXTS[a], TEXTS[b])
            row.update(ids=e.ids, types=e.type_ids)
        except Exception as e: # the text to cut is too short
            row["error"] = str(e)
        out.append(row)
    t.no_truncation()
    for i in range(0, len(TEXTS), 9):
        e = t.encode(TEXTS[i])
        out.append({"a": i, "b": -1, "limit": 0, "cut": "longest_first", "ids": e.ids, "types": e.type_ids})
    return out


def family(name, t, files=None, decode=True):
    """t is the reference. files: what the tokenizer under test reads, else t's own file."""
    files = files or {"tokenizer.json": t.to_str().encode()}
    ids = [t.encode(s, add_special_tokens=False).ids for s in TEXTS]
    FAMILIES[name] = {"files": {k: base64.b64encode(v).decode() for k, v in files.items()}, "ids": ids, "pairs": pairs(t, name)}
    if decode:
        FAMILIES[name]["decoded"] = [t.decode(i, skip_special_tokens=False) for i in ids]


def vocab_txt(t, **config):
    """The same tokenizer from vocab.txt, as transformers builds it."""
    from transformers import BertTokenizer
    vocab = sorted(t.get_vocab().items(), key=lambda x: x[1])
    files = {"vocab.txt": "".join(s + "\n" for s, _ in vocab).encode()}
    if config:
        files["tokenizer_config.json"] = json.dumps(config).encode()
    with tempfile.TemporaryDirectory() as d:
        for name, data in files.items():
            with open(os.path.join(d, name), "wb") as f:
                f.write(data)
        return BertTokenizer.from_pretrained(d)._tokenizer, files


def word_pieces():
    family("bert", bert(True))
    family("bert_cased", bert(False))
    family("bert_accents", bert(False, True))
    family("bert_vocab", *vocab_txt(bert(True)))
    family("bert_vocab_cased", *vocab_txt(bert(False), do_lower_case=False, tokenize_chinese_chars=False, tokenizer_class="BertTokenizer"))
    t = bert(True)
    t.post_processor = PP.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    t.normalizer = N.Sequence([N.Nmt(), N.NFKC(), N.StripAccents(), N.Lowercase()])
    t.pre_tokenizer = P.Sequence([P.WhitespaceSplit(), P.Punctuation()])
    family("bert_nmt", t)
    t = bert(True)
    t.post_processor = PP.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2))
    t.model.max_input_chars_per_word = 5
    family("bert_roberta", t)


SPM = {}


def sentence_piece(name, **kw):
    """Trains a SentencePiece model and returns its file."""
    import sentencepiece as sp
    if name not in SPM:
        with tempfile.TemporaryDirectory() as d:
            lines = [t.replace("\n", " ").replace("\0", " ") for t in list(make_goldens.corpus()) + TEXTS[:90]]
            sp.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_prefix=os.path.join(d, "m"), num_threads=1, minloglevel=2,
                                          **{**dict(vocab_size=900, character_coverage=0.98, hard_vocab_limit=False), **kw})
            with open(os.path.join(d, "m.model"), "rb") as f:
                SPM[name] = slim(f.read())
    return SPM[name]


def slim(data):
    """Without the training options that only name files."""
    from sentencepiece import sentencepiece_model_pb2 as pb
    m = pb.ModelProto()
    m.ParseFromString(data)
    for field in ["input", "model_prefix", "self_test_sample_size"]:
        m.trainer_spec.ClearField(field)
    return m.SerializeToString(deterministic=True)


def proto(data):
    from sentencepiece import sentencepiece_model_pb2 as pb
    m = pb.ModelProto()
    m.ParseFromString(data)
    return m


def unigram(data, normalizer, pre, decoder, fallback=False):
    """A tokenizer.json with the pieces and the table of a SentencePiece model, as converters of XLM-RoBERTa and T5 make it."""
    m = proto(data)
    pieces = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)] + [(p.piece, p.score) for p in m.pieces[3:]] + [("<mask>", 0.0)]
    t = Tokenizer(models.Unigram(pieces, unk_id=3, byte_fallback=fallback))
    t.normalizer = N.Sequence([N.Precompiled(m.normalizer_spec.precompiled_charsmap)] + normalizer)
    t.pre_tokenizer, t.decoder = pre, decoder
    t.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>"])
    from tokenizers import AddedToken
    t.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    t.post_processor = PP.TemplateProcessing(single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    return t


def unigrams():
    from tokenizers import Regex
    data = sentence_piece("nmt", model_type="unigram")
    meta = P.Metaspace(prepend_scheme="always")
    family("unigram_xlmr", unigram(data, [N.Replace(Regex(" {2,}"), " ")], P.Sequence([P.WhitespaceSplit(), meta]), D.Metaspace()))
    custom = sentence_piece("rules", model_type="unigram", normalization_rule_tsv=rules(), byte_fallback=True)
    family("unigram_whole", unigram(custom, [], P.Metaspace(prepend_scheme="first", split=False), D.Sequence([D.ByteFallback(), D.Metaspace(prepend_scheme="first"), D.Fuse()]), True))


def rules():
    """A small table of replacements with marks, joined letters, line breaks and longer keys."""
    rows = {"\r\n": " ", "\r": "", "\n": " ", "\t": " ", "\u3000": " ", "\u00a0": " ", "\u200b": " ", "ﬁ": "fi", "①": "1", "e\u0301": "é", "a\u0301": "á", "A": "a", "B": "b", "Ａ": "a",
            "…": "...", "㌔": "キロ", "ﬀ": "ff", "...": "…", "½": " 1/2", "\u0301": "", "🇩": "D", "日本": "JP", "\u2028": " "}
    f = tempfile.NamedTemporaryFile("w", suffix=".tsv", delete=False)
    for k, v in rows.items():
        f.write(" ".join("%X" % ord(c) for c in k) + "\t" + " ".join("%X" % ord(c) for c in v) + "\n")
    f.close()
    return f.name


def controls(s, m):
    return any(p.piece in s for p in m.pieces if p.type in (2, 3))


def spm_family(name, data, file="tokenizer.model", config=None, shift=None, pair=None):
    """What the sentencepiece library makes of the texts. Those with the spelling of a control piece are left out: the library does not
    find these, a server does."""
    import sentencepiece as sp
    p, m = sp.SentencePieceProcessor(model_proto=data), proto(data)
    shift = shift or (lambda i: i)
    ids = [None if controls(s, m) or "<mask>" in s or "<pad>" in s else [shift(i) for i in p.encode(s)] for s in TEXTS]
    files = {file: base64.b64encode(data).decode()}
    if config:
        files["tokenizer_config.json"] = base64.b64encode(json.dumps(config).encode()).decode()
    rows = []
    if pair:
        for i in range(0, len(TEXTS) - 1, 11):
            if ids[i] is not None and ids[i + 1] is not None:
                out = pair(ids[i], ids[i + 1])
                rows.append({"a": i, "b": i + 1, "limit": 0, "cut": "longest_first", "ids": out, "types": [0] * len(out)})
    FAMILIES[name] = {"files": files, "ids": ids, "pairs": rows}


def sentence_pieces():
    spm_family("spm_unigram", sentence_piece("nmt"), "spiece.model", {"tokenizer_class": "T5Tokenizer"}, pair=lambda a, b: a + [2] + b + [2])
    spm_family("spm_xlmr", sentence_piece("rules"), "sentencepiece.bpe.model", {"tokenizer_class": "XLMRobertaTokenizer"}, shift=lambda i: i + 1 if i else 3,
               pair=lambda a, b: [0] + a + [2, 2] + b + [2])
    user = ["<sep>", "word", "  ", "foo bar", "\t", "<s2>", "日本"]
    spm_family("spm_symbols", sentence_piece("symbols", model_type="unigram", user_defined_symbols=user, normalization_rule_name="identity", remove_extra_whitespaces=False))
    spm_family("spm_suffix", sentence_piece("suffix", model_type="unigram", treat_whitespace_as_suffix=True, normalization_rule_name="identity"))
    spm_family("spm_bpe", sentence_piece("bpe", model_type="bpe", user_defined_symbols=user, byte_fallback=True, vocab_size=1200, normalization_rule_name="identity", remove_extra_whitespaces=False))
    spm_family("spm_bpe_plain", sentence_piece("bpe_plain", model_type="bpe", add_dummy_prefix=False, normalization_rule_tsv=rules()))


def tiktokens():
    sys.path.append(os.environ.get("TIKTOKEN", "")) # where pip put tiktoken, if not here
    import tiktoken
    words = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]%s[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]%s(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    kimi = "|".join([r"[\p{Han}]+", words % ("*", "+"), words % ("+", "*"), r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
    llama3, qwen = make_goldens.LLAMA3, make_goldens.QWEN2
    for name, file, pattern, config in [
            ("tiktoken_kimi", "tiktoken.model", kimi, {"tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": {}}),
            ("tiktoken_qwen", "qwen.tiktoken", qwen, {"tokenizer_class": "QWenTokenizer"}),
            ("tiktoken_llama3", "tokenizer.model", llama3, None)]:
        t = ranks(800, pattern)
        e = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=t, special_tokens={})
        files = {file: base64.b64encode(b"".join(base64.b64encode(k) + b" %d\n" % v for k, v in t.items())).decode()}
        if config:
            if "added_tokens_decoder" in config:
                config["added_tokens_decoder"] = {str(len(t) + 3): {"content": "<|im_end|>", "special": True}}
            files["tokenizer_config.json"] = base64.b64encode(json.dumps(config).encode()).decode()
        nfc = (lambda s: unicodedata.normalize("NFC", s)) if "qwen" in name else (lambda s: s)
        FAMILIES[name] = {"files": files, "ids": [e.encode_ordinary(nfc(s)) for s in TEXTS], "pairs": []}


def ranks(size, pattern):
    """Byte pairs in the order of tokens, from a BPE of tokenizers; its ids after the bytes are its merges in order."""
    from tokenizers import Regex
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = P.Sequence([P.Split(Regex(pattern), behavior="isolated"), P.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=size, show_progress=False, initial_alphabet=P.ByteLevel.alphabet()))
    printable = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b]
    back = {chr(b): b for b in printable}
    back.update({chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in printable)})
    return {bytes(back[c] for c in s): i for s, i in sorted(t.get_vocab().items(), key=lambda x: x[1])}


if __name__ == "__main__":
    word_pieces()
    unigrams()
    sentence_pieces()
    tiktokens()
    with gzip.GzipFile(sys.argv[1], "wb", mtime=0) as z:
        z.write(json.dumps({"texts": TEXTS, "families": FAMILIES}, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass"))
