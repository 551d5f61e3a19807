package cluster

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/gguf"
	"github.com/shoal-llm/shoal/internal/engine/model/modeltest"
)

// TestServesGGUF: a GGUF file with the same weights and tokenizer gives the same answers as its
// Hugging Face folder.
func TestServesGGUF(t *testing.T) {
	ck, err := checkpoint.Open(goldenDir)
	if err != nil {
		t.Fatal(err)
	}
	g := modeltest.Convert(ck, func(string) gguf.Type { return gguf.F32 })
	if err := ck.Close(); err != nil {
		t.Fatal(err)
	}
	if err := g.Vocabulary(goldenDir, "llama-bpe"); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "Tiny-F32.gguf")
	if err := os.WriteFile(path, g.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	var answers [2][]any
	for i, dir := range []string{goldenDir, path} {
		s := ServeConfig{Model: dir, Weights: "f32", KV: "f32"}
		if i == 0 {
			s.Names = []string{"Tiny-F32"} // the name derived from the file name
		}
		c := startLocal(t, LocalConfig{Sockets: 2, Threads: 1, Serve: s})
		open, err := checkpoint.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer open.Close()
		server, err := NewAPI(c, open, s, APIConfig{})
		if err != nil {
			t.Fatal(err)
		}
		for _, call := range [][2]string{
			{"/v1/chat/completions", `{"model": "Tiny-F32", "messages": [{"role": "user", "content": "Hi there, naïve 123"}], "max_tokens": 12, "temperature": 0}`},
			{"/v1/completions", `{"model": "Tiny-F32", "prompt": "package main", "max_tokens": 12, "temperature": 0}`},
			{"/tokenize", `{"model": "Tiny-F32", "prompt": "func main() { return 12345 }"}`},
		} {
			w := httptest.NewRecorder()
			r := httptest.NewRequest(http.MethodPost, call[0], strings.NewReader(call[1]))
			r.Host = "localhost"
			r.Header.Set("Content-Type", "application/json")
			server.Handler().ServeHTTP(w, r)
			if w.Code != http.StatusOK {
				t.Fatalf("%s of %s: %d %s", call[0], dir, w.Code, w.Body)
			}
			var answer map[string]any
			if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil {
				t.Fatal(err)
			}
			for _, own := range []string{"id", "created", "system_fingerprint"} {
				delete(answer, own)
			}
			answers[i] = append(answers[i], answer)
		}
	}
	if !reflect.DeepEqual(answers[0], answers[1]) {
		t.Errorf("the folder answers\n%v\nthe file\n%v", answers[0], answers[1])
	}
}

// A quantized file is loaded as q8_0 by default. The model name is the file name without its
// extension.
func TestDefaultsOfQuantized(t *testing.T) {
	ck, err := checkpoint.Open(goldenDir)
	if err != nil {
		t.Fatal(err)
	}
	g := modeltest.Convert(ck, func(string) gguf.Type { return gguf.Q4_0 })
	if err := ck.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "Tiny.Q4_0.gguf")
	if err := os.WriteFile(path, g.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	q, err := checkpoint.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	s := ServeConfig{Model: path}
	s.ensureDefaults(&q.Config)
	if s.Names[0] != "Tiny.Q4_0" || s.Weights != "q8_0" || s.KV != "bf16" || s.Validate(&q.Config) != nil {
		t.Errorf("%+v", s)
	}
	c := startLocal(t, LocalConfig{Sockets: 2, Threads: 1, Serve: ServeConfig{Model: path}})
	if got := generate(t, c, "q", []int32{0, 7, 9}, 8); len(got) != 8 {
		t.Errorf("%v", got)
	}
}
