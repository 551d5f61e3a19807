package api

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/pooling"
	"github.com/shoal-llm/shoal/internal/engine/pooling/recipe"
	"github.com/shoal-llm/shoal/internal/server/servertest"
)

func testConfig() Config {
	return Config{Models: []string{"fake/model", "alias"}, ModelRoot: "weights/fake", MaxModelLen: 512, EOSTokens: []int32{servertest.TokEOS},
		KeepAlive: 5 * time.Second, Version: "1.2.3", Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
}

// makesVectors makes the fake model one that chats and makes vectors of 4 numbers.
func makesVectors(c *Config) {
	c.Recipe = &recipe.Recipe{Pool: pooling.Mean, Normalize: true, Width: 4, Prompts: map[string]string{"query": "q: "}}
}

func newServer(t testing.TB, e *servertest.Engine, change ...func(*Config)) *Server {
	t.Helper()
	cfg := testConfig()
	for _, f := range change {
		f(&cfg)
	}
	s, err := New(cfg, e, servertest.Tokenizer{}, servertest.Template{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// serve runs a server until the test ends.
func serve(t testing.TB, e *servertest.Engine, change ...func(*Config)) string {
	t.Helper()
	t.Cleanup(e.Live.Wait)
	return serveIt(t, newServer(t, e, change...))
}

func serveIt(t testing.TB, s *Server) string {
	t.Helper()
	h := httptest.NewServer(described(t, s.Handler()))
	t.Cleanup(h.Close)
	return h.URL
}

// M is a JSON object.
type M = map[string]any

type answer struct {
	status int
	header http.Header
	raw    string
	body   M
}

func post(t testing.TB, url string, body any) answer {
	t.Helper()
	raw, ok := body.(string)
	if !ok {
		b, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		raw = string(b)
	}
	resp, err := http.Post(url, "application/json", strings.NewReader(raw))
	return read(t, resp, err)
}

func get(t testing.TB, url string) answer {
	t.Helper()
	resp, err := http.Get(url)
	return read(t, resp, err)
}

func read(t testing.TB, resp *http.Response, err error) answer {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	a := answer{status: resp.StatusCode, header: resp.Header, raw: string(b)}
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json") && len(b) > 0 {
		dec := json.NewDecoder(bytes.NewReader(b))
		if err := dec.Decode(&a.body); err != nil {
			t.Fatalf("%v in %s", err, b)
		}
	}
	return a
}

// at walks a decoded JSON value: names and indices.
func at(t testing.TB, v any, path ...any) any {
	t.Helper()
	for _, p := range path {
		switch p := p.(type) {
		case string:
			m, ok := v.(M)
			if !ok {
				t.Fatalf("no object for %q in %v", p, v)
			}
			if v, ok = m[p]; !ok {
				t.Fatalf("no member %q in %v", p, m)
			}
		case int:
			l, ok := v.([]any)
			if !ok || p >= len(l) {
				t.Fatalf("no element %d in %v", p, v)
			}
			v = l[p]
		}
	}
	return v
}

func chat(more M) M {
	m := M{"model": "fake/model", "messages": []M{{"role": "user", "content": "Hi"}}}
	for k, v := range more {
		m[k] = v
	}
	return m
}

func completion(more M) M {
	m := M{"model": "fake/model", "prompt": "Hi"}
	for k, v := range more {
		m[k] = v
	}
	return m
}
