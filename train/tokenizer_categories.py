"""Writes internal/text/tokenizer/categories/tables.txt: the characters that the normalizers and
pre-tokenizers of Hugging Face's `tokenizers` treat alike. The library has its own tables of
several Unicode versions, so they are read from its results for every character.

Usage: tokenizer_categories.py > tables.txt
"""
import unicodedata
from tokenizers import normalizers as N, pre_tokenizers as P


def bert(**kw):
    return N.BertNormalizer(**{**dict(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False), **kw}).normalize_str


CLEAN, ACCENTS, MARKS, NMT = bert(clean_text=True), bert(strip_accents=True), N.StripAccents().normalize_str, N.Nmt().normalize_str
NFKD = N.NFKD().normalize_str
PUNCT = P.Punctuation().pre_tokenize_str
TABLES = {
    "punctuation": lambda s: len(PUNCT("a" + s + "b")) == 3,
    "nonspacing": lambda s: ACCENTS("a" + s + "b") == "ab",
    "marks": lambda s: MARKS("a" + s + "b") == "ab",
    "control": lambda s: CLEAN("a" + s + "b") == "ab",
    "nmt-removed": lambda s: NMT("a" + s + "b") == "ab",
    # newer than the library's tables: a form of compatibility leaves the character
    "kept": lambda s: s == NFKD(s) != unicodedata.normalize("NFKD", s),
    "nmt-space": lambda s: s != " " and NMT("a" + s + "b") == "a b",
}

for name, test in TABLES.items():
    ranges = []
    for c in range(0x110000):
        if 0xD800 <= c <= 0xDFFF or not test(chr(c)):
            continue
        if ranges and ranges[-1][1] == c - 1:
            ranges[-1][1] = c
        else:
            ranges.append([c, c])
    print(name, " ".join("%x-%x" % (a, b) if a < b else "%x" % a for a, b in ranges))

# newer than package unicode: pairs of an upper-case character and its lower case
LOWER = N.Lowercase().normalize_str
print("lower", " ".join("%x-%x" % (c, ord(LOWER(chr(c)))) for c in range(0x110000)
                        if not 0xD800 <= c <= 0xDFFF and len(LOWER(chr(c))) == 1 and LOWER(chr(c)) != chr(c).lower()))
