package api

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// Contexts: made, listed, used by name and by what a prompt begins with, kept apart by key, given
// up by DELETE or by the engine; what is wrong is refused with a reason.
func TestContexts(t *testing.T) {
	e := &fakeEngine{hold: func(r *Request) bool { return r.Hold }, script: func(r *Request) []Event {
		if r.Hold {
			return []Event{{Token: 1}, {Token: NoToken, Finish: FinishCancelled}}
		}
		return []Event{{Token: tokHello, Cached: r.Context}, {Token: tokWorld, Finish: FinishLength}}
	}}
	url := serve(t, e, func(c *Config) {
		c.Keys = []Key{{Name: "ann", Secret: "a"}, {Name: "bob", Secret: "b"}}
	})
	made := ask(t, "POST", url+"/v1/contexts", "a", `{"name": "book", "prompt": "once upon", "add_special_tokens": false, "kv_policy": "squeezed:sparsity=0.8"}`)
	if made.status != http.StatusOK || at(t, made.body, "tokens") != 9.0 || at(t, made.body, "status") != "ready" {
		t.Fatal(made.raw)
	}
	if r := e.last(t); !r.Hold || r.Context != 9 || r.MaxTokens != 1 || r.Policy != "squeezed:sparsity=0.8" || r.Tenant != "ann" || !r.IgnoreEOS {
		t.Errorf("%+v", r)
	}
	a := ask(t, "POST", url+"/v1/completions", "a", `{"prompt": " a", "max_tokens": 2, "context": "book"}`)
	if at(t, a.body, "usage", "prompt_tokens") != 11.0 || at(t, a.body, "usage", "prompt_tokens_details", "cached_tokens") != 9.0 {
		t.Error(a.raw)
	}
	if r := e.last(t); r.Context != 9 || r.Hold || r.Policy != "squeezed:sparsity=0.8" || !slices.Equal(r.Prompt, fakeEncode(Segment{Text: "once upon a"})) {
		t.Errorf("%+v", r)
	}
	ask(t, "POST", url+"/v1/completions", "a", `{"prompt": ["once upon it", "twice"], "add_special_tokens": false, "context": "auto"}`)
	e.mu.Lock()
	two := e.requests[len(e.requests)-2:]
	if two[0].Prompt[0] != 'o' {
		slices.Reverse(two)
	}
	if two[0].Context != 9 || two[0].Policy == "" || two[1].Context != 0 || two[1].Policy != "" {
		t.Errorf("%+v, %+v", two[0], two[1])
	}
	e.mu.Unlock()
	if list := ask(t, "GET", url+"/v1/contexts", "a", ""); !strings.Contains(list.raw, `"name":"book"`) {
		t.Error(list.raw)
	}
	for _, bad := range []struct {
		method, path, key, body, says string
		status                        int
	}{
		{"GET", "/v1/contexts/book", "b", "", "context_not_found", 404},
		{"DELETE", "/v1/contexts/book", "b", "", "context_not_found", 404},
		{"POST", "/v1/completions", "b", `{"prompt": "x", "context": "book"}`, "context_not_found", 404},
		{"POST", "/v1/completions", "a", `{"prompt": "x", "context": "book", "kv_policy": "full"}`, "kv_policy", 400},
		{"POST", "/v1/completions", "a", `{"prompt": "x", "context": "book", "echo": true}`, "echoed", 400},
		{"POST", "/v1/completions", "a", `{"prompt": "", "context": "book"}`, "prompt", 400},
		{"POST", "/v1/chat/completions", "a", `{"messages": [{"role": "user", "content": "x"}], "context": "book"}`, "do not begin", 400},
		{"POST", "/v1/contexts", "a", `{"name": "book", "prompt": "x"}`, "context_exists", 409},
		{"POST", "/v1/contexts", "a", `{"name": "auto", "prompt": "x"}`, "'name'", 400},
		{"POST", "/v1/contexts", "a", `{"name": "a/b", "prompt": "x"}`, "'name'", 400},
		{"POST", "/v1/contexts", "a", `{"name": "c"}`, "'prompt' is required", 400},
		{"POST", "/v1/contexts", "a", `{"name": "c", "prompt": ["x", "y"]}`, "one prompt", 400},
		{"POST", "/v1/contexts", "", `{"name": "c", "prompt": "x"}`, "", 401},
	} {
		if got := ask(t, bad.method, url+bad.path, bad.key, bad.body); got.status != bad.status || !strings.Contains(got.raw, bad.says) {
			t.Errorf("%s %s %s: %d %s", bad.method, bad.path, bad.body, got.status, got.raw)
		}
	}
	if got := ask(t, "DELETE", url+"/v1/contexts/book", "a", ""); got.status != http.StatusOK || at(t, got.body, "deleted") != true {
		t.Error(got.raw)
	}
	if got := ask(t, "GET", url+"/v1/contexts/book", "a", ""); got.status != http.StatusNotFound {
		t.Error(got.raw)
	}
	e.hold = nil // from here on the engine gives contexts up
	ask(t, "POST", url+"/v1/contexts", "a", `{"name": "short", "prompt": "x"}`)
	for end := time.Now().Add(30 * time.Second); ask(t, "GET", url+"/v1/contexts/short", "a", "").status != http.StatusNotFound; {
		if time.Now().After(end) {
			t.Fatal("a context that the engine gave up is still there")
		}
		time.Sleep(10 * time.Millisecond)
	}
}
