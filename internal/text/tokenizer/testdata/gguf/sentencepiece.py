"""Trains a small SentencePiece BPE with byte fallback on Go sources and writes what a GGUF file says of it, with encodings. Usage: spm.py OUT.json TEXT..."""
import sys, json, io
import sentencepiece as sp
texts = [open(f, encoding="utf-8").read() for f in sys.argv[2:]]
m = io.BytesIO()
sp.SentencePieceTrainer.train(sentence_iterator=iter([l for t in texts for l in t.split("\n") if l]), model_writer=m, model_type="bpe", vocab_size=700, byte_fallback=True,
    normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=True, character_coverage=0.999, split_digits=True, allow_whitespace_only_pieces=True, minloglevel=2)
p = sp.SentencePieceProcessor(model_proto=m.getvalue())
n = p.get_piece_size()
kind = lambda i: 2 if p.is_unknown(i) else 3 if p.is_control(i) else 6 if p.is_byte(i) else 1
samples = ["Hello, world!", "func main() {\n\tfmt.Println(\"hi\")\n}\n", "  two  spaces\tand a tab\n\n\nthree newlines ", "1234567890 3.14159", "naïve café — “quotes” … 5€", "日本語のテキスト と 漢字", "🙂 emoji", "", " ", "\n", "a", "   leading", "trailing   ",
    "aaaaaaaaaaaaaaaaaaaa", "x+=y*(z-1)//2 && !done || a[i]<=b", "the the the return returns", "\u2581 mark", "package http // Request is an HTTP request"]
json.dump({"tokens": [p.id_to_piece(i) for i in range(n)], "scores": [p.get_score(i) for i in range(n)], "kinds": [kind(i) for i in range(n)],
    "texts": [{"text": s, "ids": p.encode(s), "decoded": p.decode(p.encode(s))} for s in samples]}, open(sys.argv[1], "w"), ensure_ascii=False)
