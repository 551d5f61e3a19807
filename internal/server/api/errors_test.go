package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/generate"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
	"github.com/shoal-llm/shoal/internal/server/servertest"
)

// checkError fails unless a is the protocol's error body.
func checkError(t *testing.T, a answer, status int, typ, param, code string) {
	t.Helper()
	e := at(t, a.body, "error").(M)
	for _, k := range []string{"message", "type", "param", "code"} {
		if _, ok := e[k]; !ok {
			t.Errorf("no %q in %s", k, a.raw)
		}
	}
	str := func(v any) string { s, _ := v.(string); return s }
	if a.status != status || str(e["type"]) != typ || str(e["param"]) != param || str(e["code"]) != code || str(e["message"]) == "" {
		t.Errorf("%d %s\nwant %d %s %s %s", a.status, a.raw, status, typ, param, code)
	}
}

func TestEngineRefusals(t *testing.T) {
	var err error
	e := &servertest.Engine{Refuse: func(*engine.Request) error { return err }}
	url := serve(t, e) + "/v1/chat/completions"
	for _, c := range []struct {
		err         error
		status      int
		param, code string
		retry       string
	}{
		{apierr.ErrOverloaded{RetryAfter: 2500 * time.Millisecond, Reason: "512 requests wait"}, 503, "", "overloaded", "3"},
		{apierr.ErrNotReady{Reason: "loading weights"}, 503, "", "not_ready", "1"},
		{fmt.Errorf("batcher: %w", apierr.ErrNotReady{Reason: "recovering", RetryAfter: time.Second}), 503, "", "not_ready", "1"},
		{apierr.ErrTooLong{Limit: 10, Prompt: 9, Completion: 5}, 400, "", "context_length_exceeded", ""},
		{apierr.ErrInvalid{Param: "kv_policy", Message: "unknown policy \"x\": full, streaming"}, 400, "kv_policy", "", ""},
		{apierr.ErrInvalid{Param: "prompt", Code: "kv_budget_exceeded", Message: "it needs 9 bytes"}, 400, "prompt", "kv_budget_exceeded", ""},
		{apierr.ErrFailed{Code: "step_failed", Message: "8 steps failed"}, 500, "", "step_failed", ""},
		{&sampler.ParamError{Param: "min_p", Message: "must be small"}, 400, "min_p", "", ""},
		{errors.New("cluster: no quorum"), 500, "", "engine_error", ""},
	} {
		err = c.err
		for _, streaming := range []bool{false, true} {
			a := post(t, url, chat(M{"stream": streaming}))
			typ := "invalid_request_error"
			if c.status >= 500 {
				typ = "server_error"
			}
			checkError(t, a, c.status, typ, c.param, c.code)
			if got := a.header.Get("Retry-After"); got != c.retry {
				t.Errorf("%v: Retry-After %q, want %q", c.err, got, c.retry)
			}
			if a.header.Get("X-Should-Retry") != "" { // nothing was accepted
				t.Errorf("%v: X-Should-Retry %q", c.err, a.header.Get("X-Should-Retry"))
			}
		}
	}
}

// Of several choices one is refused: none stays, and the client may retry.
func TestRefusalOfOneChoiceEndsTheOthers(t *testing.T) {
	n := 0
	e := &servertest.Engine{Gate: make(chan struct{})}
	e.Refuse = func(*engine.Request) error {
		if n++; n == 3 {
			return apierr.ErrOverloaded{}
		}
		return nil
	}
	a := post(t, serve(t, e)+"/v1/completions", completion(M{"n": 4}))
	checkError(t, a, 503, "server_error", "", "overloaded")
	e.WaitCancelled(t, 2)
	if len(e.Requests) != 2 {
		t.Errorf("%d requests", len(e.Requests))
	}
}

func TestContextLength(t *testing.T) {
	e := &servertest.Engine{Script: servertest.Hello}
	url := serve(t, e)
	long := strings.Repeat("a", 600)
	for _, c := range []struct {
		path  string
		body  M
		param string
		text  string
	}{
		{"/v1/completions", completion(M{"prompt": long}), "prompt",
			"This model's maximum context length is 512 tokens. However, your prompt has 601 tokens, which leaves no room"},
		{"/v1/completions", completion(M{"prompt": long, "max_tokens": 10}), "prompt",
			"you requested 611 tokens (601 in the prompt, 10 in the completion)"},
		{"/v1/completions", completion(M{"prompt": long, "max_tokens": -1}), "prompt", "your prompt has 601 tokens"},
		{"/v1/completions", completion(M{"prompt": make([]int, 900)}), "prompt", "your prompt has 900 tokens"},
		{"/v1/completions", completion(M{"prompt": strings.Repeat("a", 511)}), "prompt", "your prompt has 512 tokens"},
		{"/v1/chat/completions", chat(M{"messages": []M{{"role": "user", "content": long}}}), "messages", "Please reduce the length"},
		{"/v1/chat/completions", chat(M{"messages": []M{{"role": "user", "content": long}}, "max_completion_tokens": 7}),
			"messages", "7 in the completion"},
		{"/v1/completions", completion(M{"prompt": strings.Repeat("a", 1<<20)}), "prompt", "your prompt has at least "},
	} {
		a := post(t, url+c.path, c.body)
		checkError(t, a, 400, "invalid_request_error", c.param, "context_length_exceeded")
		if !strings.Contains(a.raw, c.text) {
			t.Errorf("%s\nlacks %q", a.raw, c.text)
		}
	}
	if a := post(t, url+"/v1/completions", completion(M{"prompt": strings.Repeat("a", 505)})); a.status != 200 || e.Last(t).MaxTokens != 6 {
		t.Errorf("the default of max_tokens gives way to the context: %s, %d", a.raw, e.Last(t).MaxTokens)
	}
	if a := post(t, url+"/v1/completions", completion(M{"max_tokens": 509})); a.status != 200 {
		t.Error(a.raw)
	}
}

// On every route max_tokens is lowered to the room in the context; -1 is that room.
func TestMaxTokensGivesWay(t *testing.T) {
	e := &servertest.Engine{Refuse: func(r *engine.Request) error {
		if n := len(r.Prompt) + r.MaxTokens; n > 512 {
			return apierr.ErrTooLong{Limit: 512, Prompt: len(r.Prompt), Completion: r.MaxTokens}
		}
		return nil
	}}
	s := newServer(t, e)
	h := httptest.NewServer(s.Handler())
	defer h.Close()
	messages := []M{{"role": "user", "content": "Hi"}}
	const prompt = 6 // tokens, of the chats
	for _, most := range []any{8192, 513, 2_000_000_000, -1, 5, 5.0} {
		want := 512 - prompt
		if most == 5 || most == 5.0 {
			want = 5
		}
		for path, body := range map[string]M{
			"/v1/chat/completions": {"messages": messages, "max_tokens": most},
			"/v1/completions":      {"prompt": "Hello", "max_tokens": most, "add_special_tokens": false},
			"/v1/messages":         {"messages": messages, "max_tokens": most},
			"/v1/responses":        {"input": "Hi", "max_output_tokens": most, "store": false},
			"/api/chat":            {"model": "fake/model", "messages": messages, "stream": false, "options": M{"num_predict": most}},
			"/api/generate":        {"model": "fake/model", "prompt": "Hi", "stream": false, "options": M{"num_predict": most}},
		} {
			want := want
			if path == "/v1/completions" && want > 5 {
				want = 511
			}
			a := post(t, h.URL+path, body)
			if a.status != 200 || e.Last(t).MaxTokens != want || !strings.Contains(a.raw, `"length"`) && !strings.Contains(a.raw, `"max_tokens"`) && !strings.Contains(a.raw, `"incomplete"`) {
				t.Errorf("%s with %v: %d tokens, want %d: %.200s", path, most, e.Last(t).MaxTokens, want, a.raw)
			}
			if endpoint := path; strings.HasPrefix(path, "/v1/") && path != "/v1/messages" {
				task, err := s.NewTask(context.Background(), endpoint, jsonbody.MustJSON(body), generate.TaskOptions{ID: "x"})
				if err != nil || task.MaxTokens() != want {
					t.Errorf("a job of %s with %v: %v", path, most, err)
				}
			}
		}
	}
	for path, body := range map[string]M{"/v1/chat/completions": {"messages": messages, "max_tokens": 0},
		"/v1/completions": {"prompt": "x", "max_tokens": 0},
		"/v1/messages":    {"messages": messages, "max_tokens": 0}, "/v1/responses": {"input": "Hi", "max_output_tokens": 0}} {
		if a := post(t, h.URL+path, body); a.status != 400 {
			t.Errorf("%s with 0: %d", path, a.status)
		}
	}
	if a := post(t, h.URL+"/api/chat", M{"model": "fake/model", "messages": messages, "stream": false,
		"options": M{"num_predict": 0}}); a.status != 200 || e.Last(t).MaxTokens != 512-prompt {
		t.Errorf("num_predict 0 must mean no limit: %s", a.raw)
	}
	// A truncated prompt leaves room for max_tokens, and at least one token of it stays.
	for most, want := range map[int]int{12: 500, 600: 511, -1: 511} {
		post(t, h.URL+"/v1/completions", completion(M{"prompt": strings.Repeat("a", 600), "truncate_prompt_tokens": -1, "max_tokens": most}))
		if r := e.Last(t); len(r.Prompt) != want || r.MaxTokens != 512-want {
			t.Errorf("max_tokens %d: %d tokens of the prompt, %d of the answer", most, len(r.Prompt), r.MaxTokens)
		}
	}
}

func TestUnknownModel(t *testing.T) {
	url := serve(t, &servertest.Engine{Script: servertest.Hello})
	for _, path := range []string{"/v1/completions", "/v1/chat/completions", "/tokenize"} {
		body := M{"model": "gpt-9", "prompt": "x"}
		if strings.Contains(path, "chat") {
			body = chat(M{"model": "gpt-9"})
		}
		checkError(t, post(t, url+path, body), 404, "invalid_request_error", "model", "model_not_found")
	}
	checkError(t, get(t, url+"/v1/models/gpt-9"), 404, "invalid_request_error", "model", "model_not_found")
	if a := post(t, url+"/v1/completions", M{"prompt": "x"}); at(t, a.body, "model") != "fake/model" {
		t.Error(a.raw)
	}
	if a := post(t, url+"/v1/completions", M{"prompt": "x", "model": "alias"}); at(t, a.body, "model") != "alias" {
		t.Error(a.raw)
	}
}

func TestBodies(t *testing.T) {
	url := serve(t, &servertest.Engine{Script: servertest.Hello}, func(c *Config) { c.Limits.BodyBytes = 1000 }) + "/v1/completions"
	checkError(t, post(t, url, ""), 400, "invalid_request_error", "", "invalid_json")
	checkError(t, post(t, url, "{"), 400, "invalid_request_error", "", "invalid_json")
	checkError(t, post(t, url, "[]"), 400, "invalid_request_error", "", "invalid_json")
	checkError(t, post(t, url, "null"), 400, "invalid_request_error", "", "invalid_json")
	checkError(t, post(t, url, `{"prompt":"x"} {}`), 400, "invalid_request_error", "", "invalid_json")
	checkError(t, post(t, url, `{"prompt":`+strings.Repeat("[", 200)+strings.Repeat("]", 200)+`}`), 400, "invalid_request_error", "", "invalid_json")
	checkError(t, post(t, url, completion(M{"prompt": strings.Repeat("a", 2000)})), 413, "invalid_request_error", "", "request_too_large")
	chunked, err := http.NewRequest("POST", url, struct{ *strings.Reader }{strings.NewReader(strings.Repeat(" ", 2000))})
	if err != nil {
		t.Fatal(err)
	}
	chunked.ContentLength = -1
	chunked.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(chunked)
	checkError(t, read(t, resp, err), 413, "invalid_request_error", "", "request_too_large")
	// Only a browser must name the type, since a page could send the request.
	for _, kind := range []string{"", "text/plain", "application/x-www-form-urlencoded",
		"multipart/form-data; boundary=x", "nonsense/;", "application/json; charset=utf-8"} {
		for _, browser := range []bool{false, true} {
			req, err := http.NewRequest("POST", url, strings.NewReader(`{"prompt":"x"}`))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", kind)
			if kind == "" {
				req.Header["Content-Type"] = nil // none is sent
			}
			if browser {
				req.Header.Set("Sec-Fetch-Site", "same-origin")
			}
			resp, err := http.DefaultClient.Do(req)
			a := read(t, resp, err)
			if browser && kind != "" && !strings.HasPrefix(kind, "application/json") {
				checkError(t, a, 415, "invalid_request_error", "", "unsupported_media_type")
			} else if a.status != 200 {
				t.Errorf("%q, of a browser: %v: %s", kind, browser, a.raw)
			}
		}
	}
}

func TestTooManyMembers(t *testing.T) {
	m := M{}
	for i := range 300 {
		m["x"+strconv.Itoa(i)] = i
	}
	checkError(t, post(t, serve(t, &servertest.Engine{})+"/v1/completions", completion(m)), 400, "invalid_request_error", "", "invalid_json")
}

func TestRequestTimeout(t *testing.T) {
	for _, streaming := range []bool{false, true} {
		e := &servertest.Engine{Gate: make(chan struct{})}
		url := serve(t, e, func(c *Config) { c.Limits.RequestTimeout = 500 * time.Millisecond }) + "/v1/completions"
		a := post(t, url, completion(M{"stream": streaming}))
		checkError(t, a, 504, "server_error", "", "timeout")
		if a.header.Get("X-Should-Retry") != "false" {
			t.Error("a client would do the work twice")
		}
		e.WaitCancelled(t, 1)
	}
}

func TestErrorJSON(t *testing.T) {
	b, err := json.Marshal(&apierr.Error{Message: "m", Type: "t"})
	if err != nil || string(b) != `{"error":{"message":"m","type":"t","param":null,"code":null}}` {
		t.Errorf("%s %v", b, err)
	}
}
