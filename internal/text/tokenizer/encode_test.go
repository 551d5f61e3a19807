package tokenizer

import (
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// hostile returns user text that contains control tokens.
func hostile(tok *Tokenizer) string {
	var b strings.Builder
	for _, id := range tok.Specials() {
		s := tok.Token(id)
		b.WriteString(s + " " + s + s + "\n" + s[:1] + s + "x")
	}
	return b.String()
}

// TestLiteral: literal text never produces a special token, and loses no text.
func TestLiteral(t *testing.T) {
	for _, name := range hfNames(t) {
		tok := loadHF(t, name)
		specials := tok.Specials()
		texts := []string{hostile(tok), "a" + hostile(tok)}
		for _, id := range specials {
			texts = append(texts, tok.Token(id))
		}
		for _, text := range texts {
			for _, id := range tok.EncodeLiteral(text) {
				if tok.IsSpecial(id) && id != tok.vocab.unk {
					t.Errorf("%s: EncodeLiteral(%q) makes %q", name, text, tok.Token(id))
				}
			}
		}
	}
	tok := mustLoad(t, "llama")
	if text := hostile(tok); tok.Decode(tok.EncodeLiteral(text), true) != text {
		t.Errorf("literal text changed: %q", tok.Decode(tok.EncodeLiteral(text), true))
	}
}

// TestLiteralBreaksMerges: a vocabulary whose own merges produce a special token.
func TestLiteralBreaksMerges(t *testing.T) {
	for _, ignore := range []string{"true", "false"} {
		tok, err := Parse(Files{Tokenizer: []byte(`{"model": {"ignore_merges": ` + ignore + `,
			"vocab": {"<": 0, "s": 1, ">": 2, "<s": 3, "<s>": 4, "s>": 5},
			"merges": ["< s", "<s >", "s >"]},
			"added_tokens": [{"id": 4, "content": "<s>", "special": true}]}`)})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second time from the cache
			if got := tok.Encode("<s>", false); !slices.Equal(got, []int32{4}) {
				t.Errorf("Encode = %v", got)
			}
			if got := tok.EncodeLiteral("<s>"); !slices.Equal(got, []int32{3, 2}) {
				t.Errorf("EncodeLiteral = %v", got)
			}
		}
	}
}

// TestParts: parts form one text, and no added token may overlap a literal part.
func TestParts(t *testing.T) {
	for _, name := range []string{"llama", "qwen2", "fry", "spm_llama2", "spm_first", "normalized_added", "gpt2", "llama3_ignore_merges"} {
		tok := loadHF(t, name)
		rapid.Check(t, func(t *rapid.T) {
			words := rapid.SliceOfN(rapid.SampledFrom([]string{"a", " hello", "\n", "\n\n", "wor", "ld", "é", "12", "!", "  "}),
				1, 8).Draw(t, "words")
			var parts []Part
			for _, w := range words {
				parts = append(parts, Part{w, rapid.Bool().Draw(t, "literal")})
			}
			got, err := tok.TryEncode(t.Context(), parts, true)
			if want := tok.Encode(strings.Join(words, ""), true); err != nil || !slices.Equal(got, want) {
				t.Fatalf("%s %v: parts give %v, whole text %v", name, parts, got, want)
			}
		})
	}
	tok := mustLoad(t, "llama")
	start, _ := tok.ID("<|im_start|>")
	ids, err := tok.TryEncode(t.Context(),
		[]Part{{"<|im_start|>user\n", false}, {"<|im_start|>", true}, {"<|im_", false}, {"start|>", true}}, true)
	if n := len(slices.DeleteFunc(slices.Clone(ids), func(id int32) bool { return id != start })); err != nil || n != 1 {
		t.Errorf("%d control tokens, want the template's one: %v", n, names(tok, ids))
	}
	if got := tok.Decode(ids, false); got != "<|bos|><|im_start|>user\n<|im_start|><|im_start|>" {
		t.Errorf("text changed: %q", got)
	}
}

// TestPartsNormalized: a normalized special token of the template is recognised next to literal
// text.
func TestPartsNormalized(t *testing.T) {
	tok, err := Parse(Files{Tokenizer: []byte(`{"model": {"unk_token": "?", "vocab": {"?": 0, "▁": 1, "a": 2, "<s>": 3}, "merges": []},
		"normalizer": {"type": "Prepend", "prepend": "▁"},
		"added_tokens": [{"id": 3, "content": "<s>", "special": true, "normalized": true}]}`)})
	if err != nil {
		t.Fatal(err)
	}
	ids, err := tok.TryEncode(t.Context(), []Part{{"<s>", false}, {"a<s>", true}}, false)
	if want := []int32{3, 1, 2, 0, 0, 0}; err != nil || !slices.Equal(ids, want) {
		t.Errorf("got %v, want %v", ids, want)
	}
}

func TestInvalidUTF8(t *testing.T) {
	tok := mustLoad(t, "llama")
	if got := tok.Decode(tok.Encode("a\xffb\xe6\x97", false), false); got != "a\uFFFDb\uFFFD" {
		t.Errorf("got %q", got)
	}
}

// TestLongWord: one word of half a megabyte. A quadratic algorithm would take minutes.
func TestLongWord(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	b := make([]byte, 1<<19)
	for i := range b {
		b[i] = "abcdehilnorstuw"[r.IntN(15)]
	}
	for name, text := range map[string]string{
		"no_pretokenizer": string(b), "spm_first": strings.Repeat("word", 1<<16), "llama": strings.Repeat(" ", 1<<19) + "x",
		"o200k": strings.Repeat("a\n", 1<<16), "deepseek": strings.Repeat("!", 1<<19), "gpt2": strings.Repeat("<|", 1<<18),
		"qwen2_nfc": strings.Repeat("\u0301", 1<<17), "split_contiguous": strings.Repeat("1", 1<<17),
	} {
		tok := loadHF(t, name)
		start := time.Now()
		ids := tok.Encode(text, false)
		if took := time.Since(start); took > 2*time.Minute { // allows for the race detector and a loaded machine
			t.Errorf("%s: %d bytes took %v", name, len(text), took)
		}
		if got := tok.Decode(ids, false); got != text {
			t.Errorf("%s: %d bytes came back as %d", name, len(text), len(got))
		}
	}
}

// TestConcurrent: many goroutines share one tokenizer and its cache (run with -race).
func TestConcurrent(t *testing.T) {
	tok := mustLoad(t, "llama")
	var cases []goldenCase
	readJSON(t, "testdata/llama/tokenizer_goldens.json", &cases)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for _, c := range cases {
				if !slices.Equal(tok.Encode(c.Text, true), c.IDs) {
					t.Errorf("Encode(%q) differs", c.Text)
				}
			}
		})
	}
	wg.Wait()
}

func TestTokenBytes(t *testing.T) {
	for name, text := range map[string]string{"llama": "héllo 🚀 wörld", "spm_llama2": " héllo 🚀 wörld", "spm_gemma": "héllo 🚀 wörld"} {
		tok := loadHF(t, name)
		var got []byte
		for _, id := range tok.EncodeLiteral(strings.TrimPrefix(text, " ")) {
			got = append(got, tok.TokenBytes(id)...)
		}
		if string(got) != text {
			t.Errorf("%s: %q, want %q", name, got, text)
		}
		if tok.TokenBytes(-1) != nil || tok.TokenBytes(int32(tok.VocabSize())) != nil {
			t.Errorf("%s: ids outside the vocabulary have bytes", name)
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	var parts []string
	var g goldenFile
	readJSON(b, "testdata/hf/llama.golden.json", &g)
	for _, c := range g.Cases[9:20] {
		parts = append(parts, c.Text)
	}
	mixed := strings.Repeat(strings.Join(parts, "\n"), 64)
	code := strings.Repeat("func (b *Buffer) Write(p []byte) (n int, err error) {\n\tif err != nil {\n"+
		"\t\treturn 0, fmt.Errorf(\"write %d: %w\", 1234, err)\n\t}\n\treturn len(p), nil\n}\n", 200)
	for _, name := range []string{"fry", "qwen2", "deepseek", "o200k", "spm_llama2"} {
		tok := loadHF(b, name)
		for kind, text := range map[string]string{"mixed": mixed, "code": code} {
			b.Run(name+"/"+kind, func(b *testing.B) {
				b.SetBytes(int64(len(text)))
				for b.Loop() {
					tok.Encode(text, false)
				}
			})
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	tok := mustLoad(b, "fry")
	text := strings.Repeat("The Go memory model specifies the conditions under which reads observe writes.\n", 200)
	ids := tok.Encode(text, false)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		tok.Decode(ids, true)
	}
}
