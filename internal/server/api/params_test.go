package api

import (
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/servertest"
)

func TestParameters(t *testing.T) {
	e := &servertest.Engine{Script: servertest.Hello}
	url := serve(t, e) + "/v1/completions"
	a := post(t, url, completion(M{
		"temperature": 0.5, "top_p": 0.25, "top_k": 7, "min_p": 0.125, "repetition_penalty": 1.5, "presence_penalty": -1, "frequency_penalty": 2,
		"logit_bias": M{"65": 5, "7": -100, "07": -100}, "seed": -3, "max_tokens": 9, "max_completion_tokens": 8,
		"min_tokens": 2.0, "stop_token_ids": []int{260, 3},
		"ignore_eos": false, "kv_policy": "streaming:sink=4,recent=1020", "speculate": "suffix",
		"priority": -2, "stop": []string{"a", "b", "c", "d"}, "user": "me",
	}))
	if a.status != 200 {
		t.Fatal(a.raw)
	}
	r := e.Last(t)
	seed := int64(-3)
	want := sampler.Params{Temperature: 0.5, TopP: 0.25, TopK: 7, MinP: 0.125, RepetitionPenalty: 1.5,
		PresencePenalty: -1, FrequencyPenalty: 2,
		LogitBias: []sampler.Bias{{Token: 7, Value: -100}, {Token: 65, Value: 5}}, Seed: uint64(seed),
		Logprobs: -1, MinTokens: 2, Stop: []int32{3, servertest.TokEOS, 260}}
	if !reflect.DeepEqual(r.Sampling, want) {
		t.Errorf("got  %+v\nwant %+v", r.Sampling, want)
	}
	post(t, url, completion(M{"allowed_token_ids": []int{70, 3, 64, 3}, "bad_words": []string{"one", " two", "ab"}, "n": 2}))
	for _, r := range e.Requests[1:3] {
		p := r.Sampling
		want := [][]int32{{'o', 'n', 'e'}, {servertest.TokOne}, {'t', 'w', 'o'}, {servertest.TokTwo}, {'a', 'b'}, {' ', 'a', 'b'}}
		if !reflect.DeepEqual(p.BadWords, want) || !slices.Equal(p.Allowed, []uint64{1 << 3, 1<<0 | 1<<6}) {
			t.Errorf("masks %v %x", p.BadWords, p.Allowed)
		}
	}
	for word, want := range map[string][][]int32{"\n": {{'\n'}}, "\t": {{'\t'}}, " ": {{' '}},
		"\r\n": {{'\r', '\n'}}, "\n ab": {{'a', 'b'}, {' ', 'a', 'b'}}} {
		a := post(t, url, completion(M{"bad_words": []string{word}}))
		if got := e.Last(t).Sampling.BadWords; a.status != 200 || !reflect.DeepEqual(got, want) {
			t.Errorf("bad word %q: %d %v, want %v", word, a.status, got, want)
		}
	}
	if r.MaxTokens != 8 || r.Policy != "streaming:sink=4,recent=1020" || r.Speculate != "suffix" ||
		r.Priority != -2 || !reflect.DeepEqual(r.StopTokens, []int32{260, 3}) {
		t.Errorf("%+v", r)
	}
	if err := r.Sampling.Validate(1 << 10); err != nil {
		t.Error(err)
	}
	post(t, url, completion(M{"min_tokens": 1, "ignore_eos": true, "logit_bias": nil, "stop": nil}))
	if r := e.Last(t); !r.IgnoreEOS || len(r.Sampling.Stop) != 0 {
		t.Errorf("%+v", r)
	}
}

func TestDefaultsOfTheModel(t *testing.T) {
	e := &servertest.Engine{Script: servertest.Hello}
	zero := 0.0
	url := serve(t, e, func(c *Config) { c.DefaultTemperature, c.DefaultTopP, c.DefaultTopK = &zero, 0.9, 50 }) + "/v1/completions"
	post(t, url, completion(nil))
	if p := e.Last(t).Sampling; p.Temperature != 0 || p.TopP != 0.9 || p.TopK != 50 || p.RepetitionPenalty != 1 {
		t.Errorf("%+v", p)
	}
	post(t, url, completion(M{"temperature": 1, "top_p": 1, "top_k": -1}))
	if p := e.Last(t).Sampling; p.Temperature != 1 || p.TopP != 1 || p.TopK != 0 {
		t.Errorf("%+v", p)
	}
}

func TestWrongParameters(t *testing.T) {
	e := &servertest.Engine{Script: servertest.Hello}
	url := serve(t, e)
	beyond := servertest.Tokenizer{}.VocabSize()
	both := []struct {
		name  string
		value any
	}{
		{"temperature", "hot"}, {"temperature", -0.1}, {"temperature", 2.1}, {"temperature", []int{1}},
		{"top_p", 1.1}, {"top_p", -1}, {"min_p", 2}, {"top_k", -2}, {"top_k", 1.5}, {"top_k", "1"},
		{"presence_penalty", 3}, {"frequency_penalty", -3}, {"repetition_penalty", 0}, {"repetition_penalty", -1},
		{"max_tokens", -2}, {"max_tokens", 1.5}, {"max_tokens", "9"}, {"max_tokens", true}, {"max_tokens", 1e30}, {"max_tokens", 0},
		{"max_completion_tokens", -5}, {"min_tokens", -1}, {"n", 0}, {"n", 65}, {"n", "2"}, {"best_of", 0},
		{"best_of", 65}, {"best_of", "2"}, {"seed", "x"}, {"seed", 1.5}, {"seed", 1e19},
		{"stream", "yes"}, {"stream", 1}, {"stop", 3}, {"stop", []any{"a", 3}}, {"stop", []string{"1", "2", "3", "4", "5"}},
		{"stop", strings.Repeat("a", 1025)}, {"stop", []any{nil}}, {"stop_token_ids", []int{-1}},
		{"stop_token_ids", []int{beyond}}, {"stop_token_ids", "1"}, {"stop_token_ids", []any{1.5}},
		{"logit_bias", []int{1}}, {"logit_bias", M{"x": 1}}, {"logit_bias", M{strconv.Itoa(beyond): 1}},
		{"logit_bias", M{"-1": 1}}, {"logit_bias", M{"1": 101}}, {"logit_bias", M{"1": "a"}},
		{"allowed_token_ids", []int{}}, {"allowed_token_ids", []int{beyond}}, {"allowed_token_ids", []int{-1}},
		{"allowed_token_ids", make([]int, beyond+1)}, {"allowed_token_ids", M{}}, {"allowed_token_ids", []string{"1"}},
		{"bad_words", "x"}, {"bad_words", []string{""}}, {"bad_words", []any{1}}, {"bad_words", []any{nil}},
		{"bad_words", []string{"unencodable"}}, {"bad_words", []string{strings.Repeat("x", 1025)}},
		{"bad_words", strings.Split(strings.Repeat("x ", 256), " ")}, {"bad_words", slices.Repeat([]string{strings.Repeat("x", 1000)}, 3)},
		{"ignore_eos", 1}, {"skip_special_tokens", "no"}, {"return_tokens_as_token_ids", 0}, {"kv_policy", 3},
		{"speculate", "eagle"}, {"speculate", true}, {"kv_policy", strings.Repeat("x", 257)}, {"model", 5},
		{"stream_options", M{"include_usage": true}}, {"user", 3}, {"priority", "high"}, {"add_special_tokens", 2},
	}
	for _, c := range both {
		checkParam(t, post(t, url+"/v1/completions", completion(M{c.name: c.value})), c.name, c.value)
		checkParam(t, post(t, url+"/v1/chat/completions", chat(M{c.name: c.value})), c.name, c.value)
	}
	for _, c := range []struct {
		name  string
		value any
	}{
		{"logprobs", 6}, {"logprobs", -1}, {"logprobs", "1"}, {"logprobs", []int{1}}, {"echo", "x"}, {"suffix", "tail"},
		{"prompt", nil}, {"prompt", 3}, {"prompt", M{}}, {"prompt", []any{}}, {"prompt", []any{"a", 1}},
		{"prompt", []any{1, "a"}}, {"prompt", []any{[]int{1}, "a"}},
		{"prompt", []any{[]int{1}, []int{}}}, {"prompt", []int{-1}}, {"prompt", []int{beyond}},
		{"prompt", []any{1.5}}, {"prompt", []any{[]any{[]int{1}}}}, {"prompt", []any{true}},
		{"prompt", []int{1 << 40}}, {"prompt", make([]int, 600)}, {"prompt", make([]string, 300)}, {"prompt", "unencodable"},
	} {
		checkParam(t, post(t, url+"/v1/completions", completion(M{c.name: c.value})), c.name, c.value)
	}
	for _, c := range []struct {
		name  string
		value any
	}{
		{"logprobs", 1}, {"top_logprobs", 2}, {"top_logprobs", 21}, {"messages", "x"}, {"chat_template_kwargs", 3},
	} {
		checkParam(t, post(t, url+"/v1/chat/completions", chat(M{c.name: c.value})), c.name, c.value)
	}
	checkParam(t, post(t, url+"/v1/chat/completions", chat(M{"stream": true, "stream_options": 3})), "stream_options", 3)
	checkParam(t, post(t, url+"/v1/chat/completions", chat(M{"stream": true, "stream_options": M{"include_usage": 3}})),
		"stream_options.include_usage", 3)
	checkParam(t, post(t, url+"/v1/completions", completion(M{"n": 64, "prompt": []string{"a", "b", "c", "d", "e"}})), "n", 64)
	checkParam(t, post(t, url+"/v1/chat/completions", chat(M{"best_of": 2})), "best_of", 2)
	checkParam(t, post(t, url+"/v1/completions", completion(M{"best_of": 1, "n": 2})), "best_of", 1)
	checkParam(t, post(t, url+"/v1/completions", completion(M{"best_of": 2, "stream": true})), "best_of", 2)
	checkParam(t, post(t, url+"/v1/completions", completion(M{"best_of": 64, "prompt": []string{"a", "b", "c", "d", "e"}})), "n", 64)
	checkParam(t, post(t, url+"/v1/completions", completion(M{"min_tokens": 20})), "min_tokens", 20)
	checkParam(t, post(t, url+"/v1/completions", completion(M{"echo": true, "max_tokens": 0, "min_tokens": 1})), "min_tokens", 1)
	if len(e.Requests) != 0 {
		t.Errorf("%d requests reached the engine", len(e.Requests))
	}
}

func checkParam(t *testing.T, a answer, param string, value any) {
	t.Helper()
	if a.status != 400 || at(t, a.body, "error", "param") != param {
		t.Errorf("%s = %v: %d %s", param, value, a.status, a.raw)
	}
}

// Known parameters with an effect are refused by name, unless their value means off.
func TestRefusedParameters(t *testing.T) {
	e := &servertest.Engine{Script: servertest.Hello}
	url := serve(t, e)
	on := M{"tools": []M{{"type": "function"}}, "tool_choice": "auto", "functions": []M{{"name": "f"}}, "function_call": "auto",
		"response_format": M{"type": "json_object"}, "audio": M{"voice": "x"}, "modalities": []string{"text", "audio"}, "suffix": "x"}
	for _, name := range []string{"functions", "function_call", "audio", "modalities", "suffix",
		"use_beam_search", "length_penalty", "early_stopping",
		"logits_processors", "prompt_logprobs", "detokenize", "chat_template", "documents", "mm_processor_kwargs",
		"return_token_ids", "prompt_embeds"} {
		v, ok := on[name]
		if !ok {
			v = M{"on": 1}
		}
		for path, body := range map[string]M{"/v1/completions": completion(M{name: v}), "/v1/chat/completions": chat(M{name: v})} {
			a := post(t, url+path, body)
			checkError(t, a, 400, "invalid_request_error", name, "unsupported_parameter")
		}
	}
	off := M{"tools": []M{}, "tool_choice": "none", "functions": []M{}, "function_call": "none",
		"response_format": M{"type": "text"}, "audio": nil,
		"modalities": []string{"text"}, "suffix": "", "best_of": 1, "store": false, "use_beam_search": false,
		"length_penalty": 1.0, "guided_json": nil,
		"metadata": M{"a": "b"}, "parallel_tool_calls": true, "service_tier": "auto", "something_new": []int{1}}
	for path, body := range map[string]M{"/v1/completions": completion(off), "/v1/chat/completions": chat(off)} {
		if a := post(t, url+path, body); a.status != 200 {
			t.Errorf("%s: %s", path, a.raw)
		}
	}
}

// TestUsageOfDrafts: usage has the sum of the choices' drafts, and no such member without drafts.
func TestUsageOfDrafts(t *testing.T) {
	drafts := &engine.Drafts{Rows: 3, Drafted: 9, Accepted: 7}
	e := &servertest.Engine{Script: func(r *engine.Request) []engine.Event {
		return []engine.Event{{Token: 65}, {Token: 66, Finish: engine.FinishLength, Drafts: drafts}}
	}}
	url := serve(t, e) + "/v1/completions"
	got := at(t, post(t, url, completion(M{"n": 2})).body, "usage", "completion_tokens_details")
	want := M{"accepted_prediction_tokens": 14.0, "rejected_prediction_tokens": 4.0, "draft_steps": 6.0}
	if !reflect.DeepEqual(got, map[string]any(want)) {
		t.Errorf("got %v, want %v", got, want)
	}
	drafts = &engine.Drafts{Rows: 5, Drafted: 16, Accepted: 6, At: []uint64{3, 2, 1}, PerStep: []engine.DraftStep{
		{Drafted: 3, Accepted: 0}, {Drafted: 4, Accepted: 3}, {Drafted: 3, Accepted: 2}, {Drafted: 3, Accepted: 1}, {Drafted: 3, Accepted: 0},
	}}
	want = M{"mean_acceptance_length": 2.2, "draft_acceptance_rate": 0.375, "num_spec_steps": 5.0,
		"num_accepted_draft_tokens": 6.0, "num_draft_tokens": 16.0, "num_spec_tokens": 15.0,
		"acceptance_histogram_by_draft_length": map[string]any{"3": []any{2.0, 1.0, 1.0, 0.0}, "4": []any{0.0, 0.0, 0.0, 1.0, 0.0}},
		"per_step_accepted":                    []any{0.0, 3.0, 2.0, 1.0, 0.0}, "per_step_drafted": []any{3.0, 4.0, 3.0, 3.0, 3.0},
		"acceptance_histogram": []any{2.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0}}
	got = at(t, post(t, url, completion(M{"speculate": "suffix"})).body, "metrics", "speculative_decoding")
	if !reflect.DeepEqual(got, map[string]any(want)) {
		t.Errorf("got %v, want %v", got, want)
	}
	for _, body := range []M{nil, {"speculate": "off"}, {"speculate": "suffix", "n": 2}} {
		if a := post(t, url, completion(body)); strings.Contains(a.raw, "speculative_decoding") {
			t.Errorf("%v: %s", body, a.raw)
		}
	}
	if a := post(t, url, completion(M{"speculate": "suffix", "stream": true, "stream_options": M{"include_usage": true}})); strings.Count(a.raw, `"num_spec_steps":5,`) != 1 {
		t.Error(a.raw)
	}
	drafts = nil
	if a := post(t, url, completion(nil)); strings.Contains(a.raw, "completion_tokens_details") {
		t.Error(a.raw)
	}
}

// TestOpenEnd: a request is open if it wants as many tokens as fit, in each protocol, and no other is.
func TestOpenEnd(t *testing.T) {
	e := &servertest.Engine{Script: servertest.Hello}
	url := serve(t, e)
	talk := []M{{"role": "user", "content": "x"}}
	for _, c := range []struct {
		path string
		body M
		open bool
	}{
		{"/v1/chat/completions", M{"messages": talk}, true},
		{"/v1/chat/completions", M{"messages": talk, "max_tokens": -1}, true},
		{"/v1/chat/completions", M{"messages": talk, "max_completion_tokens": -1}, true},
		{"/v1/chat/completions", M{"messages": talk, "max_tokens": 3}, false},
		{"/v1/chat/completions", M{"messages": talk, "max_tokens": 100000}, false},
		{"/v1/completions", M{"prompt": "x"}, false},
		{"/v1/completions", M{"prompt": "x", "max_tokens": -1}, true},
		{"/v1/responses", M{"input": "x"}, true},
		{"/v1/responses", M{"input": "x", "max_output_tokens": 20}, false},
		{"/v1/messages", M{"model": "fake/model", "messages": talk, "max_tokens": 20}, false},
		{"/api/chat", M{"model": "fake/model", "messages": talk, "stream": false}, true},
		{"/api/chat", M{"model": "fake/model", "messages": talk, "stream": false, "options": M{"num_predict": -2}}, true},
		{"/api/chat", M{"model": "fake/model", "messages": talk, "stream": false, "options": M{"num_predict": 5}}, false},
		{"/api/generate", M{"model": "fake/model", "prompt": "x", "stream": false}, true},
	} {
		if strings.HasPrefix(c.path, "/v1/responses") {
			c.body["store"] = false
		}
		if a := post(t, url+c.path, c.body); a.status != 200 || e.Last(t).Open != c.open {
			t.Errorf("%s %v: open %v, want %v: %s", c.path, c.body, e.Last(t).Open, c.open, a.raw)
		}
	}
}

// TestTruncatedToMemory: -1 leaves the tokens that fit the cache memory too, with max_tokens of output or its default.
func TestTruncatedToMemory(t *testing.T) {
	e := &servertest.Engine{Script: servertest.Hello, Room: func(r *engine.Request) int { return max(0, min(len(r.Prompt), 50-r.MaxTokens)) }}
	url := serve(t, e)
	long := strings.Repeat("x", 600)
	for _, c := range []struct {
		truncate any
		most     any
		want     int
	}{{-1, 12, 38}, {-1, nil, 34}, {-1, -1, 49}, {20, 12, 20}, {-1, 60, 452}} {
		body := completion(M{"prompt": long, "truncate_prompt_tokens": c.truncate, "max_tokens": c.most})
		if a := post(t, url+"/v1/completions", body); a.status != 200 || len(e.Last(t).Prompt) != c.want {
			t.Errorf("%v with max_tokens %v: %d tokens: %s", c.truncate, c.most, len(e.Last(t).Prompt), a.raw)
		}
	}
	if a := post(t, url+"/v1/chat/completions", chat(M{"messages": []M{{"role": "user", "content": long}},
		"truncate_prompt_tokens": -1})); a.status != 200 || len(e.Last(t).Prompt) != 49 {
		t.Errorf("a chat: %d tokens: %s", len(e.Last(t).Prompt), a.raw)
	}
}

// A prompt is cut from its beginning, and only when that is asked for.
func TestTruncatedPrompt(t *testing.T) {
	e := &servertest.Engine{Script: servertest.Hello}
	url := serve(t, e)
	for cut, want := range map[int]string{2: "de", 9: "abcde", -1: "abcde", 0: "abcde"} {
		if a := post(t, url+"/v1/completions", completion(M{"prompt": "abcde", "add_special_tokens": false, "truncate_prompt_tokens": cut,
			"echo": true, "max_tokens": 3})); a.status != 200 || at(t, a.body, "choices", 0, "text") != want+"Hello world!" {
			t.Errorf("%d: %s", cut, a.raw)
		}
	}
	long := strings.Repeat("x", 600)
	if a := post(t, url+"/v1/chat/completions", chat(M{"messages": []M{{"role": "user", "content": long}},
		"max_tokens": 12, "truncate_prompt_tokens": -1})); a.status != 200 || len(e.Last(t).Prompt) != 500 {
		t.Errorf("%d tokens: %s", len(e.Last(t).Prompt), a.raw)
	}
}
