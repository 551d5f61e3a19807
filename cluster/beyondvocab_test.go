package cluster

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
)

// An old folder may have an added token beyond the rows of the embedding, as the <pad> of some Llama 2. A text with
// such a token is refused before it reaches a node.
func TestTokenWithoutWeights(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(goldenDir)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "added_tokens.json"), []byte(`{"<pad>": 60000}`), 0o600); err != nil {
		t.Fatal(err)
	}
	ck, err := checkpoint.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	s := ServeConfig{Model: dir, Weights: "f32", KV: "f32"}
	server, err := NewAPI(startLocal(t, LocalConfig{Sockets: 2, Threads: 1, Serve: s}), ck, s, APIConfig{})
	if err != nil {
		t.Fatal(err)
	}
	for prompt, want := range map[string]int{"a b": http.StatusOK, "a<pad> b": http.StatusBadRequest} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodPost, "/v1/completions", strings.NewReader(`{"prompt":"`+prompt+`","max_tokens":4}`))
		r.Host = "localhost"
		r.Header.Set("Content-Type", "application/json")
		server.Handler().ServeHTTP(w, r)
		if text := w.Body.String(); w.Code != want || want != http.StatusOK && !strings.Contains(text, "(60000)") {
			t.Errorf("%s: %d %s", prompt, w.Code, text)
		}
	}
}
