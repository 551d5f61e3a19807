package tokenizer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// goldenCase is the result of the Hugging Face libraries for one text.
type goldenCase struct {
	Text         string
	IDs          []int32
	IDsNoSpecial []int32 `json:"ids_no_special"`
	Decoded      *string
	DecodedAll   *string `json:"decoded_all"`
}

type goldenDecode struct {
	IDs        []int32
	Decoded    *string
	DecodedAll *string `json:"decoded_all"`
	BrokenRun  bool    `json:"broken_run"`
}

// goldenFile is written by testdata/make_goldens.py.
type goldenFile struct {
	Cases   []goldenCase
	Decodes []goldenDecode
}

func readJSON(t testing.TB, path string, v any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

func mustLoad(t testing.TB, dir string) *Tokenizer {
	t.Helper()
	tok, err := Load(filepath.Join("testdata", dir))
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// hfNames lists the tokenizers of testdata/hf and the model folders.
func hfNames(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", "hf", "*.golden.json"))
	if err != nil || len(files) < 40 {
		t.Fatalf("%d golden files, %v", len(files), err)
	}
	for i, f := range files {
		files[i] = strings.TrimSuffix(filepath.Base(f), ".golden.json")
	}
	return files
}

func loadHF(t testing.TB, name string) *Tokenizer {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "hf", name+".tokenizer.json"))
	if os.IsNotExist(err) {
		return mustLoad(t, name)
	}
	if err != nil {
		t.Fatal(err)
	}
	tok, err := Parse(Files{Tokenizer: data})
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// TestModels compares the tokenizers of the golden checkpoints with transformers.
func TestModels(t *testing.T) {
	for _, name := range []string{"llama", "qwen2", "deepseek_v3", "gemma4"} {
		t.Run(name, func(t *testing.T) {
			tok := mustLoad(t, name)
			var cases []goldenCase
			readJSON(t, filepath.Join("testdata", name, "tokenizer_goldens.json"), &cases)
			for _, c := range cases {
				text := c.Decoded // decoding of ids_no_special, with nothing skipped
				c.Decoded = nil
				checkCase(t, tok, c)
				checkDecode(t, tok, c.IDsNoSpecial, false, text)
			}
		})
	}
}

// TestLibrary compares ids and texts with the tokenizers library, for every configuration in
// testdata/hf and about eighty difficult strings each.
func TestLibrary(t *testing.T) {
	for _, name := range hfNames(t) {
		t.Run(name, func(t *testing.T) {
			tok := loadHF(t, name)
			var g goldenFile
			readJSON(t, filepath.Join("testdata", "hf", name+".golden.json"), &g)
			for _, c := range g.Cases {
				checkCase(t, tok, c)
			}
			for _, d := range g.Decodes {
				if d.BrokenRun {
					continue // see TestBrokenByteRuns
				}
				checkDecode(t, tok, d.IDs, true, d.Decoded)
				checkDecode(t, tok, d.IDs, false, d.DecodedAll)
			}
		})
	}
}

func checkCase(t *testing.T, tok *Tokenizer, c goldenCase) {
	t.Helper()
	if got := tok.Encode(c.Text, true); !slices.Equal(got, c.IDs) {
		t.Errorf("Encode(%q):\n got %v\nwant %v", c.Text, names(tok, got), names(tok, c.IDs))
	}
	if got := tok.Encode(c.Text, false); !slices.Equal(got, c.IDsNoSpecial) {
		t.Errorf("Encode(%q, false):\n got %v\nwant %v", c.Text, names(tok, got), names(tok, c.IDsNoSpecial))
	}
	checkDecode(t, tok, c.IDs, true, c.Decoded)
	checkDecode(t, tok, c.IDs, false, c.DecodedAll)
}

func checkDecode(t *testing.T, tok *Tokenizer, ids []int32, skip bool, want *string) {
	t.Helper()
	if want == nil {
		return
	}
	if got := tok.Decode(ids, skip); got != *want {
		t.Errorf("Decode(%v, %v):\n got %q\nwant %q", names(tok, ids), skip, got, *want)
	}
}

func names(tok *Tokenizer, ids []int32) []string {
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = tok.Token(id)
	}
	return out
}
