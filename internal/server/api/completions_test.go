package api

import (
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/generate"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
	"github.com/shoal-llm/shoal/internal/server/openai"
	"github.com/shoal-llm/shoal/internal/server/servertest"
)

func TestCompletion(t *testing.T) {
	e := &servertest.Engine{Script: servertest.Hello}
	a := post(t, serve(t, e)+"/v1/completions", completion(M{"seed": 7, "user": "u", "unknown_field": M{"x": 1}}))
	if a.status != 200 {
		t.Fatal(a.raw)
	}
	if at(t, a.body, "object") != "text_completion" || !strings.HasPrefix(at(t, a.body, "id").(string), "cmpl-") ||
		at(t, a.body, "model") != "fake/model" {
		t.Error(a.raw)
	}
	c := at(t, a.body, "choices", 0)
	if at(t, c, "text") != "Hello world!" || at(t, c, "finish_reason") != "stop" || at(t, c, "logprobs") != nil || at(t, c, "index") != 0.0 {
		t.Error(a.raw)
	}
	if at(t, a.body, "usage", "prompt_tokens") != 3.0 || at(t, a.body, "usage", "completion_tokens") != 4.0 {
		t.Error(a.raw)
	}
	r := e.Last(t)
	if r.MaxTokens != 16 || r.Sampling.Temperature != 1 || r.Sampling.Seed != 7 || r.Sampling.Logprobs != -1 || r.PromptLogprobs != -1 {
		t.Errorf("%+v", r)
	}
}

func TestPromptForms(t *testing.T) {
	e := &servertest.Engine{Script: servertest.Hello}
	url := serve(t, e) + "/v1/completions"
	for _, c := range []struct {
		prompt any
		want   [][]int32
	}{
		{"Hi", [][]int32{{servertest.TokBOS, 'H', 'i'}}},
		{[]string{"a", "b"}, [][]int32{{servertest.TokBOS, 'a'}, {servertest.TokBOS, 'b'}}},
		{[]int{1, 2, 256}, [][]int32{{1, 2, 256}}},
		{[][]int{{1}, {2, 3}}, [][]int32{{1}, {2, 3}}},
	} {
		e.Requests = nil
		a := post(t, url, completion(M{"prompt": c.prompt}))
		if a.status != 200 {
			t.Fatal(a.raw)
		}
		var got [][]int32
		for _, r := range e.Requests {
			got = append(got, r.Prompt)
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%v: prompts %v, want %v", c.prompt, got, c.want)
		}
		if n := len(at(t, a.body, "choices").([]any)); n != len(c.want) {
			t.Errorf("%d choices", n)
		}
	}
	e.Requests = nil
	post(t, url, completion(M{"add_special_tokens": false}))
	if got := e.Last(t).Prompt; !reflect.DeepEqual(got, []int32{'H', 'i'}) {
		t.Errorf("without special tokens: %v", got)
	}
}

func TestSeveralChoices(t *testing.T) {
	e := &servertest.Engine{Script: func(r *engine.Request) []engine.Event {
		return servertest.Tokens(engine.FinishLength, int32('a'+r.Sampling.Seed%26), int32(r.Prompt[0]))(r)
	}}
	url := serve(t, e) + "/v1/completions"
	want := []string{"ax", "bx", "ay", "by"}
	body := completion(M{"prompt": [][]int{{'x'}, {'y'}}, "n": 2, "seed": 26 * 4, "best_of": 2})
	a := post(t, url, body)
	for i, w := range want {
		c := at(t, a.body, "choices", i)
		if at(t, c, "text") != w || at(t, c, "index") != float64(i) {
			t.Errorf("choice %d: %v, want %q", i, c, w)
		}
	}
	if at(t, a.body, "usage", "prompt_tokens") != 2.0 || at(t, a.body, "usage", "completion_tokens") != 8.0 {
		t.Error(a.raw)
	}
	got := make([]string, 4)
	finish := 0
	for _, ev := range stream(t, url, body) {
		if ev.json == nil {
			continue
		}
		c := at(t, ev.json, "choices", 0)
		got[int(at(t, c, "index").(float64))] += at(t, c, "text").(string)
		if at(t, c, "finish_reason") == "length" {
			finish++
		}
	}
	if !reflect.DeepEqual(got, want) || finish != 4 {
		t.Errorf("streamed %q with %d finishes", got, finish)
	}
}

// Of the candidates those are answered whose mean log-probability is greatest, the best
// first; all are counted, and log-probabilities are shown only where they were asked for.
func TestBestOf(t *testing.T) {
	scores := []float32{-3, -1, -2, -1, -0.9} // of seeds; the last one's answer is longer
	e := &servertest.Engine{Script: func(r *engine.Request) []engine.Event {
		k := r.Sampling.Seed % 26
		out := servertest.Tokens(engine.FinishLength, slices.Repeat([]int32{int32('a' + k)}, int(2+k/4))...)(r)
		for i := range out {
			out[i].Logprob = scores[k]
		}
		return out
	}}
	s := newServer(t, e)
	url := serve(t, e) + "/v1/completions"
	body := completion(M{"prompt": [][]int{{'x'}, {'y'}}, "n": 3, "best_of": 5, "seed": 26 * 4})
	a := post(t, url, body)
	if a.status != 200 {
		t.Fatal(a.raw)
	}
	raw, _ := json.Marshal(body)
	task, err := s.NewTask(t.Context(), openai.EndpointCompletions, raw, generate.TaskOptions{ID: "t"})
	if err != nil {
		t.Fatal(err)
	}
	replay := task.Replay()
	for i := range task.Choices() {
		for _, ev := range e.Script(task.Request(i)) {
			if _, err := replay.Accept(i, ev); err != nil {
				t.Fatal(err)
			}
		}
	}
	var job M
	for range 2 { // as often as somebody asks
		result, err := replay.Result()
		if err != nil || json.Unmarshal(result, &job) != nil {
			t.Fatal(err, string(result))
		}
	}
	for i, want := range []string{"eee", "bb", "dd", "eee", "bb", "dd"} {
		c := at(t, a.body, "choices", i)
		if at(t, c, "text") != want || at(t, c, "index") != float64(i) || at(t, c, "logprobs") != nil {
			t.Errorf("choice %d: %v, want %q", i, c, want)
		}
		if text := at(t, job, "choices", i, "text"); text != want {
			t.Errorf("choice %d of a job: %v, want %q", i, text, want)
		}
	}
	if n := len(at(t, a.body, "choices").([]any)); n != 6 || at(t, a.body, "usage", "completion_tokens") != 22.0 ||
		e.Requests[0].Sampling.Logprobs != 0 {
		t.Error(n, a.raw)
	}
	body["logprobs"] = 0
	if a := post(t, url, body); len(at(t, a.body, "choices", 0, "logprobs", "tokens").([]any)) != 3 {
		t.Error(a.raw)
	}
}

func TestRandomSeedDiffers(t *testing.T) {
	e := &servertest.Engine{Script: servertest.Hello}
	url := serve(t, e) + "/v1/completions"
	a, b := post(t, url, completion(nil)), post(t, url, completion(nil))
	if s, u := e.Requests[0].Sampling.Seed, e.Requests[1].Sampling.Seed; s == u || s>>63 != 0 {
		t.Errorf("seeds %d, %d", s, u)
	}
	if strings.Contains(a.raw+b.raw, "seed") {
		t.Error("a seed is reported")
	}
}

// The request of lm-eval, and the fields of the answer that it reads.
func TestEchoWithLogprobs(t *testing.T) {
	url := serve(t, &servertest.Engine{}) + "/v1/completions"
	prompt := []int{servertest.TokBOS, servertest.TokHello, servertest.TokWorld, 0xe6, 0x97, 0xa5}
	a := post(t, url,
		completion(M{"prompt": [][]int{prompt, {'a', 'b'}}, "echo": true, "max_tokens": 1, "logprobs": 1, "seed": 1234, "temperature": 0}))
	if a.status != 200 {
		t.Fatal(a.raw)
	}
	c := at(t, a.body, "choices", 0)
	if got := at(t, c, "text"); got != "Hello world日 one" {
		t.Errorf("text %q", got)
	}
	lp := at(t, c, "logprobs")
	wantTokens := []any{"<bos>", "Hello", " world", `bytes:\xe6`, `bytes:\x97`, `bytes:\xa5`, " one"}
	if got := at(t, lp, "tokens"); !reflect.DeepEqual(got, wantTokens) {
		t.Errorf("tokens %v", got)
	}
	if got := at(t, lp, "token_logprobs"); !reflect.DeepEqual(got, []any{nil, -1.5, -0.5, -0.5, -1.5, -1.5, -0.5}) {
		t.Errorf("token_logprobs %v", got)
	}
	if got := at(t, lp, "text_offset"); !reflect.DeepEqual(got, []any{0.0, 0.0, 5.0, 11.0, 11.0, 11.0, 12.0}) {
		t.Errorf("text_offset %v", got)
	}
	top := at(t, lp, "top_logprobs").([]any)
	if top[0] != nil || !reflect.DeepEqual(top[1], M{"q": -0.25, "Hello": -1.5}) || !reflect.DeepEqual(top[2], M{" world": -0.5}) {
		t.Errorf("top_logprobs %v", top)
	}
	if got := at(t, a.body, "choices", 1, "text"); got != "ab one" {
		t.Errorf("second choice %q", got)
	}
}

func TestEchoWithoutGeneration(t *testing.T) {
	e := &servertest.Engine{}
	url := serve(t, e) + "/v1/completions"
	a := post(t, url, completion(M{"echo": true, "max_tokens": 0}))
	if at(t, a.body, "choices", 0, "text") != "Hi" || at(t, a.body, "choices", 0, "finish_reason") != "length" ||
		at(t, a.body, "usage", "completion_tokens") != 0.0 {
		t.Error(a.raw)
	}
	if len(e.Requests) != 0 {
		t.Error("the engine was asked")
	}
	a = post(t, url, completion(M{"echo": true, "max_tokens": 0, "logprobs": 2}))
	lp := at(t, a.body, "choices", 0, "logprobs")
	if at(t, a.body, "choices", 0, "text") != "Hi" || len(at(t, lp, "tokens").([]any)) != 3 ||
		at(t, a.body, "usage", "completion_tokens") != 0.0 {
		t.Error(a.raw)
	}
	ev := stream(t, url, completion(M{"echo": true, "max_tokens": 0, "stream_options": M{"include_usage": true}}))
	if len(ev) != 3 || at(t, ev[0].json, "choices", 0, "text") != "Hi" || at(t, ev[1].json, "usage", "prompt_tokens") != 3.0 {
		t.Errorf("%v", ev)
	}
}

// An echo without generation names ignored parameters, and is charged to its key, as every other request.
func TestEchoWithoutGenerationIsCounted(t *testing.T) {
	url := serve(t, &servertest.Engine{}, func(c *Config) {
		c.Keys = []httpserver.Key{{Name: "a", Secret: "secret", TokensPerMinute: 5}}
	})
	body := `{"prompt": "Hi", "echo": true, "max_tokens": 0, "colour": 1}`
	ask := func() answer {
		r, err := http.NewRequest(http.MethodPost, url+"/v1/completions", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer secret")
		resp, err := http.DefaultClient.Do(r)
		return read(t, resp, err)
	}
	if a := ask(); a.status != 200 || a.header.Get("X-Ignored-Parameters") != "colour" {
		t.Errorf("%d, X-Ignored-Parameters %q", a.status, a.header.Get("X-Ignored-Parameters"))
	}
	ask() // 3 tokens each: now the key has none
	if a := ask(); a.status != 429 {
		t.Errorf("status %d after 6 of 5 tokens", a.status)
	}
}

func TestEchoStreams(t *testing.T) {
	url := serve(t, &servertest.Engine{Script: servertest.Hello}) + "/v1/completions"
	var text string
	n := 0
	for _, e := range stream(t, url, completion(M{"echo": true, "logprobs": 0})) {
		if e.json != nil {
			text += at(t, e.json, "choices", 0, "text").(string)
			n += len(at(t, e.json, "choices", 0, "logprobs", "tokens").([]any))
		}
	}
	if text != "HiHello world!" || n != 3+4 {
		t.Errorf("%q, %d tokens", text, n)
	}
}

func TestEngineMustSendPromptLogprobs(t *testing.T) {
	e := &servertest.Engine{Refuse: func(r *engine.Request) error { r.PromptLogprobs = -1; return nil }}
	a := post(t, serve(t, e)+"/v1/completions", completion(M{"echo": true, "logprobs": 1}))
	if a.status != 500 || !strings.Contains(a.raw, "logprobs of 0 prompt tokens") {
		t.Error(a.raw)
	}
}

func TestTokensAsIDs(t *testing.T) {
	url := serve(t, &servertest.Engine{Script: servertest.Hello})
	a := post(t, url+"/v1/completions", completion(M{"logprobs": 1, "return_tokens_as_token_ids": true}))
	lp := at(t, a.body, "choices", 0, "logprobs")
	if at(t, lp, "tokens", 0) != "token_id:261" ||
		!reflect.DeepEqual(at(t, lp, "top_logprobs", 0), M{"token_id:113": -0.25, "token_id:261": -1.5}) {
		t.Error(a.raw)
	}
	a = post(t, url+"/v1/chat/completions", chat(M{"logprobs": true, "top_logprobs": 1, "return_tokens_as_token_ids": true}))
	if at(t, a.body, "choices", 0, "logprobs", "content", 0, "token") != "token_id:261" {
		t.Error(a.raw)
	}
}

func TestSpecialTokensInText(t *testing.T) {
	url := serve(t, &servertest.Engine{Script: servertest.Tokens(engine.FinishStop, servertest.TokOne,
		servertest.TokUser, servertest.TokTwo, servertest.TokEOS)}) + "/v1/completions"
	if a := post(t, url, completion(nil)); at(t, a.body, "choices", 0, "text") != " one two" {
		t.Error(a.raw)
	}
	if a := post(t, url, completion(M{"skip_special_tokens": false})); at(t, a.body, "choices", 0, "text") != " one<|user|> two" {
		t.Error(a.raw)
	}
}

func TestStopReasons(t *testing.T) {
	url := serve(t, &servertest.Engine{Script: servertest.Tokens(engine.FinishStop, servertest.TokOne, servertest.TokTwo)}) + "/v1/completions"
	a := post(t, url, completion(M{"stop_token_ids": []int{servertest.TokTwo}}))
	if at(t, a.body, "choices", 0, "stop_reason") != float64(servertest.TokTwo) || at(t, a.body, "choices", 0, "text") != " one" {
		t.Error(a.raw)
	}
	a = post(t, url, completion(M{"stop": "ne", "include_stop_str_in_output": true}))
	if at(t, a.body, "choices", 0, "stop_reason") != "ne" || at(t, a.body, "choices", 0, "text") != " one" {
		t.Error(a.raw)
	}
	a = post(t, url, completion(M{"stop": "ne", "min_tokens": 1}))
	if _, has := at(t, a.body, "choices", 0).(M)["stop_reason"]; has || at(t, a.body, "choices", 0, "text") != " one" {
		t.Error(a.raw)
	}
}

// A stop string cuts text and logprobs alike.
func TestStopCutsLogprobs(t *testing.T) {
	url := serve(t, &servertest.Engine{Script: servertest.Tokens(engine.FinishLength, 'a', 'b', 'c', 'd')}) + "/v1/completions"
	a := post(t, url, completion(M{"stop": []string{"cd"}, "logprobs": 0}))
	if got := at(t, a.body, "choices", 0, "logprobs", "tokens"); !reflect.DeepEqual(got, []any{"a", "b"}) {
		t.Error(got)
	}
}

// usage has the cache bytes of all choices at their ends under the request's policy, and
// the bytes of a cache with every token.
func TestUsageCountsCacheBytes(t *testing.T) {
	url := serve(t, &servertest.Engine{Script: servertest.Hello}, func(c *Config) {
		c.CacheBytes = func(policy string, prompt, output int) (bytes, full int64) {
			return int64(len(policy)), int64(1000*prompt*prompt + output)
		}
	})
	a := post(t, url+"/v1/completions", completion(M{"n": 2, "prompt": [][]int{{1, 2}, {3, 4, 5}}, "kv_policy": "tova:size=9"}))
	if at(t, a.body, "usage", "kv_bytes") != 44.0 || at(t, a.body, "usage", "kv_bytes_full") != 2*(4000+9000)+4*4.0 {
		t.Error(a.raw)
	}
}

// A prompt of ids may end inside a character. With echo its bytes and those of the answer are
// one text; without echo the prompt's bytes never show.
func TestEchoEndsInsideACharacter(t *testing.T) {
	e := &servertest.Engine{Script: servertest.Tokens(engine.FinishLength, 0xa5, servertest.TokOne)}
	url := serve(t, e) + "/v1/completions"
	prompt := []int{servertest.TokHello, 0xe6, 0x97}
	for _, more := range []M{{}, {"logprobs": 1}, {"n": 2}, {"logprobs": 1, "n": 2}} {
		more["prompt"], more["max_tokens"], more["echo"] = prompt, 2, true
		a := post(t, url, completion(more))
		if got := at(t, a.body, "choices", 0, "text"); got != "Hello日 one" {
			t.Errorf("%v: %q", more, got)
		}
		if more["logprobs"] != nil {
			if got := at(t, a.body, "choices", 0, "logprobs", "text_offset"); !reflect.DeepEqual(got, []any{0.0, 5.0, 5.0, 5.0, 6.0}) {
				t.Errorf("text_offset %v", got)
			}
		}
		text := ""
		for _, ev := range stream(t, url, completion(more)) {
			if c, ok := ev.json["choices"].([]any); ok && len(c) > 0 && at(t, c, 0, "index") == 0.0 {
				text += at(t, c, 0, "text").(string)
			}
		}
		if text != "Hello日 one" {
			t.Errorf("%v as a stream: %q", more, text)
		}
		delete(more, "echo")
		if got := at(t, post(t, url, completion(more)).body, "choices", 0, "text"); got != "\uFFFD one" {
			t.Errorf("%v: %q", more, got)
		}
	}
	for _, more := range []M{{}, {"logprobs": 1}} {
		more["prompt"], more["max_tokens"], more["echo"] = prompt, 0, true
		if got := at(t, post(t, url, completion(more)).body, "choices", 0, "text"); got != "Hello\uFFFD" {
			t.Errorf("%v: %q", more, got)
		}
	}
}

// A prompt that is too long has one code, as text and as ids, at once and as a task.
func TestTooLongHasACode(t *testing.T) {
	s := newServer(t, &servertest.Engine{Script: servertest.Hello})
	url := serve(t, &servertest.Engine{Script: servertest.Hello})
	ids := make([]int, 600)
	for _, prompt := range []any{ids, [][]int{{1}, ids}, strings.Repeat("x", 600)} {
		body := completion(M{"prompt": prompt, "max_tokens": 1})
		a := post(t, url+"/v1/completions", body)
		checkError(t, a, 400, "invalid_request_error", "prompt", "context_length_exceeded")
		if !strings.Contains(a.raw, "512 tokens") || !strings.Contains(a.raw, "60") {
			t.Error(a.raw)
		}
		raw, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.NewTask(t.Context(), openai.EndpointCompletions, raw, generate.TaskOptions{})
		if status, text := apierr.ErrorStatus(err); status != 400 || !strings.Contains(string(text), `"context_length_exceeded"`) {
			t.Errorf("as a task: %d %s", status, text)
		}
		body["truncate_prompt_tokens"] = -1
		if a := post(t, url+"/v1/completions", body); a.status != 200 {
			t.Errorf("its end: %s", a.raw)
		}
	}
}

// Settings that leave no token to draw are the client's mistake.
func TestMasksThatBanEverything(t *testing.T) {
	url := serve(t, &servertest.Engine{Script: servertest.Hello})
	for _, more := range []M{
		{"allowed_token_ids": []int{'x'}, "bad_words": []string{"x"}},
		{"allowed_token_ids": []int{'x', servertest.TokHello}, "bad_words": []string{"Hello", "x"}},
		{"allowed_token_ids": []int{servertest.TokEOS}, "min_tokens": 5},
		{"allowed_token_ids": []int{servertest.TokEOS, 'x'}, "min_tokens": 5, "stop_token_ids": []int{'x'}},
	} {
		checkError(t, post(t, url+"/v1/completions", completion(more)), 400, "invalid_request_error", "allowed_token_ids", "no_allowed_token")
		checkError(t, post(t, url+"/v1/chat/completions", chat(more)), 400, "invalid_request_error", "allowed_token_ids", "no_allowed_token")
	}
	for _, more := range []M{
		{"allowed_token_ids": []int{'x', 'y'}, "bad_words": []string{"x", "xy", "yy"}},
		{"allowed_token_ids": []int{servertest.TokEOS}, "min_tokens": 5, "ignore_eos": true},
		{"allowed_token_ids": []int{servertest.TokEOS}},
	} {
		if a := post(t, url+"/v1/completions", completion(more)); a.status != 200 {
			t.Errorf("%v: %s", more, a.raw)
		}
	}
}
