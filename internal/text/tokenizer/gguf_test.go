package tokenizer

import (
	"errors"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/model/modeltest"
	"github.com/shoal-llm/shoal/internal/text/tokenizer/vocabfile"
)

func writeGGUF(t testing.TB, g *modeltest.GGUF) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := os.WriteFile(path, g.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// A tokenizer converted to GGUF metadata gives the ids of its tokenizer.json.
func TestGGUFByteLevel(t *testing.T) {
	for name, pre := range map[string]string{"llama": "llama-bpe", "qwen2": "qwen2", "deepseek_v3": "deepseek-v3", "gemma4": ""} {
		t.Run(name, func(t *testing.T) {
			g := &modeltest.GGUF{}
			if err := g.Vocabulary(filepath.Join("testdata", name), pre); err != nil {
				t.Fatal(err)
			}
			if name == "gemma4" { // which has no name of a pattern
				g.Unset("tokenizer.ggml.model")
				g.Unset("tokenizer.ggml.pre")
				g.Set("tokenizer.ggml.model", "gemma4")
				g.Set("tokenizer.ggml.unknown_token_id", 3)
			}
			path := writeGGUF(t, g)
			tok, err := Load(path)
			if err != nil {
				t.Fatal(err)
			}
			var cases []goldenCase
			readJSON(t, filepath.Join("testdata", name, "tokenizer_goldens.json"), &cases)
			for _, c := range cases {
				text := c.Decoded
				c.Decoded = nil
				checkCase(t, tok, c)
				checkDecode(t, tok, c.IDsNoSpecial, false, text)
			}
			hub := mustLoad(t, name)
			if tok.VocabSize() != hub.VocabSize() || !slices.Equal(tok.Specials(), hub.Specials()) {
				t.Errorf("%d tokens, specials %v; want %d, %v", tok.VocabSize(), tok.Specials(), hub.VocabSize(), hub.Specials())
			}
			for _, f := range []func(*Tokenizer) (int32, bool){(*Tokenizer).BOS, (*Tokenizer).EOS} {
				a, _ := f(tok)
				if b, _ := f(hub); a != b {
					t.Errorf("special token %d, want %d", a, b)
				}
			}
			if one, err := Load(filepath.Dir(path)); err != nil || one.VocabSize() != tok.VocabSize() {
				t.Errorf("from its folder: %v", err)
			}
		})
	}
}

// spm is the output of sentencepiece.py for a small trained model.
type spm struct {
	Tokens []string
	Scores []float32
	Kinds  []int32
	Texts  []struct {
		Text, Decoded string
		IDs           []int32
	}
}

func (s *spm) file() *modeltest.GGUF {
	g := &modeltest.GGUF{}
	g.Set("tokenizer.ggml.model", "llama")
	g.Set("tokenizer.ggml.tokens", s.Tokens)
	g.Set("tokenizer.ggml.scores", s.Scores)
	g.Set("tokenizer.ggml.token_type", s.Kinds)
	g.Set("tokenizer.ggml.bos_token_id", 1)
	g.Set("tokenizer.ggml.eos_token_id", 2)
	return g
}

// The ids equal those of the sentencepiece library, with merges by score.
func TestGGUFSentencePiece(t *testing.T) {
	var s spm
	readJSON(t, "testdata/gguf/sentencepiece.json", &s)
	tok, err := Load(writeGGUF(t, s.file()))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range s.Texts {
		if got := tok.Encode(c.Text, false); !slices.Equal(got, c.IDs) {
			t.Errorf("Encode(%q):\n got %v\nwant %v", c.Text, names(tok, got), names(tok, c.IDs))
		}
		if got := tok.Decode(c.IDs, true); got != c.Decoded {
			t.Errorf("Decode of %q: %q, want %q", c.Text, got, c.Decoded)
		}
		if got := tok.Encode(c.Text, true); len(got) != len(c.IDs)+1 || got[0] != 1 {
			t.Errorf("Encode(%q) with BOS: %v", c.Text, got)
		}
	}
	if got := tok.EncodeLiteral("</s><unk>"); slices.Contains(got, 2) || slices.Contains(got, 0) {
		t.Errorf("literal control tokens: %v", names(tok, got))
	}
	g := s.file()
	g.Set("tokenizer.ggml.add_space_prefix", false)
	g.Set("tokenizer.ggml.add_bos_token", false)
	plain, err := Load(writeGGUF(t, g))
	if err != nil {
		t.Fatal(err)
	}
	if got := names(plain, plain.Encode("the", true)); strings.Join(got, "") != "the" {
		t.Errorf("without a prefix: %q", got)
	}
}

// White space next to some special tokens is not part of a text. Files have no flag for that: it follows from
// the names of the model, of the architecture and of the pre-tokenizer.
func TestGGUFStrippedSpace(t *testing.T) {
	var s spm
	readJSON(t, "testdata/gguf/sentencepiece.json", &s)
	const user, mask = "<|user|>", "<mask>"
	s.Tokens, s.Scores = append(s.Tokens, user, "<|endoftext|>", mask), append(s.Scores, 0, 0, 0)
	s.Kinds = append(s.Kinds, vocabfile.Control, vocabfile.Control, vocabfile.UserDefined)
	for _, test := range []struct {
		key, value string
		right      []string // tokens that swallow the space after them
		left       []string // and before them
	}{
		{"general.name", "Phi 3 Mini", nil, nil},
		{"general.name", "Phi-3-mini-4k-instruct", []string{user, "</s>", mask}, nil},
		{"general.name", "my phi3", []string{user, "</s>", mask}, nil},
		{"general.architecture", "nomic-bert-moe", nil, []string{mask}},
		{"general.architecture", "llama", nil, nil},
		{"general.architecture", "phi3", []string{user, "</s>", mask}, nil},
		{"tokenizer.ggml.pre", "jina-v2-de", nil, []string{mask}},
	} {
		g := s.file()
		g.Set(test.key, test.value)
		tok, err := Load(writeGGUF(t, g))
		if err != nil {
			t.Fatal(err)
		}
		for _, special := range []string{user, "<s>", "</s>", "<unk>", "<|endoftext|>", mask} {
			id, _ := tok.ID(special)
			want := slices.Concat(tok.Encode("the ", false), []int32{id}, tok.Encode(" \nthe", false))
			if slices.Contains(test.right, special) {
				want = slices.Concat(tok.Encode("the ", false), []int32{id}, tok.Encode("the", false))
			} else if slices.Contains(test.left, special) {
				want = slices.Concat(tok.Encode("the", false), []int32{id}, tok.Encode(" \nthe", false))
			}
			if got := tok.Encode("the "+special+" \nthe", false); !slices.Equal(got, want) {
				t.Errorf("%s %q: %s: %q, want %q", test.key, test.value, special, names(tok, got), names(tok, want))
			}
		}
	}
}

// Of merges with equal scores, the leftmost comes first, as in sentencepiece and llama.cpp. Vocabularies that were
// extended have thousands of tokens with one score.
func TestGGUFEqualScores(t *testing.T) {
	s := spm{Tokens: []string{"<unk>", "<s>", "</s>", "a", "b", "c", "d", "bc", "cd", "ab", "abc", "aa"},
		Scores: []float32{0, 0, 0, -9, -9, -9, -9, 0, 0, 0, -2, -3},
		Kinds:  []int32{2, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1}}
	g := s.file()
	g.Set("tokenizer.ggml.add_space_prefix", false)
	tok, err := Load(writeGGUF(t, g))
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string][]int32{"abc": {10}, "abcd": {9, 8}, "bcd": {7, 6}, "bcbcd": {7, 7, 6}, "aabc": {3, 10},
		"dabcd": {6, 9, 8}} {
		if got := tok.Encode(text, false); !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

// If two ids have the same text, encoding uses the first, and both are decoded.
func TestGGUFTokenTwice(t *testing.T) {
	var s spm
	readJSON(t, "testdata/gguf/sentencepiece.json", &s)
	plain, err := Load(writeGGUF(t, s.file()))
	if err != nil {
		t.Fatal(err)
	}
	const normal = 600
	s.Tokens = append(s.Tokens, s.Tokens[normal], "<s>")
	s.Scores = append(s.Scores, 1e6, 0) // a merge into the second id would come first
	s.Kinds = append(s.Kinds, s.Kinds[normal], vocabfile.Control)
	tok, err := Load(writeGGUF(t, s.file()))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range s.Texts {
		if got, want := tok.Encode(c.Text, true), plain.Encode(c.Text, true); !slices.Equal(got, want) {
			t.Errorf("Encode(%q): %v, want %v", c.Text, got, want)
		}
	}
	last := int32(len(s.Tokens) - 1)
	if got, want := tok.Decode([]int32{5, last - 1}, false), plain.Decode([]int32{5, normal}, false); got != want ||
		tok.VocabSize() != len(s.Tokens) {
		t.Errorf("the second id decodes to %q, want %q; %d tokens", got, want, tok.VocabSize())
	}
	if !tok.IsSpecial(last) || tok.Decode([]int32{5, last}, true) != plain.Decode([]int32{5}, true) {
		t.Errorf("the second id of a control token is text: %q", tok.Decode([]int32{5, last}, true))
	}
	if w := strings.Join(tok.Warnings(), "\n"); !strings.Contains(w, "600 and 700") || !strings.Contains(w, `1 and 701 both have the text "<s>"`) {
		t.Errorf("warnings: %s", w)
	}
}

// add_eos_token of a GGUF file is applied, because no template can override it.
func TestGGUFAddsEOS(t *testing.T) {
	var s spm
	readJSON(t, "testdata/gguf/sentencepiece.json", &s)
	g := s.file()
	g.Set("tokenizer.ggml.add_eos_token", true)
	tok, err := Load(writeGGUF(t, g))
	if err != nil {
		t.Fatal(err)
	}
	if ids := tok.Encode("the", true); ids[len(ids)-1] != 2 {
		t.Errorf("%v does not end with EOS", ids)
	}
}

// Gemma's vocabulary: no space before a text; runs of spaces and line breaks that the converter
// marks as user-defined (with real spaces); turn marks as control tokens.
func TestGGUFGemma(t *testing.T) {
	var s spm
	readJSON(t, "testdata/gguf/sentencepiece.json", &s)
	own := map[string]int32{"  ": 4, "   ": 4, "\n\n": 4, "<end_of_turn>": 3}
	g, ids := s.file(), map[string]int32{}
	for _, text := range slices.Sorted(maps.Keys(own)) {
		ids[text] = int32(len(s.Tokens))
		s.Tokens, s.Kinds, s.Scores = append(s.Tokens, text), append(s.Kinds, own[text]), append(s.Scores, -1000)
	}
	for key, v := range map[string]any{"tokens": s.Tokens, "scores": s.Scores, "token_type": s.Kinds, "add_space_prefix": false} {
		g.Unset("tokenizer.ggml." + key)
		g.Set("tokenizer.ggml."+key, v)
	}
	tok, err := Load(writeGGUF(t, g))
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string][]string{"the": nil, " the": nil, "the  the": {"  "},
		"   x\n\nx  ": {"   ", "\n\n", "  "}, "the\nthe": nil, "the<end_of_turn>": {"<end_of_turn>"}} {
		got := tok.Encode(text, false)
		var found []int32
		for _, id := range got {
			if id >= ids[slices.Min(slices.Collect(maps.Keys(ids)))] {
				found = append(found, id)
			}
		}
		var wants []int32
		for _, w := range want {
			wants = append(wants, ids[w])
		}
		if !slices.Equal(found, wants) || tok.Decode(got, false) != text {
			t.Errorf("Encode(%q): %v, back %q", text, names(tok, got), tok.Decode(got, false))
		}
		if lit := tok.EncodeLiteral(text); slices.Contains(lit, ids["<end_of_turn>"]) {
			t.Errorf("EncodeLiteral(%q): %v", text, names(tok, lit))
		}
	}
}

func TestGGUFChatTemplate(t *testing.T) {
	g := &modeltest.GGUF{}
	if err := g.Vocabulary(filepath.Join("testdata", "llama"), "llama-bpe"); err != nil {
		t.Fatal(err)
	}
	got, err := LoadChatTemplate(writeGGUF(t, g))
	if err != nil {
		t.Fatal(err)
	}
	want, err := LoadChatTemplate(filepath.Join("testdata", "llama"))
	if err != nil {
		t.Fatal(err)
	}
	if got.Source() == "" || got.Source() != want.Source() || got.Special("bos_token") != want.Special("bos_token") {
		t.Errorf("template %q, bos %q", got.Source(), got.Special("bos_token"))
	}
	g.Set("tokenizer.chat_template.tool_use", "{{ 1 }}")
	if two, err := LoadChatTemplate(writeGGUF(t, g)); err != nil || two.Source() != want.Source() || len(two.source) != 2 {
		t.Errorf("with a named one: %v", err)
	}
	g.Unset("tokenizer.chat_template")
	if one, err := LoadChatTemplate(writeGGUF(t, g)); err != nil || one.Source() != "{{ 1 }}" {
		t.Errorf("with a named one alone: %v", err)
	}
	g.Unset("tokenizer.chat_template.tool_use")
	if _, err := LoadChatTemplate(writeGGUF(t, g)); !errors.Is(err, ErrNoChatTemplate) {
		t.Errorf("without: %v", err)
	}
}

func TestGGUFTokenizerRefused(t *testing.T) {
	var s spm
	readJSON(t, "testdata/gguf/sentencepiece.json", &s)
	bpe := func() *modeltest.GGUF {
		g := &modeltest.GGUF{}
		if err := g.Vocabulary(filepath.Join("testdata", "llama"), "llama-bpe"); err != nil {
			t.Fatal(err)
		}
		return g
	}
	const p = "tokenizer.ggml."
	for name, test := range map[string]struct {
		g     *modeltest.GGUF
		key   string
		v     any // nil: unset
		kind  error
		wants string
	}{
		"no tokens":         {bpe(), p + "tokens", nil, ErrInvalid, "has no tokenizer"},
		"tokens of numbers": {bpe(), p + "tokens", []int32{1}, ErrInvalid, "array of strings"},
		"twice the same":    {bpe(), p + "tokens", []string{"a", "a"}, ErrInvalid, "token_type"},
		"not UTF-8": {s.file(), p + "tokens", append(slices.Clone(s.Tokens[:699]), "\xff"),
			ErrInvalid, "token 699 is not valid UTF-8"},
		"another model":       {bpe(), p + "model", "ugm", ErrUnsupported, `"ugm" is not one of bert, gemma4, gpt2, llama, t5`},
		"no model":            {bpe(), p + "model", nil, ErrUnsupported, `""`},
		"unknown pattern":     {bpe(), p + "pre", "falcon", ErrUnsupported, `"falcon" is not one of deepseek-coder, deepseek-llm, deepseek-r1-qwen, deepseek-v3, gpt-2, gpt-4o, llama-bpe`},
		"no pattern":          {bpe(), p + "pre", nil, ErrUnsupported, `"default" is not one of`},
		"no merges":           {bpe(), p + "merges", nil, ErrInvalid, "merges"},
		"merge of nothing":    {bpe(), p + "merges", []string{"nosuch token"}, ErrInvalid, "merges[0]"},
		"merge of three":      {bpe(), p + "merges", []string{"a b c"}, ErrInvalid, "3 parts"},
		"bos outside":         {bpe(), p + "bos_token_id", 1 << 20, ErrInvalid, "bos_token_id"},
		"no scores":           {s.file(), p + "scores", nil, ErrInvalid, "0 entries for 700 tokens"},
		"scores all the same": {s.file(), p + "scores", make([]float32, 700), ErrInvalid, "order of merges"},
		"a score of NaN": {s.file(), p + "scores", append(slices.Clone(s.Scores[:699]), float32(math.NaN())),
			ErrInvalid, "token 699 has a NaN"},
		"another normalizer":   {s.file(), p + "precompiled_charsmap", []int32{1}, ErrInvalid, "precompiled_charsmap"},
		"template of a number": {bpe(), "tokenizer.chat_template", 5, ErrInvalid, "chat_template"},
	} {
		test.g.Unset(test.key)
		if test.v != nil {
			test.g.Set(test.key, test.v)
		}
		_, err := Load(writeGGUF(t, test.g))
		if !errors.Is(err, test.kind) || !strings.Contains(err.Error(), test.wants) {
			t.Errorf("%s: %v, want %q (%v)", name, err, test.wants, test.kind)
		}
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "m.gguf"), []byte("no"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
}

// FuzzGGUF: a file with any metadata is refused, or it loads, and decoding inverts encoding.
func FuzzGGUF(f *testing.F) {
	const p = "tokenizer.ggml."
	for _, kind := range []string{"llama", "gpt2", "gemma4"} {
		g := &modeltest.GGUF{}
		g.Set(p+"model", kind)
		g.Set(p+"pre", "deepseek-v3")
		g.Set(p+"tokens", []string{"<unk>", "<s>", "</s>", "<0x61>", "a", "b", "ab", "\u2581", "\u2581a", "  ", "\u0120"})
		g.Set(p+"scores", []float32{0, 0, 0, 0, -1, -2, -3, -4, -5, 0, -6})
		g.Set(p+"token_type", []int32{2, 3, 3, 6, 1, 1, 1, 1, 1, 4, 1})
		g.Set(p+"merges", []string{"a b"})
		g.Set(p+"bos_token_id", 1)
		g.Set(p+"eos_token_id", 2)
		g.Set(p+"unknown_token_id", 0)
		g.Set(p+"add_space_prefix", false)
		g.Set("tokenizer.chat_template", "{{ messages[0].content }}")
		f.Add(g.Bytes())
	}
	path := filepath.Join(f.TempDir(), "m.gguf")
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		tok, err := Load(path)
		if err != nil {
			if !errors.Is(err, ErrInvalid) && !errors.Is(err, ErrUnsupported) {
				t.Fatalf("error of neither kind: %v", err)
			}
			return
		}
		ids := tok.Encode(" ab <s>  é\n", true)
		for _, id := range ids {
			if id < 0 || int(id) >= tok.VocabSize() {
				t.Fatalf("id %d outside [0, %d)", id, tok.VocabSize())
			}
		}
		tok.Decode(ids, false)
	})
}
