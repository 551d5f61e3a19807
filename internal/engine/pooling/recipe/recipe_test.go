package recipe

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/pooling"
)

// changed is a copy of a folder in testdata with other files; "" removes one.
func changed(t *testing.T, name string, files map[string]string) *checkpoint.Checkpoint {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("testdata", name))); err != nil {
		t.Fatal(err)
	}
	for file, text := range files {
		path := filepath.Join(dir, file)
		err := os.Remove(path)
		if text != "" {
			err = os.WriteFile(path, []byte(text), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	ck, err := checkpoint.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ck.Close(); err != nil {
			t.Error(err)
		}
	})
	return ck
}

const modules = `[{"path": "", "type": "sentence_transformers.models.Transformer"}, {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}`

// TestOldForms: the files of sentence-transformers before version 6 mean the same.
func TestOldForms(t *testing.T) {
	ck := changed(t, "qwen3_embedding", map[string]string{
		"modules.json":          modules + `, {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}]`,
		"1_Pooling/config.json": `{"word_embedding_dimension": 48, "pooling_mode_cls_token": false, "pooling_mode_mean_tokens": false, "pooling_mode_lasttoken": true, "include_prompt": true}`,
	})
	got, err := Read(ck, Options{})
	if err != nil {
		t.Fatal(err)
	}
	want, err := Read(changed(t, "qwen3_embedding", nil), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if got.Fingerprint() != want.Fingerprint() || got.Pool != pooling.Last || !got.Only || got.Prompts["query"] == "" {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestOptions: options override the files. A model without such files needs them.
func TestOptions(t *testing.T) {
	bare := map[string]string{"modules.json": ""}
	token := func(text string) (int32, bool) {
		i := slices.Index([]string{"no", "yes"}, text)
		return int32(i), i >= 0
	}
	for name, c := range map[string]struct {
		folder string
		files  map[string]string
		o      Options
		pool   pooling.Method
		scores bool
		fails  string
	}{
		"files":        {folder: "embeddinggemma", pool: pooling.Mean},
		"auto":         {folder: "embeddinggemma", o: Options{Pooling: "auto"}, pool: pooling.Mean},
		"overridden":   {folder: "embeddinggemma", o: Options{Pooling: "cls"}, pool: pooling.CLS},
		"only vectors": {folder: "embeddinggemma", o: Options{Pooling: "none"}, fails: "only makes vectors"},
		"unknown":      {folder: "embeddinggemma", o: Options{Pooling: "max"}, fails: "is not known"},
		"no files":     {folder: "qwen3_embedding", files: bare, fails: "state the pooling"},
		"stated":       {folder: "qwen3_embedding", files: bare, o: Options{Pooling: "last"}, pool: pooling.Last},
		"reranker":     {folder: "qwen3_reranker", pool: pooling.Last, scores: true},
		"by name":      {folder: "qwen3_reranker", files: bare},
		"tokens": {folder: "qwen3_reranker", files: bare,
			o: Options{ScoreTokens: []string{"yes", "no"}, Token: token}, pool: pooling.Last, scores: true},
		"no token": {folder: "qwen3_reranker", files: bare, o: Options{ScoreTokens: []string{"maybe"}, Token: token}, fails: `"maybe" is not one token`},
		"many tokens": {folder: "qwen3_reranker", files: bare,
			o: Options{ScoreTokens: []string{"yes", "no", "yes"}, Token: token}, fails: "3 tokens"},
		"no head":    {folder: "qwen3_embedding", o: Options{ScoreTokens: []string{"yes"}, Token: token}, fails: "need an output head"},
		"classifier": {folder: "qwen3_classifier", pool: pooling.Last, scores: true},
	} {
		r, err := Read(changed(t, c.folder, c.files), c.o)
		switch {
		case c.fails != "":
			if !errors.Is(err, ErrRecipe) && err == nil || !strings.Contains(err.Error(), c.fails) {
				t.Errorf("%s: %v, want %q", name, err, c.fails)
			}
		case err != nil:
			t.Errorf("%s: %v", name, err)
		case r == nil:
			if c.pool != pooling.None {
				t.Errorf("%s: no recipe", name)
			}
		case r.Pool != c.pool || r.Scores != c.scores:
			t.Errorf("%s: pooling %v, scores %v", name, r.Pool, r.Scores)
		}
	}
}

// TestBrokenFiles: an error names the file and the fault in it.
func TestBrokenFiles(t *testing.T) {
	pool := func(text string) map[string]string { return map[string]string{"1_Pooling/config.json": text} }
	dense := func(text string) map[string]string { return map[string]string{"2_Dense/config.json": text} }
	list := func(more string) map[string]string { return map[string]string{"modules.json": modules + more + "]"} }
	for want, files := range map[string]map[string]string{
		"max":                          pool(`{"pooling_mode": "max"}`),
		`["cls" "mean"]`:               pool(`{"pooling_mode": ["cls", "mean"]}`),
		"include_prompt false":         pool(`{"pooling_mode": "mean", "include_prompt": false}`),
		"incomplete after 1 bytes":     pool(`{`),
		"1_Pooling/config.json: miss":  pool(""),
		"sentence_transformers.X":      list(`, {"path": "2", "type": "sentence_transformers.X"}`),
		"../2_Dense":                   list(`, {"path": "../2_Dense", "type": "Dense"}`),
		"as the last module":           list(`, {"path": "4", "type": "Normalize"}, {"path": "2_Dense", "type": "Dense"}`),
		"0 modules":                    {"modules.json": "[]"},
		"Mish":                         dense(`{"in_features": 64, "out_features": 96, "bias": false, "activation_function": "torch.nn.Mish"}`),
		"linear.weight has shape":      dense(`{"in_features": 64, "out_features": 95, "bias": false, "activation_function": "torch.nn.Identity"}`),
		"linear.bias has shape":        dense(`{"in_features": 64, "out_features": 96, "activation_function": "torch.nn.Identity"}`),
		"0 to 96 elements":             dense(`{"out_features": 96}`),
		"residual":                     dense(`{"in_features": 64, "out_features": 96, "use_residual": true}`),
		"reads 96 elements, and its":   list(`, {"path": "3_Dense", "type": "Dense"}`),
		"not a safetensors file":       {"2_Dense/model.safetensors": "\xff\xff\xff\xff\xff\xff\xff\xffxx"},
		"default_prompt_name \"nosuch": {"config_sentence_transformers.json": `{"prompts": {"a": "b"}, "default_prompt_name": "nosuch"}`},
	} {
		if _, err := Read(changed(t, "embeddinggemma", files), Options{}); !errors.Is(err, ErrRecipe) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestFingerprint: each setting that changes a vector changes the fingerprint.
func TestFingerprint(t *testing.T) {
	seen := map[string]bool{}
	for _, files := range []map[string]string{
		nil,
		{"1_Pooling/config.json": `{"pooling_mode": "cls"}`},
		{"modules.json": modules + "]"},
		{"modules.json": modules + `, {"path": "4", "type": "Normalize"}]`},
		{"config_sentence_transformers.json": `{"prompts": {"query": "q: "}}`},
		{"config_sentence_transformers.json": `{"prompts": {"query": "q: "}, "default_prompt_name": "query"}`},
	} {
		r, err := Read(changed(t, "embeddinggemma", files), Options{})
		if err != nil {
			t.Fatal(err)
		}
		if f := r.Fingerprint(); seen[f] || len(f) != 8 {
			t.Errorf("%v: fingerprint %q is not new", files, f)
		} else {
			seen[f] = true
		}
	}
}
