package tokenizer

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/shoal-llm/shoal/internal/engine/model/modeltest"
	"github.com/shoal-llm/shoal/internal/text/tokenizer/sentencepiece"
	"github.com/shoal-llm/shoal/internal/text/tokenizer/vocabfile"
)

// encoderGoldens is written by train/tokenizer_encoders.py.
type encoderGoldens struct {
	Texts    []string
	Families map[string]encoderFamily
}

type encoderFamily struct {
	Files   map[string][]byte
	IDs     [][]int32 // without special tokens; nil: not compared
	Decoded []string
	Pairs   []struct {
		A, B, Limit int
		Cut         string
		IDs, Types  []int32
		Error       string
	}
}

func readEncoders(t testing.TB) (g encoderGoldens) {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", "encoders", "goldens.json.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.NewDecoder(z).Decode(&g); err != nil {
		t.Fatal(err)
	}
	if len(g.Texts) < 500 || len(g.Families) < 18 {
		t.Fatalf("%d texts, %d families", len(g.Texts), len(g.Families))
	}
	return g
}

// load writes the files of a family and loads them.
func (f encoderFamily) load(t testing.TB) *Tokenizer {
	t.Helper()
	dir := t.TempDir()
	for name, data := range f.Files {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tok, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// TestEncoders compares ids, pairs, token types, truncation and decoded texts with the reference
// libraries.
func TestEncoders(t *testing.T) {
	g := readEncoders(t)
	for name, f := range g.Families {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tok := f.load(t)
			wrong := 0
			report := func(format string, args ...any) {
				if wrong++; wrong <= 8 {
					t.Errorf(format, args...)
				}
			}
			for i, text := range g.Texts {
				if f.IDs[i] == nil {
					continue // the reference does not find control tokens in texts
				}
				if got := tok.Encode(text, false); !slices.Equal(got, f.IDs[i]) {
					report("%q becomes %q, want %q", text, names(tok, got), names(tok, f.IDs[i]))
				}
				if f.Decoded == nil {
					continue
				}
				if got := tok.Decode(f.IDs[i], false); got != f.Decoded[i] {
					report("%q becomes the text %q, want %q", names(tok, f.IDs[i]), got, f.Decoded[i])
				}
			}
			for _, p := range f.Pairs {
				texts := [][]Part{{{Text: g.Texts[p.A]}}}
				if p.B >= 0 {
					texts = append(texts, []Part{{Text: g.Texts[p.B]}})
				}
				cut := map[string]Truncation{"longest_first": LongestFirst, "only_first": OnlyFirst, "only_second": OnlySecond}[p.Cut]
				e, err := tok.EncodeTexts(t.Context(), texts, p.Limit, cut)
				if (err != nil) != (p.Error != "") || !slices.Equal(e.IDs, p.IDs) || !slices.Equal(e.Types, p.Types) {
					report("texts %d and %d, limit %d, %s: ids %v of types %v (%v), want %v of types %v (%s)",
						p.A, p.B, p.Limit, p.Cut, e.IDs, e.Types, err, p.IDs, p.Types, p.Error)
				}
			}
			if wrong > 0 {
				t.Errorf("%d differences in all", wrong)
			}
		})
	}
}

// TestGGUFBert reads the WordPiece vocabularies of the goldens from GGUF metadata.
func TestGGUFBert(t *testing.T) {
	g := readEncoders(t)
	for _, name := range []string{"bert", "bert_cased"} {
		tok := g.Families[name].load(t)
		file := &modeltest.GGUF{}
		var tokens []string
		var kinds []int32
		for id := range tok.VocabSize() {
			s, kind := tok.Token(int32(id)), int32(vocabfile.Normal)
			piece, inside := strings.CutPrefix(s, "##")
			switch {
			case tok.IsSpecial(int32(id)):
				kind = vocabfile.Control
			case inside:
				s = piece
			default:
				s = "\u2581" + s
			}
			tokens, kinds = append(tokens, s), append(kinds, kind)
		}
		for key, v := range map[string]any{"model": "bert", "tokens": tokens, "token_type": kinds,
			"bos_token_id": 2, "eos_token_id": 3, "unknown_token_id": 1} {
			file.Set(vocabfile.GGUFPrefix+key, v)
		}
		got, err := Load(writeGGUF(t, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range g.Texts {
			if strings.Contains(text, "\u2581") {
				continue // GGUF files do not distinguish the piece "##▁" from the empty word
			}
			if a, b := got.Encode(text, true), tok.Encode(text, true); !slices.Equal(a, b) {
				t.Errorf("%s: %q becomes %q, want %q", name, text, names(tok, a), names(tok, b))
			}
		}
	}
}

// TestGGUFUnigram reads a SentencePiece vocabulary with its table of replacements from GGUF metadata.
func TestGGUFUnigram(t *testing.T) {
	g := readEncoders(t)
	f := g.Families["spm_xlmr"]
	m, err := sentencepiece.Parse(f.Files["sentencepiece.bpe.model"])
	if err != nil {
		t.Fatal(err)
	}
	want := f.load(t)
	file := &modeltest.GGUF{}
	tokens, scores, kinds := []string{"<s>", "<pad>", "</s>", "<unk>"}, []float32{0, 0, 0, 0}, []int32{3, 3, 3, 2}
	for _, p := range m.Pieces[3:] {
		tokens, scores, kinds = append(tokens, p.Text), append(scores, p.Score), append(kinds, int32(p.Type))
	}
	table := make([]int32, len(m.Charsmap))
	for i, b := range m.Charsmap {
		table[i] = int32(b)
	}
	file.Set("general.architecture", "bert")
	for key, v := range map[string]any{"model": "t5", "tokens": tokens, "scores": scores, "token_type": kinds,
		"bos_token_id": 0, "eos_token_id": 2,
		"unknown_token_id": 3, "precompiled_charsmap": table, "remove_extra_whitespaces": true} {
		file.Set(vocabfile.GGUFPrefix+key, v)
	}
	got, err := Load(writeGGUF(t, file))
	if err != nil {
		t.Fatal(err)
	}
	for i, text := range g.Texts {
		if f.IDs[i] == nil {
			continue
		}
		texts := [][]Part{{{Text: text}}, {{Text: "a"}}}
		a, err := got.EncodeTexts(t.Context(), texts, 0, LongestFirst)
		b, err2 := want.EncodeTexts(t.Context(), texts, 0, LongestFirst)
		if err != nil || err2 != nil || !slices.Equal(a.IDs, b.IDs) {
			t.Errorf("%q becomes %q, want %q (%v, %v)", text, names(want, a.IDs), names(want, b.IDs), err, err2)
		}
	}
}

// FuzzVocabulary: any file of the other forms is refused, or loads and encodes within its vocabulary.
func FuzzVocabulary(f *testing.F) {
	g := readEncoders(f)
	for name, family := range g.Families {
		for i, file := range []string{"spiece.model", "sentencepiece.bpe.model", "tokenizer.model", "tiktoken.model", "qwen.tiktoken"} {
			if data := family.Files[file]; data != nil && name != "spm_unigram" {
				f.Add(uint8(i), data, family.Files["tokenizer_config.json"], "word ab</s> \u0301\ufb01 \n x")
			}
		}
	}
	f.Fuzz(func(t *testing.T, form uint8, vocab, config []byte, text string) {
		files := Files{Config: config}
		s, err := files.settings()
		if err == nil {
			convert := vocabularyFiles[int(form)%len(vocabularyFiles)].convert
			files.Tokenizer, files.extra, err = convert("vocabulary", vocab, s)
		}
		checkFuzzed(t, files, err, text)
	})
}

// FuzzCharsmap: a damaged table of replacements is refused, or normalizes without growing a text
// more than its limit.
func FuzzCharsmap(f *testing.F) {
	m, err := sentencepiece.Parse(readEncoders(f).Families["spm_xlmr"].Files["sentencepiece.bpe.model"])
	if err != nil {
		f.Fatal(err)
	}
	f.Add(m.Charsmap, "\ufb01 e\u0301\r\n \u3000x")
	f.Fuzz(func(t *testing.T, table []byte, text string) {
		c, err := sentencepiece.ParseCharsmap(table)
		if err != nil {
			return
		}
		text = strings.ToValidUTF8(text, "?")
		n := sentencepiece.Normalizer{Charsmap: c, DummyPrefix: true, RemoveExtra: true, Escape: true}
		for _, got := range []string{c.Precompiled(text), n.Apply(text)} {
			if !utf8.ValidString(got) {
				t.Fatalf("%q becomes %q", text, got)
			}
		}
	})
}

// FuzzVocabText: any vocab.txt is refused, or loads and encodes within its vocabulary.
func FuzzVocabText(f *testing.F) {
	f.Add([]byte("[PAD]\n[UNK]\n[CLS]\n[SEP]\nab\n##c\n##\n\n"), []byte(`{"do_lower_case": false}`), "abc \u0301[SEP] ABC")
	f.Add([]byte("<pad>\r\n[UNK]\n<s>\n</s>\nab"), []byte(`{"tokenizer_class": "MPNetTokenizer"}`), "ab")
	f.Fuzz(func(t *testing.T, vocab, config []byte, text string) {
		files := Files{Config: config}
		s, err := files.settings()
		if err == nil {
			files.Tokenizer, err = vocabfile.WordPiece(vocab, s)
		}
		checkFuzzed(t, files, err, text)
	})
}

func checkFuzzed(t *testing.T, files Files, err error, text string) {
	var tok *Tokenizer
	if err == nil {
		tok, err = Parse(files)
	}
	if err != nil {
		if !errors.Is(err, ErrInvalid) && !errors.Is(err, ErrUnsupported) {
			t.Fatalf("error of neither kind: %v", err)
		}
		return
	}
	e, err := tok.EncodeTexts(t.Context(), [][]Part{{{Text: text}}, {{Text: text, Literal: true}}}, 0, LongestFirst)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range e.IDs {
		if id < 0 || int(id) >= tok.VocabSize() {
			t.Fatalf("id %d outside [0, %d)", id, tok.VocabSize())
		}
	}
	tok.Decode(e.IDs, false)
}
