package eval

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

// fakeServer imitates an OpenAI-compatible server.
type fakeServer struct {
	mu       sync.Mutex
	bodies   []map[string]any
	refuse   int // number of 503 answers at the start
	complete func(body map[string]any) any
}

func (f *fakeServer) start(t *testing.T) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer k" {
			http.Error(w, `{"error":{"message":"no key"}}`, http.StatusUnauthorized)
			return
		}
		fmt.Fprint(w, `{"data":[{"id":"m1"},{"id":"m2"}]}`)
	})
	mux.HandleFunc("POST /v1/completions", func(w http.ResponseWriter, r *http.Request) {
		var body map[string]any
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.refuse > 0 {
			f.refuse--
			w.Header().Set("Retry-After", "0")
			http.Error(w, `{"error":{"message":"full"}}`, http.StatusServiceUnavailable)
			return
		}
		f.bodies = append(f.bodies, body)
		answer := any(map[string]any{"system_fingerprint": "fp", "choices": []any{map[string]any{"text": " 1"}}})
		if f.complete != nil && body["prompt"] != "a" {
			answer = f.complete(body)
		}
		if text, ok := answer.(string); ok {
			http.Error(w, text, http.StatusBadRequest)
			return
		}
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL
}

func connect(t *testing.T, url string) *Client {
	t.Helper()
	c, err := NewClient(t.Context(), url+"/v1/", "k", "", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestClientSendsOpenAIMembers(t *testing.T) {
	f := &fakeServer{refuse: 1}
	c := connect(t, f.start(t))
	if name, fp := c.Model(); name != "m1" || fp != "fp" {
		t.Error(name, fp)
	}
	for _, p := range []string{"", DefaultPolicy, "streaming:sink=4,recent=8"} {
		got, err := c.Complete(t.Context(), []int32{5, 6}, 3, p)
		if err != nil || got.Text != " 1" {
			t.Error(got, err)
		}
	}
	for i, b := range f.bodies[1:] {
		text, err := json.Marshal(b)
		if err != nil {
			t.Fatal(err)
		}
		want := `{"max_tokens":3,"model":"m1","prompt":[5,6],"temperature":0}`
		if i == 2 {
			want = `{"kv_policy":"streaming:sink=4,recent=8","max_tokens":3,"model":"m1","prompt":[5,6],"temperature":0}`
		}
		if string(text) != want {
			t.Errorf("sent %s, want %s", text, want)
		}
	}
	if _, known := c.SameTokens(t.Context(), "x", []int32{1}); known {
		t.Error("a server without /tokenize has no answer")
	}
}

func TestClientErrors(t *testing.T) {
	f := &fakeServer{complete: func(map[string]any) any { return `{"error":{"message":"the prompt is too long"}}` }}
	url := f.start(t)
	c := connect(t, url)
	if _, err := c.Complete(t.Context(), []int32{1}, 1, ""); !errors.Is(err, ErrServer) || !strings.Contains(err.Error(), "too long") {
		t.Error(err)
	}
	if _, err := NewClient(t.Context(), url, "wrong", "", time.Minute); !errors.Is(err, ErrServer) ||
		!strings.Contains(err.Error(), "no key") {
		t.Error(err)
	}
	hang := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer hang.Close()
	if _, err := NewClient(t.Context(), hang.URL, "", "", 50*time.Millisecond); !errors.Is(err, ErrServer) ||
		!strings.Contains(err.Error(), "within 50ms") {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Complete(ctx, []int32{1}, 1, ""); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestPerplexityScoresEveryTokenOnce: the server gives token i the logprob -i, so the sum shows
// which tokens were counted.
func TestPerplexityScoresEveryTokenOnce(t *testing.T) {
	tok := testTokenizer(t)
	text := strings.Repeat("The grass is green. ", 40)
	ids := tok.EncodeLiteral(text)
	f := &fakeServer{complete: func(b map[string]any) any {
		if b["echo"] != true || b["max_tokens"] != 0. {
			return "not an echo"
		}
		prompt := b["prompt"].([]any)
		lp := make([]any, len(prompt))
		for i := 1; i < len(prompt); i++ {
			lp[i] = -prompt[i].(float64)
		}
		return map[string]any{"choices": []any{map[string]any{"text": "", "logprobs": map[string]any{"token_logprobs": lp}}}}
	}}
	c := connect(t, f.start(t))
	want := 0.0
	for _, id := range ids {
		want += float64(id)
	}
	plain := withoutBOS(t) // its first token has no predecessor
	for _, k := range []PerplexityConfig{{Window: 4096}, {Window: 33}, {Window: 33, Stride: 7}, {Window: 3, Stride: 2}, {Window: 2}} {
		p, err := MeasurePerplexity(t.Context(), c, plain, text, k)
		if err != nil {
			t.Fatal(err)
		}
		if sum := want - float64(ids[0]); p.Tokens != len(ids)-1 || math.Abs(p.NLL*float64(p.Tokens)-sum) > 1e-6*sum {
			t.Errorf("without BOS, %+v: %d tokens, sum %.0f; want %d, %.0f", k, p.Tokens, p.NLL*float64(p.Tokens), len(ids)-1, sum)
		}
	}
	for _, k := range []PerplexityConfig{{Window: 1}, {Window: 10, Stride: 10}} {
		if _, err := MeasurePerplexity(t.Context(), c, plain, text, k); !errors.Is(err, ErrText) {
			t.Errorf("without BOS, %+v: %v", k, err)
		}
	}
	for _, k := range []PerplexityConfig{{Window: 4096}, {Window: 33}, {Window: 33, Stride: 7},
		{Window: 33, Stride: 32}, {Window: 3, Stride: 1}} {
		k.Concurrency = 1
		p, err := MeasurePerplexity(t.Context(), c, tok, text, k)
		if err != nil {
			t.Fatal(err)
		}
		if p.Tokens != len(ids) || p.Bytes != len(text) || math.Abs(p.NLL*float64(p.Tokens)-want) > 1e-6*want {
			t.Errorf("%+v: %d tokens, %d bytes, sum %.0f; want %d, %d, %.0f", k, p.Tokens, p.Bytes,
				p.NLL*float64(p.Tokens), len(ids), len(text), want)
		}
	}
	for _, k := range []PerplexityConfig{{Window: 2}, {Window: 10, Stride: 10}, {Window: 10, Stride: -1}} {
		if _, err := MeasurePerplexity(t.Context(), c, tok, text, k); !errors.Is(err, ErrText) {
			t.Errorf("%+v: %v", k, err)
		}
	}
}

// withoutBOS returns the tokenizer of the tests without a token at the beginning of a text, as Qwen's.
func withoutBOS(t *testing.T) *tokenizer.Tokenizer {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(modelDir, "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	delete(all, "post_processor")
	if text, err = json.Marshal(all); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "tokenizer.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if bos := tok.Encode("", true); len(bos) > 0 {
		t.Fatalf("the tokenizer begins texts with %v", bos)
	}
	return tok
}
