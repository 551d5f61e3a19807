"""Small tokenizers of encoder models (WordPiece, Unigram) and of files other than tokenizer.json, and what
the reference libraries make of difficult and generated strings. Usage: tokenizer_encoders.py OUT.json.gz

References: tokenizers, transformers, sentencepiece, tiktoken. The vocabularies are trained here.
"""
import base64, gzip, importlib.util, json, os, random, sys, tempfile
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


if __name__ == "__main__":
    word_pieces()
    with gzip.GzipFile(sys.argv[1], "wb", mtime=0) as z:
        z.write(json.dumps({"texts": TEXTS, "families": FAMILIES}, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass"))
