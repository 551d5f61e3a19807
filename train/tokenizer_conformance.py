"""Small tokenizers with the exact settings of published families, and what Hugging Face's
`tokenizers` makes of generated strings. Usage: tokenizer_conformance.py OUT.json.gz

Families: byte-level BPE with the pre-tokenizers of Llama 3, Qwen 2, DeepSeek (LLM and V2, Coder, V3), Mistral's Tekken and gpt-oss (o200k), and
SentencePiece-style BPE with byte fallback as Llama 2, Mistral and Gemma have it. The
vocabularies are trained here on generated text.
"""
import gzip, json, random, sys, unicodedata
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers as P, trainers
from goldens import DS1, DS2, DS3, LLAMA3, QWEN2, TEXTS

TEKKEN = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
END = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + END + r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + END + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# of DeepSeek LLM and V2: letters with case, code points of ranges
CASED = """A-Z a-z b5 c0-d6 d8-f6 f8-1ba 1bc-1bf 1c4-293 295-2af 370-373 376 377 37b-37d 37f 386 388-38a 38c 38e-3a1 3a3-3f5 3f7-481 48a-52f 531-556
10a0-10c5 13a0-13f5 13f8-13fd 1c90-1cba 1cbd-1cbf 1d00-1d2b 1d6b-1d77 1d79-1d9a 1e00-1f15 1f18-1f1d 1f20-1f45 1f48-1f4d 1f50-1f57 1f59 1f5b 1f5d 1f5f-1f7d
1f80-1fb4 1fb6-1fbc 1fbe 1fc2-1fc4 1fc6-1fcc 1fd0-1fd3 1fd6-1fdb 1fe0-1fec 1ff2-1ff4 1ff6-1ffc 2102 2107 210a-2113 2115 2119-211d 2124 2126 2128 212a-212d
212f-2134 2139 213c-213f 2145-2149 214e 2183 2184 2c00-2c7b 2c7e-2ce4 2ceb-2cee 2cf2 2cf3 a640-a66d a680-a69b a722-a76f a771-a787 a78b-a78e ab70-abbf
fb00-fb06 fb13-fb17 ff21-ff3a ff41-ff5a 10400-1044f 104b0-104d3 104d8-104fb 10c80-10cb2 10cc0-10cf2 118a0-118df 1e900-1e943"""
CASED = "".join(r if r in ("A-Z", "a-z") else "-".join(chr(int(c, 16)) for c in r.split("-")) for r in CASED.split())
WIDE = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
DSLLM = ["[\r\n]", "\\s?[" + CASED + "]+", "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", "\\s+$", WIDE]
DSCODER = ["[\r\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", WIDE]
SCRIPTS = [(0x20, 0x7E), (0xA0, 0x17F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x52F), (0x530, 0x5FF), (0x600, 0x6FF), (0x900, 0x97F), (0xE00, 0xE7F), (0x10A0, 0x10FF),
           (0x1100, 0x11FF), (0x1E00, 0x1EFF), (0x2000, 0x206F), (0x2070, 0x22FF), (0x2460, 0x25FF), (0x3040, 0x30FF), (0x3400, 0x3500), (0x4E00, 0x5200), (0xAC00, 0xAD00),
           (0xF900, 0xFA00), (0xFE00, 0xFE0F), (0xFF00, 0xFFEF), (0x1D400, 0x1D4FF), (0x1F300, 0x1F6FF), (0x1F900, 0x1F9FF), (0x20000, 0x20100), (0xE0020, 0xE007F)]
WORDS = ("the quick brown fox jumps over lazy dog function return value if else for while int main void struct Привет мир Γειά σου 日本語 テキスト 漢字 中文 한국어 נייר سلام नमस्ते ไทย "
         "don't I'll WE'RE you'd it's 'S 'LL ſ K naïve café e\u0301 A\u030a … — “x” 5€ £3 ½ ² Ⅷ ٣٤ १२ １２ 👩‍👩‍👧‍👦 🇩🇪 🏳️‍🌈 ❤️ x+=1; a[i]->b::c() {\"k\":[1,2]} https://a.b/c?d=e#f #include <s> </s> <unk> ▁ ▁▁ <0x0A> Ġ Ċ").split()
SPACES = [" ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", " \n ", "\u00a0", "\u3000", "\u2028", "\u200b", "\ufeff", "\x0b", "\x85", "        ", ""]
ODD = ["\x00", "\x01", "\x7f", "\ufffd", "\ufffe", "\U0010ffff", "\ue000", "\u0378", "\u200d", "\u202e", "\u0345\u0301", "\ud7a3", "\u1112\u1161\u11ab"]


def strings(n, seed):
    r = random.Random(seed)
    out = list(TEXTS)
    while len(out) < n:
        parts = []
        for _ in range(r.randrange(1, 9)):
            k = r.random()
            if k < 0.45:
                parts.append(r.choice(WORDS))
            elif k < 0.55:
                parts.append(str(r.randrange(10 ** r.randrange(1, 12))))
            elif k < 0.62:
                parts.append(r.choice(ODD))
            else:
                lo, hi = r.choice(SCRIPTS)
                parts.append("".join(chr(r.randrange(lo, hi + 1)) for _ in range(r.randrange(1, 6))))
            parts.append(r.choice(SPACES))
        out.append("".join(parts))
    return out


def corpus():
    return [unicodedata.normalize("NFC", s) for s in strings(4000, 1)]


def byte_level(patterns, nfc=False, digits=False, whole=False):
    t = Tokenizer(models.BPE(ignore_merges=whole))
    t.pre_tokenizer = P.Sequence([P.Split(Regex(p), behavior="isolated", invert=False) for p in patterns] + [P.Digits(individual_digits=True)] * digits + [P.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=False)])
    if nfc:
        t.normalizer = normalizers.NFC()
    t.decoder = decoders.ByteLevel()
    split = t.pre_tokenizer
    # merges across what the pre-tokenizer splits, so that every missing split shows
    t.pre_tokenizer = P.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=False)
    t.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=1500, show_progress=False, initial_alphabet=P.ByteLevel.alphabet(), special_tokens=["<s>", "</s>"]))
    t.pre_tokenizer = split
    return t


def sentence_piece(gemma):
    train = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    train.normalizer = normalizers.Replace(" ", "▁")
    train.pre_tokenizer = P.Split("▁", behavior="merged_with_next") # bounds the pieces while training only
    specials = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    train.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=1500, show_progress=False, special_tokens=specials, limit_alphabet=400))
    d = json.loads(train.to_str())
    d["added_tokens"] = [a for a in d["added_tokens"] if not a["content"].startswith("<0x")]
    d["pre_tokenizer"] = None
    t = Tokenizer.from_str(json.dumps(d))
    if gemma:
        t.normalizer = normalizers.Replace(" ", "▁")
        t.pre_tokenizer = P.Split(" ", behavior="merged_with_previous")
        t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    else:
        t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return t


def main():
    families = {"llama3": byte_level([LLAMA3], whole=True), "qwen2": byte_level([QWEN2], nfc=True), "deepseek3": byte_level([DS1, DS2, DS3]),
                "deepseek-llm": byte_level(DSLLM, digits=True), "deepseek-coder": byte_level(DSCODER, digits=True), "tekken": byte_level([TEKKEN], whole=True), "o200k": byte_level([O200K]),
                "llama2": sentence_piece(False), "gemma": sentence_piece(True)}
    texts = strings(2100, 7)
    out = {"texts": texts, "families": {}}
    for name, t in families.items():
        ids = [t.encode(s, add_special_tokens=False).ids for s in texts]
        r = random.Random(9)
        random_ids = [[r.randrange(t.get_vocab_size()) for _ in range(r.randrange(1, 20))] for _ in range(300)]
        out["families"][name] = {"tokenizer": json.loads(t.to_str()), "ids": ids, "decoded": [t.decode(i, skip_special_tokens=False) for i in ids],
                                 "random_ids": random_ids, "random_decoded": [t.decode(i, skip_special_tokens=False) for i in random_ids]}
        f = out["families"][name] # most decode to themselves: kept short
        f["decoded"] = {str(i): d for i, (s, d) in enumerate(zip(texts, f["decoded"])) if s != d}
    with gzip.GzipFile(sys.argv[1], "wb", mtime=0) as z:
        z.write(json.dumps(out, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass"))


if __name__ == "__main__":
    main()
