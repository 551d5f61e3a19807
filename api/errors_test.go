package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/sampler"
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
	e := &fakeEngine{submit: func(*Request) error { return err }}
	url := serve(t, e) + "/v1/chat/completions"
	for _, c := range []struct {
		err         error
		status      int
		param, code string
		retry       string
	}{
		{ErrOverloaded{RetryAfter: 2500 * time.Millisecond, Reason: "512 requests wait"}, 503, "", "overloaded", "3"},
		{ErrNotReady{Reason: "loading weights"}, 503, "", "not_ready", "1"},
		{fmt.Errorf("batcher: %w", ErrNotReady{Reason: "recovering", RetryAfter: time.Second}), 503, "", "not_ready", "1"},
		{ErrTooLong{Limit: 10, Prompt: 9, Completion: 5}, 400, "", "context_length_exceeded", ""},
		{ErrInvalid{Param: "kv_policy", Message: "unknown policy \"x\": full, streaming"}, 400, "kv_policy", "", ""},
		{ErrInvalid{Param: "prompt", Code: "kv_budget_exceeded", Message: "it needs 9 bytes"}, 400, "prompt", "kv_budget_exceeded", ""},
		{ErrFailed{Code: "step_failed", Message: "8 steps failed"}, 500, "", "step_failed", ""},
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
	e := &fakeEngine{gate: make(chan struct{})}
	e.submit = func(*Request) error {
		if n++; n == 3 {
			return ErrOverloaded{}
		}
		return nil
	}
	a := post(t, serve(t, e)+"/v1/completions", completion(M{"n": 4}))
	checkError(t, a, 503, "server_error", "", "overloaded")
	e.waitCancelled(t, 2)
	if len(e.requests) != 2 {
		t.Errorf("%d requests", len(e.requests))
	}
}

func TestContextLength(t *testing.T) {
	e := &fakeEngine{script: hello}
	url := serve(t, e)
	long := strings.Repeat("a", 600)
	for _, c := range []struct {
		path  string
		body  M
		param string
		text  string
	}{
		{"/v1/completions", completion(M{"prompt": long}), "prompt", "you requested 602 tokens (601 in the prompt, 1 in the completion)"},
		{"/v1/completions", completion(M{"max_tokens": 510}), "prompt", "This model's maximum context length is 512 tokens. However, you requested 513 tokens"},
		{"/v1/completions", completion(M{"prompt": []int{1, 2}, "max_tokens": 2_000_000_000}), "prompt", "maximum context length is 512"},
		{"/v1/chat/completions", chat(M{"messages": []M{{"role": "user", "content": long}}}), "messages", "Please reduce the length"},
		{"/v1/chat/completions", chat(M{"max_completion_tokens": 507}), "messages", "513 tokens (6 in the prompt, 507 in the completion)"},
		{"/v1/completions", completion(M{"prompt": strings.Repeat("a", 1<<20)}), "prompt", "maximum context length is 512"},
	} {
		a := post(t, url+c.path, c.body)
		checkError(t, a, 400, "invalid_request_error", c.param, "context_length_exceeded")
		if !strings.Contains(a.raw, c.text) {
			t.Errorf("%s\ndoes not say %q", a.raw, c.text)
		}
	}
	if a := post(t, url+"/v1/completions", completion(M{"prompt": strings.Repeat("a", 505)})); a.status != 200 || e.last(t).MaxTokens != 6 {
		t.Errorf("the default of max_tokens gives way to the context: %s, %d", a.raw, e.last(t).MaxTokens)
	}
	if a := post(t, url+"/v1/completions", completion(M{"max_tokens": 509})); a.status != 200 {
		t.Error(a.raw)
	}
}

func TestUnknownModel(t *testing.T) {
	url := serve(t, &fakeEngine{script: hello})
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
	url := serve(t, &fakeEngine{script: hello}, func(c *Config) { c.Limits.BodyBytes = 1000 }) + "/v1/completions"
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
	resp, err = http.Post(url, "text/plain", strings.NewReader(`{"prompt":"x"}`))
	checkError(t, read(t, resp, err), 415, "invalid_request_error", "", "unsupported_media_type")
	resp, err = http.Post(url, "application/json; charset=utf-8", strings.NewReader(`{"prompt":"x"}`))
	if a := read(t, resp, err); a.status != 200 {
		t.Error(a.raw)
	}
}

func TestTooManyMembers(t *testing.T) {
	m := M{}
	for i := range 300 {
		m["x"+itoa(i)] = i
	}
	checkError(t, post(t, serve(t, &fakeEngine{})+"/v1/completions", completion(m)), 400, "invalid_request_error", "", "invalid_json")
}

func TestRequestTimeout(t *testing.T) {
	for _, streaming := range []bool{false, true} {
		e := &fakeEngine{gate: make(chan struct{})}
		url := serve(t, e, func(c *Config) { c.Limits.RequestTimeout = 500 * time.Millisecond }) + "/v1/completions"
		a := post(t, url, completion(M{"stream": streaming}))
		checkError(t, a, 504, "server_error", "", "timeout")
		if a.header.Get("X-Should-Retry") != "false" {
			t.Error("a client would do the work twice")
		}
		e.waitCancelled(t, 1)
	}
}

func TestErrorJSON(t *testing.T) {
	b, err := json.Marshal(&apiError{message: "m", typ: "t"})
	if err != nil || string(b) != `{"error":{"message":"m","type":"t","param":null,"code":null}}` {
		t.Errorf("%s %v", b, err)
	}
}
