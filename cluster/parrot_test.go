package cluster

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/parrot"
)

// apiOf calls an API without a network.
type apiOf struct{ http.Handler }

// serveParrot returns the API of a checkpoint that always answers with a fixed text. edit may
// change the folder before it is opened; it may be nil.
func serveParrot(t *testing.T, s parrot.Script, edit func(dir string)) apiOf {
	t.Helper()
	dir := t.TempDir()
	if err := parrot.Write(dir, s); err != nil {
		t.Fatal(err)
	}
	if edit != nil {
		edit(dir)
	}
	serve := ServeConfig{Model: dir, Names: []string{"parrot"}, Weights: "f32", KV: "f32"}
	c := startLocal(t, LocalConfig{Threads: 1, KVBudget: 16 << 20, Serve: serve})
	server, err := NewAPI(c, c.checkpoint, serve, APIConfig{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return apiOf{server.Handler()}
}

// ask posts body, or gets path if body is nil, and returns status and text.
func (h apiOf) ask(path string, body any) (int, string) {
	method, text := http.MethodGet, ""
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			panic(err) // cannot fail for a test's own literal
		}
		method, text = http.MethodPost, string(b)
	}
	w, r := httptest.NewRecorder(), httptest.NewRequest(method, path, strings.NewReader(text))
	r.Host = "localhost"
	r.Header.Set("Content-Type", "application/json")
	h.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

// A parrot checkpoint returns its text through the whole stack for any prompt.
func TestParrot(t *testing.T) {
	const text = "Hello there, I say this always."
	h := serveParrot(t, parrot.Script{Text: text}, nil)
	for _, prompt := range []string{"x", "What?", "日"} {
		_, body := h.ask("/v1/chat/completions", map[string]any{"messages": []any{map[string]any{"role": "user", "content": prompt}}})
		var a struct {
			Choices []struct {
				Message struct{ Content string }
				Finish  string `json:"finish_reason"`
			}
		}
		if err := json.Unmarshal([]byte(body), &a); err != nil || len(a.Choices) != 1 ||
			a.Choices[0].Message.Content != text || a.Choices[0].Finish != "stop" {
			t.Errorf("%q: %s (%v)", prompt, body, err)
		}
	}
}
