package api

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/generate"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
	"github.com/shoal-llm/shoal/internal/server/servertest"
)

// twoKeys are the keys of ann and bob.
func twoKeys(c *Config) {
	c.Policy = "full"
	c.Keys = []httpserver.Key{{Name: "ann", Secret: "a"}, {Name: "bob", Secret: "b"}}
}

func encode(text string) []int32 { return servertest.FakeEncode(engine.Segment{Text: text}) }

// TestSessionOfCompletions: each turn sends only the new tokens, and the engine gets all tokens. The
// token that ends an answer is not part of the session. Turns that fail leave nothing.
func TestSessionOfCompletions(t *testing.T) {
	e := &servertest.Engine{Script: servertest.Hello}
	url := serve(t, e, twoKeys)
	turn := func(n int, want []int32, body string) {
		t.Helper()
		a := ask(t, "POST", url+"/v1/completions", "a", body)
		if a.status != 200 || a.header.Get("X-Session-Turns") != string(rune('0'+n)) {
			t.Fatal(a.status, a.header, a.raw)
		}
		if r := e.Last(t); !slices.Equal(r.Prompt, want) || r.Session != "s" || r.Context != len(want[:6]) ||
			r.Tenant != "ann" || r.Policy != "streaming" || r.SessionTTL != time.Minute {
			t.Errorf("turn %d: %+v", n, r)
		}
	}
	first := slices.Concat([]int32{servertest.TokBOS}, encode("Once "))
	answer := []int32{servertest.TokHello, servertest.TokWorld, '!'}
	second := slices.Concat(first, answer, encode(" and"))
	turn(1, first, `{"session": "s", "prompt": "Once ", "kv_policy": "streaming", "session_ttl": 60, "session_turns": 0}`)
	turn(2, second, `{"session": "s", "prompt": " and", "stream": true}`)

	before := len(e.Requests)
	for _, bad := range []struct {
		key, body, says string
		status          int
	}{
		{"a", `{"prompt": "x", "session": "s", "n": 2}`, "'n' is not supported with 'session'", 400},
		{"a", `{"prompt": "x", "session": "s", "best_of": 2}`, "'session'", 400},
		{"a", `{"prompt": "x", "session": "s", "echo": true}`, "'echo'", 400},
		{"a", `{"prompt": "x", "session": "s", "echo": true, "max_tokens": 0}`, "'echo'", 400},
		{"a", `{"prompt": "x", "session": "s", "context": "auto"}`, "'context'", 400},
		{"a", `{"prompt": "x", "session": "s", "truncate_prompt_tokens": 3}`, "truncate_prompt_tokens", 400},
		{"a", `{"prompt": ["x", "y"], "session": "s"}`, "one prompt", 400},
		{"a", `{"prompt": "x", "session": "a b"}`, "'session' must be", 400},
		{"a", `{"prompt": "x", "session": "."}`, "'session' must be", 400},
		{"a", `{"prompt": "x", "session": ".."}`, "'session' must be", 400},
		{"a", `{"prompt": "x", "session_ttl": 5}`, "needs 'session'", 400},
		{"a", `{"prompt": "x", "session_turns": 5}`, "needs 'session'", 400},
		{"a", `{"prompt": "x", "session": "s", "session_ttl": 2592001}`, "session_ttl", 400},
		{"a", `{"prompt": "x", "session": "s", "session_turns": 1}`, "session_moved", 409},
		{"a", `{"prompt": "x", "session": "s", "session_turns": 0}`, "has 2 turns, not 0", 409},
		{"a", `{"prompt": "x", "session": "other", "session_turns": 1}`, "session_not_found", 404},
		{"b", `{"prompt": "x", "session": "s", "session_turns": 2}`, "session_not_found", 404},
		{"a", `{"prompt": "x", "session": "s", "kv_policy": "full"}`, "kv_policy streaming", 409},
		{"a", `{"prompt": "x", "session": "s", "model": "alias"}`, "another model", 409},
	} {
		if got := ask(t, "POST", url+"/v1/completions", bad.key, bad.body); got.status != bad.status || !strings.Contains(got.raw, bad.says) {
			t.Errorf("%s: %d %s", bad.body, got.status, got.raw)
		}
	}
	if got := ask(t, "POST", url+"/v1/chat/completions", "a", `{"messages": [{"role": "user", "content": "x"}], "session": "s"}`); got.status != 409 || !strings.Contains(got.raw, "/v1/completions") {
		t.Error(got.raw)
	}
	if len(e.Requests) != before {
		t.Errorf("the engine got %d of these", len(e.Requests)-before)
	}

	fails := errors.New("the node is gone")
	e.Script = func(*engine.Request) []engine.Event {
		return []engine.Event{{Token: servertest.TokOne}, {Token: engine.NoToken, Finish: engine.FinishError, Err: fails}}
	}
	for _, body := range []string{`{"session": "s", "prompt": "x"}`, `{"session": "s", "prompt": "x", "stream": true}`, `{"session": "new", "prompt": "x"}`} {
		if a := ask(t, "POST", url+"/v1/completions", "a", body); !strings.Contains(a.raw, fails.Error()) {
			t.Error(a.raw)
		}
	}
	e.Script, e.Refuse = servertest.Hello, func(*engine.Request) error { return fails }
	ask(t, "POST", url+"/v1/completions", "a", `{"session": "new", "prompt": "x"}`)
	e.Refuse = nil
	list := ask(t, "GET", url+"/v1/sessions", "a", "")
	if n := len(at(t, list.body, "data").([]any)); n != 1 || at(t, list.body, "data", 0, "turns") != 2.0 ||
		at(t, list.body, "data", 0, "tokens") != float64(len(second)+3) || at(t, list.body, "data", 0, "durable") != false {
		t.Error(list.raw)
	}
	if x := ask(t, "GET", url+"/v1/sessions/s", "a", ""); at(t, x.body, "status") != "idle" ||
		at(t, x.body, "kv_policy") != "streaming" || at(t, x.body, "expires_at").(float64)-at(t, x.body, "last_turn").(float64) != 60 {
		t.Error(x.raw)
	}
	third := slices.Concat(second, answer, encode("STOP"))
	turn(3, third, `{"session": "s", "prompt": "STOP", "session_turns": 2, "stop": ["world"]}`)
	turn(4, slices.Concat(third, answer[:2], []int32{7}), `{"session": "s", "prompt": [7]}`)
	for _, key := range []string{"b", "a"} {
		want := map[string]int{"a": 200, "b": 404}[key]
		for _, method := range []string{"GET", "DELETE"} {
			if x := ask(t, method, url+"/v1/sessions/s", key, ""); x.status != want {
				t.Error(key, method, x.raw)
			}
		}
	}
	if x := ask(t, "GET", url+"/v1/sessions/s", "a", ""); x.status != 404 || !strings.Contains(x.raw, "session_not_found") {
		t.Error(x.raw)
	}
}

// TestSessionOfAChat: a turn has the messages that are new. Its tokens end the last answer and continue
// the conversation as the template does for all messages together.
func TestSessionOfAChat(t *testing.T) {
	e := &servertest.Engine{Script: servertest.Hello}
	url := serve(t, e, twoKeys)
	chat := func(body string) answer { return ask(t, "POST", url+"/v1/chat/completions", "a", body) }
	e.Script = servertest.Tokens(engine.FinishStop, servertest.TokHello, servertest.TokWorld, encode("!")[0], servertest.TokEOS)
	whole := encode("<bos><|user|>Be brief.<|end|><|user|>Hi<|end|><|assistant|>Hello world!<|end|><|user|>More<|end|><|assistant|>")
	if a := chat(`{"session": "s", "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]}`); a.status != 200 || a.header.Get("X-Session-Turns") != "1" {
		t.Fatal(a.raw)
	}
	if a := chat(`{"session": "s", "messages": [{"role": "user", "content": "More"}]}`); a.status != 200 || at(t, a.body, "usage", "prompt_tokens") != float64(len(whole)) {
		t.Fatal(a.raw)
	}
	if r := e.Last(t); !slices.Equal(r.Prompt, whole) || r.Policy != "full" || r.Session != "s" || r.SessionTTL != time.Hour {
		t.Errorf("%+v, want %v", r, whole)
	}
	if x := ask(t, "GET", url+"/v1/sessions/s", "a", ""); at(t, x.body, "messages") != 5.0 || at(t, x.body, "turns") != 2.0 {
		t.Error(x.raw)
	}
	for body, says := range map[string]string{
		`{"session": "s", "messages": [{"role": "user", "content": "x"}], "continue_final_message": true, "add_generation_prompt": false}`: "ends with the answer",
		`{"session": "s", "messages": [{"role": "system", "content": "x"}]}`:                                                               "system message must come first",
		`{"session": "s", "messages": [{"role": "user", "content": "` + strings.Repeat("long ", 500) + `"}]}`:                              "context_length_exceeded",
	} {
		if a := chat(body); a.status != 400 || !strings.Contains(a.raw, says) {
			t.Errorf("%.80s: %d %s", body, a.status, a.raw)
		}
	}
}

// TestSessionIsBusy: a session has one turn at a time.
func TestSessionIsBusy(t *testing.T) {
	e := &servertest.Engine{Script: servertest.Hello, Gate: make(chan struct{})}
	url := serve(t, e, twoKeys)
	done := make(chan answer)
	go func() { done <- ask(t, "POST", url+"/v1/completions", "a", `{"session": "s", "prompt": "x"}`) }()
	servertest.Eventually(t, "the turn runs", func() bool { e.Mu.Lock(); defer e.Mu.Unlock(); return len(e.Requests) == 1 })
	if a := ask(t, "POST", url+"/v1/completions", "a", `{"session": "s", "prompt": "y"}`); a.status != 409 || !strings.Contains(a.raw, "session_busy") {
		t.Error(a.raw)
	}
	close(e.Gate)
	if a := <-done; a.status != 200 {
		t.Error(a.raw)
	}
	if a := ask(t, "DELETE", url+"/v1/sessions/s", "a", ""); a.status != 200 {
		t.Error(a.raw)
	}
}

// TestSessionsWithoutTheirStore: while the store is away, turns are refused.
func TestSessionsWithoutTheirStore(t *testing.T) {
	e := &servertest.Engine{Script: servertest.Hello}
	s, url := serveServer(t, e)
	s.SetSessionBook(nil)
	for _, a := range []answer{post(t, url+"/v1/completions", M{"prompt": "x", "session": "s"}),
		get(t, url+"/v1/sessions"), get(t, url+"/v1/sessions/s")} {
		if a.status != 503 || !strings.Contains(a.raw, "jobs_unavailable") {
			t.Error(a.status, a.raw)
		}
	}
	if a := post(t, url+"/v1/completions", M{"prompt": "x"}); a.status != 200 {
		t.Error(a.raw)
	}
}

// TestPromptBeyondTheContext: under a policy without a limit a prompt may be longer than the context. A
// stricter limit of the operator holds under every policy.
func TestPromptBeyondTheContext(t *testing.T) {
	endless := func(c *Config) {
		c.ContextLimit = func(policy string) int {
			if policy == "endless" {
				return 1 << 20
			}
			return c.MaxModelLen
		}
	}
	strict := func(c *Config) { c.Limits.PromptTokens = 100 }
	long := M{"prompt": strings.Repeat("x", 2000), "max_tokens": 2, "kv_policy": "endless"}
	if a := post(t, serve(t, &servertest.Engine{}, endless)+"/v1/completions", long); a.status != 200 ||
		at(t, a.body, "usage", "prompt_tokens") != 2001.0 {
		t.Error(a.raw)
	}
	if a := post(t, serve(t, &servertest.Engine{}, endless, strict)+"/v1/completions", long); a.status != 400 ||
		!strings.Contains(a.raw, "100 tokens") {
		t.Error(a.raw)
	}
	long["kv_policy"] = "full"
	if a := post(t, serve(t, &servertest.Engine{}, endless)+"/v1/completions", long); a.status != 400 ||
		!strings.Contains(a.raw, "512 tokens") {
		t.Error(a.raw)
	}
}

// TestSessionOfResponses: a response may be a turn. It is not stored, and has no response before it. Jobs
// have no session.
func TestSessionOfResponses(t *testing.T) {
	e := &servertest.Engine{Script: servertest.Hello}
	s, url := serveServer(t, e)
	for n, input := range []string{"Hi", "More"} {
		a := post(t, url+"/v1/responses", M{"input": input, "session": "s", "session_turns": n})
		if a.status != 200 || at(t, a.body, "store") != false {
			t.Fatal(a.raw)
		}
	}
	if r, want := e.Last(t), encode("<bos><|user|>Hi<|end|><|assistant|>Hello world"); !slices.Equal(r.Prompt[:len(want)], want) ||
		r.Context != 6 {
		t.Errorf("%+v", r)
	}
	if a := post(t, url+"/v1/chat/completions", M{"messages": []M{{"role": "user", "content": "x"}}, "session": "s"}); a.status != 200 ||
		a.header.Get("X-Session-Turns") != "3" {
		t.Error(a.raw)
	}
	for name, value := range map[string]any{"store": true, "previous_response_id": "resp_x", "background": true} {
		if a := post(t, url+"/v1/responses", M{"input": "x", "session": "s", name: value}); a.status < 400 {
			t.Errorf("%s: %s", name, a.raw)
		}
	}
	for path, body := range map[string]string{"/v1/completions": `{"prompt": "x", "session": "s2"}`, "/v1/chat/completions": `{"messages": [{"role": "user", "content": "x"}], "session": "s"}`} {
		if _, err := s.NewTask(t.Context(), path, []byte(body), generate.TaskOptions{ID: "job-1"}); err == nil ||
			!strings.Contains(err.Error(), "A job has no 'session'") {
			t.Errorf("%s: %v", path, err)
		}
	}
}
