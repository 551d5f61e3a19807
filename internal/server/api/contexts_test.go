package api

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/generate"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
	"github.com/shoal-llm/shoal/internal/server/servertest"
)

// Contexts are made and listed, and used by name or by the beginning of a prompt. Each key has its own.
// DELETE or the engine ends them. Wrong requests are refused with a reason.
func TestContexts(t *testing.T) {
	e := &servertest.Engine{Hold: func(r *engine.Request) bool { return r.Hold }, Script: func(r *engine.Request) []engine.Event {
		if r.Hold {
			return []engine.Event{{Token: 1}, {Token: engine.NoToken, Finish: engine.FinishCancelled}}
		}
		return []engine.Event{{Token: servertest.TokHello, Cached: r.Context}, {Token: servertest.TokWorld, Finish: engine.FinishLength}}
	}}
	url := serve(t, e, func(c *Config) {
		c.Keys = []httpserver.Key{{Name: "ann", Secret: "a"}, {Name: "bob", Secret: "b"}}
	})
	made := ask(t, "POST", url+"/v1/contexts", "a", `{"name": "book", "prompt": "once upon", "add_special_tokens": false, "kv_policy": "squeezed:sparsity=0.8"}`)
	if made.status != http.StatusOK || at(t, made.body, "tokens") != 9.0 || at(t, made.body, "status") != "ready" {
		t.Fatal(made.raw)
	}
	if r := e.Last(t); !r.Hold || r.Context != 9 || r.MaxTokens != 1 || r.Policy != "squeezed:sparsity=0.8" ||
		r.Tenant != "ann" || !r.IgnoreEOS {
		t.Errorf("%+v", r)
	}
	a := ask(t, "POST", url+"/v1/completions", "a", `{"prompt": " a", "max_tokens": 2, "context": "book"}`)
	if at(t, a.body, "usage", "prompt_tokens") != 11.0 || at(t, a.body, "usage", "prompt_tokens_details", "cached_tokens") != 9.0 {
		t.Error(a.raw)
	}
	if r := e.Last(t); r.Context != 9 || r.Hold || r.Policy != "squeezed:sparsity=0.8" ||
		!slices.Equal(r.Prompt, servertest.FakeEncode(engine.Segment{Text: "once upon a"})) {
		t.Errorf("%+v", r)
	}
	ask(t, "POST", url+"/v1/completions", "a", `{"prompt": ["once upon it", "twice"], "add_special_tokens": false, "context": "auto"}`)
	e.Mu.Lock()
	two := e.Requests[len(e.Requests)-2:]
	if two[0].Prompt[0] != 'o' {
		slices.Reverse(two)
	}
	if two[0].Context != 9 || two[0].Policy == "" || two[1].Context != 0 || two[1].Policy != "" {
		t.Errorf("%+v, %+v", two[0], two[1])
	}
	e.Mu.Unlock()
	if list := ask(t, "GET", url+"/v1/contexts", "a", ""); !strings.Contains(list.raw, `"name":"book"`) {
		t.Error(list.raw)
	}
	for _, state := range []engine.ContextState{engine.ContextEvicted, engine.ContextReading, engine.ContextReady} {
		e.Mu.Lock()
		e.Kept = state
		e.Mu.Unlock()
		want := `"status":"` + string(state) + `"`
		if list := ask(t, "GET", url+"/v1/contexts", "a", ""); !strings.Contains(list.raw, want) {
			t.Errorf("a context that is %s: %s", state, list.raw)
		}
		if one := ask(t, "GET", url+"/v1/contexts/book", "a", ""); !strings.Contains(one.raw, want) {
			t.Errorf("a context that is %s: %s", state, one.raw)
		}
	}
	for _, bad := range []struct {
		method, path, key, body, says string
		status                        int
	}{
		{"GET", "/v1/contexts/book", "b", "", "context_not_found", 404},
		{"DELETE", "/v1/contexts/book", "b", "", "context_not_found", 404},
		{"POST", "/v1/completions", "b", `{"prompt": "x", "context": "book"}`, "context_not_found", 404},
		{"POST", "/v1/completions", "a", `{"prompt": "x", "context": "book", "kv_policy": "full"}`, "kv_policy", 400},
		{"POST", "/v1/completions", "a", `{"prompt": "x", "context": "book", "echo": true}`, "not supported with 'context'", 400},
		{"POST", "/v1/completions", "a", `{"prompt": "x", "context": "book", "echo": true, "max_tokens": 0}`, "not supported with 'context'", 400},
		{"POST", "/v1/completions", "a", `{"prompt": "x", "context": "none such", "echo": true, "max_tokens": 0}`, "context_not_found", 404},
		{"POST", "/v1/completions", "a", `{"prompt": "", "context": "book"}`, "prompt", 400},
		{"POST", "/v1/chat/completions", "a", `{"messages": [{"role": "user", "content": "x"}], "context": "book"}`, "do not begin", 400},
		{"POST", "/v1/contexts", "a", `{"name": "book", "prompt": "x"}`, "context_exists", 409},
		{"POST", "/v1/contexts", "a", `{"name": "auto", "prompt": "x"}`, "'name'", 400},
		{"POST", "/v1/contexts", "a", `{"name": "a/b", "prompt": "x"}`, "'name'", 400},
		{"POST", "/v1/contexts", "a", `{"name": ".", "prompt": "x"}`, "'name'", 400},
		{"POST", "/v1/contexts", "a", `{"name": "..", "prompt": "x"}`, "'name'", 400},
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
	e.WaitCancelled(t, 1) // its goroutine looks at hold no more
	e.Hold = nil          // from here on the engine gives contexts up
	ask(t, "POST", url+"/v1/contexts", "a", `{"name": "short", "prompt": "x"}`)
	servertest.Eventually(t, "the context that the engine gave up is gone", func() bool {
		return ask(t, "GET", url+"/v1/contexts/short", "a", "").status == http.StatusNotFound
	})
}

// A request without a context's name uses one if it has the context's policy, or if the context is
// automatic. It does not if it has another policy, context "none", or a parameter that excludes
// contexts.
func TestContextsThatAreNotNamed(t *testing.T) {
	e := &servertest.Engine{Hold: func(r *engine.Request) bool { return r.Hold }, Script: func(r *engine.Request) []engine.Event {
		if r.Hold {
			return []engine.Event{{Token: 1}, {Token: engine.NoToken, Finish: engine.FinishCancelled}}
		}
		return []engine.Event{{Token: servertest.TokHello}, {Token: servertest.TokWorld, Finish: engine.FinishLength}}
	}}
	_, url := serveServer(t, e)
	for _, body := range []M{
		{"name": "asked", "prompt": "once", "kv_policy": "squeezed:sparsity=0.8"},
		{"name": "automatic", "prompt": "twice", "automatic": true},
	} {
		body["add_special_tokens"] = false
		if r := post(t, url+"/v1/contexts", body); r.status != 200 || at(t, r.body, "durable") != false ||
			at(t, r.body, "automatic") != (body["automatic"] == true) {
			t.Fatal(r.raw)
		}
	}
	for _, c := range []struct {
		more M
		want int // tokens of the context
	}{
		{M{"prompt": "once upon"}, 0}, {M{"prompt": "once upon", "kv_policy": "squeezed:sparsity=0.8"}, 4},
		{M{"prompt": "once upon", "kv_policy": "squeezed"}, 0},
		{M{"prompt": "once upon", "context": "auto"}, 4}, {M{"prompt": "once upon", "context": "auto", "kv_policy": "full"}, 0},
		{M{"prompt": "once", "context": "auto"}, 0},
		{M{"prompt": "twice upon"}, 5}, {M{"prompt": "twice upon", "kv_policy": "squeezed"}, 5},
		{M{"prompt": "twice upon", "kv_policy": "full"}, 0}, {M{"prompt": "twice upon", "context": "none"}, 0},
		{M{"prompt": "twice upon", "echo": true}, 0}, {M{"prompt": "twic"}, 0}, {M{"prompt": "twice"}, 0},
	} {
		c.more["add_special_tokens"], c.more["max_tokens"] = false, 2
		if r := post(t, url+"/v1/completions", c.more); r.status != 200 {
			t.Errorf("%v: %s", c.more, r.raw)
		} else if r := e.Last(t); r.Context != c.want {
			t.Errorf("%v: a context of %d tokens, want %d", c.more, r.Context, c.want)
		}
	}
}

// serveServer is serve that gives the server too.
func serveServer(t *testing.T, e *servertest.Engine, change ...func(*Config)) (*Server, string) {
	s := newServer(t, e, change...)
	h := httptest.NewServer(s.Handler())
	t.Cleanup(func() {
		h.Close()
		s.members[0].service.Close()
		e.Live.Wait()
	})
	return s, h.URL
}

// shelf is a store of contexts in memory.
type shelf struct {
	mu   sync.Mutex
	kept map[string]generate.SavedContext
	full error
	away int // number of listings that fail
}

func (s *shelf) SaveContext(_ context.Context, k generate.SavedContext) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.full == nil {
		s.kept[k.Tenant+"/"+k.Name] = k
	}
	return s.full
}

func (s *shelf) SavedContexts(context.Context) ([]generate.SavedContext, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away > 0 {
		s.away--
		return nil, errors.New("no leader")
	}
	return slices.Collect(maps.Values(s.kept)), nil
}

func (s *shelf) DropContext(_ context.Context, tenant, name, _ string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.kept, tenant+"/"+name)
	return s.full
}

// Contexts that are in a store are there in the next process, which reads them again, whenever
// the engine releases them. A context that could not be stored does not exist.
func TestContextsOutliveAServer(t *testing.T) {
	store := &shelf{kept: map[string]generate.SavedContext{}}
	holds := func(hold bool) *servertest.Engine {
		e := &servertest.Engine{Script: func(r *engine.Request) []engine.Event {
			return []engine.Event{{Token: 1}, {Token: engine.NoToken, Finish: engine.FinishCancelled}}
		}}
		if hold {
			e.Hold = func(r *engine.Request) bool { return r.Hold }
		}
		return e
	}
	keys := func(c *Config) { c.Keys = []httpserver.Key{{Name: "ann", Secret: "a"}, {Name: "bob", Secret: "b"}} }
	first, url := serveServer(t, holds(true), keys)
	first.SetContextStore(store)
	if r := ask(t, "POST", url+"/v1/contexts", "a", `{"name": "book", "prompt": "once upon", "kv_policy": "squeezed:sparsity=0.8", "automatic": true}`); r.status != 200 || at(t, r.body, "durable") != true {
		t.Fatal(r.raw)
	}
	store.full = errors.New("the disk is full")
	if r := ask(t, "POST", url+"/v1/contexts", "a", `{"name": "lost", "prompt": "once"}`); r.status == 200 {
		t.Error(r.raw)
	}
	if r := ask(t, "GET", url+"/v1/contexts/lost", "a", ""); r.status != 404 {
		t.Error(r.raw)
	}
	store.full = nil
	store.kept["x"] = generate.SavedContext{Tenant: "ann", Name: "other", Policy: "squeezed", Fingerprint: "another model", IDs: []int32{1}}

	e := holds(false) // which gives it up at once
	second, url := serveServer(t, e, keys)
	second.SetContextStore(store)
	servertest.Eventually(t, "a context that was given up is read again", func() bool {
		e.Mu.Lock()
		defer e.Mu.Unlock()
		for _, r := range e.Requests {
			if !r.Hold || r.Tenant != "ann" || r.Policy != "squeezed:sparsity=0.8" || r.Context != len(r.Prompt) || len(r.Prompt) != 10 {
				t.Fatalf("%+v", r)
			}
		}
		return len(e.Requests) >= 2
	})
	if r := ask(t, "GET", url+"/v1/contexts", "a", ""); !strings.Contains(r.raw, `"name":"book"`) || strings.Contains(r.raw, "other") || !strings.Contains(r.raw, `"automatic":true,"durable":true`) {
		t.Error(r.raw)
	}
	if r := ask(t, "GET", url+"/v1/contexts/book", "b", ""); r.status != 404 {
		t.Error(r.raw)
	}
	if r := ask(t, "DELETE", url+"/v1/contexts/book", "a", ""); r.status != 200 || len(store.kept) != 1 {
		t.Error(r.raw, store.kept)
	}
	second.SetContextStore(nil)
}

// TestContextsOfAnAbsentStore: contexts of a store that cannot be read when the server starts are there once it can.
func TestContextsOfAnAbsentStore(t *testing.T) {
	store := &shelf{kept: map[string]generate.SavedContext{}}
	holds := func() *servertest.Engine {
		return &servertest.Engine{Hold: func(r *engine.Request) bool { return r.Hold }, Script: func(*engine.Request) []engine.Event {
			return []engine.Event{{Token: 1}, {Token: engine.NoToken, Finish: engine.FinishCancelled}}
		}}
	}
	first, url := serveServer(t, holds())
	first.SetContextStore(store)
	if r := ask(t, "POST", url+"/v1/contexts", "", `{"name": "book", "prompt": "once upon"}`); r.status != 200 {
		t.Fatal(r.raw)
	}
	store.away = 1
	second, url := serveServer(t, holds())
	second.SetContextStore(store)
	defer second.SetContextStore(nil)
	servertest.Eventually(t, "the context is there", func() bool {
		return ask(t, "GET", url+"/v1/contexts/book", "", "").status == 200
	})
}

// TestContextCounts: the usage has the cache of the context's policy, and the context as its prompt. A prompt that leaves no
// room after a context is refused without a number of output tokens if the request has none.
func TestContextCounts(t *testing.T) {
	e := &servertest.Engine{Hold: func(r *engine.Request) bool { return r.Hold }, Script: func(r *engine.Request) []engine.Event {
		if r.Hold {
			return []engine.Event{{Token: 1}, {Token: engine.NoToken, Finish: engine.FinishCancelled}}
		}
		return servertest.Tokens(engine.FinishLength, 'a', 'b')(r)
	}}
	url := serve(t, e, func(c *Config) {
		c.CacheBytes = func(policy string, prompt, output int) (bytes, full int64) {
			return int64(1000*len(policy) + prompt), int64(output)
		}
	})
	for name, n := range map[string]int{"book": 9, "long": 400} {
		made := ask(t, "POST", url+"/v1/contexts", "", `{"name": "`+name+`", "prompt": "`+strings.Repeat("x", n)+
			`", "add_special_tokens": false, "kv_policy": "squeezed"}`)
		if made.status != http.StatusOK {
			t.Fatal(made.raw)
		}
	}
	defer ask(t, "DELETE", url+"/v1/contexts/long", "", "")
	defer ask(t, "DELETE", url+"/v1/contexts/book", "", "")
	a := ask(t, "POST", url+"/v1/completions", "", `{"prompt": " a", "max_tokens": 2, "context": "book"}`)
	if at(t, a.body, "usage", "kv_bytes") != 8009.0 || at(t, a.body, "usage", "kv_bytes_full") != 4.0 {
		t.Error(a.raw)
	}
	a = ask(t, "POST", url+"/v1/completions", "", `{"prompt": "`+strings.Repeat("y", 200)+`", "max_tokens": -1, "context": "long"}`)
	if a.status != http.StatusBadRequest || !strings.Contains(a.raw, "your prompt has 600 tokens") {
		t.Error(a.raw)
	}
	ask(t, "POST", url+"/v1/completions", "", `{"prompt": ["y", "yyy", "yy"], "max_tokens": -1, "context": "long"}`)
	e.Mu.Lock()
	last := slices.Clone(e.Requests[len(e.Requests)-3:])
	e.Mu.Unlock()
	for _, r := range last {
		if r.MaxTokens != 512-403 || !r.Open {
			t.Errorf("a prompt of %d tokens has max_tokens %d, open %v", len(r.Prompt), r.MaxTokens, r.Open)
		}
	}
}
