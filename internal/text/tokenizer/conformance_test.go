package tokenizer

import (
	"compress/gzip"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/model/modeltest"
)

// ggufNames maps families to their tokenizer.ggml.pre.
var ggufNames = map[string]string{"llama3": "llama-bpe", "qwen2": "qwen2", "deepseek3": "deepseek-v3",
	"deepseek-llm": "deepseek-llm", "deepseek-coder": "deepseek-coder", "tekken": "tekken", "o200k": "gpt-4o"}

// throughGGUF returns the same vocabulary with the pre-tokenizer that a GGUF file selects by name.
func throughGGUF(t *testing.T, json []byte, pre string) *Tokenizer {
	dir := t.TempDir()
	for name, data := range map[string][]byte{tokenizerFile: json, "tokenizer_config.json": []byte(`{"bos_token": "<s>", "eos_token": "</s>"}`)} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	g := &modeltest.GGUF{}
	if err := g.Vocabulary(dir, pre); err != nil {
		t.Fatal(err)
	}
	tok, err := Load(writeGGUF(t, g))
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// TestConformance: for 2100 generated strings per family, in all scripts and with all kinds of
// space, the tokens and the decoded text equal those of Hugging Face's tokenizers. It reads
// tokenizer.json and, for byte-level families, GGUF metadata. Written by
// train/tokenizer_conformance.py.
func TestConformance(t *testing.T) {
	f, err := os.Open(filepath.Join("testdata", "conformance", "conformance.json.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var all struct {
		Texts    []string
		Families map[string]struct {
			Tokenizer     json.RawMessage
			IDs           [][]int32
			Decoded       map[string]string // by index of the text, if it differs from the text
			RandomIDs     [][]int32         `json:"random_ids"`
			RandomDecoded []string          `json:"random_decoded"`
		}
	}
	if err := json.NewDecoder(z).Decode(&all); err != nil {
		t.Fatal(err)
	}
	if len(all.Texts) < 2000 || len(all.Families) != 9 {
		t.Fatalf("%d texts, %d families", len(all.Texts), len(all.Families))
	}
	for name, family := range all.Families {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tok, err := Parse(Files{Tokenizer: family.Tokenizer})
			if err != nil {
				t.Fatal(err)
			}
			toks := []*Tokenizer{tok}
			if pre := ggufNames[name]; pre != "" {
				toks = append(toks, throughGGUF(t, family.Tokenizer, pre))
			}
			wrong := 0
			report := func(format string, args ...any) {
				if wrong++; wrong <= 5 {
					t.Errorf(format, args...)
				}
			}
			for i, text := range all.Texts {
				for _, tok := range toks {
					if got := tok.Encode(text, false); !slices.Equal(got, family.IDs[i]) {
						report("%q becomes %v, want %v", text, got, family.IDs[i])
					}
				}
				want, differs := family.Decoded[strconv.Itoa(i)]
				if !differs {
					want = text
				}
				if got := tok.Decode(family.IDs[i], false); got != want {
					report("%v of %q becomes %q, want %q", family.IDs[i], text, got, want)
				}
			}
			for i, ids := range family.RandomIDs {
				if (name == "llama2" || name == "gemma") && strings.ContainsRune(family.RandomDecoded[i], '\uFFFD') {
					continue // see TestBrokenByteRuns
				}
				if got := tok.Decode(ids, false); got != family.RandomDecoded[i] {
					report("%v becomes %q, want %q", ids, got, family.RandomDecoded[i])
				}
			}
			if wrong > 0 {
				t.Errorf("%d differences in all", wrong)
			}
		})
	}
}
