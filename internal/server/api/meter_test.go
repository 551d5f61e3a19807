package api

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/generate"
	"github.com/shoal-llm/shoal/internal/server/openai"
	"github.com/shoal-llm/shoal/internal/server/servertest"
)

// series reads /metrics: values by name and labels, without the name of the model.
func series(t testing.TB, url string) map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	model := regexp.MustCompile(`{model_name="[^"]*"}|,?model_name="[^"]*",?`)
	for line := range strings.Lines(get(t, url+"/metrics").raw) {
		line = strings.TrimSpace(line)
		at := strings.LastIndexByte(line, ' ')
		if strings.HasPrefix(line, "#") || at < 0 {
			continue
		}
		v, err := strconv.ParseFloat(line[at+1:], 64)
		if err != nil {
			t.Fatal(err)
		}
		out[model.ReplaceAllString(line[:at], "")] = v
	}
	return out
}

// counted are the tokens that an answer reports, in the words of every protocol.
func counted(t *testing.T, raw string) (prompt, generated float64) {
	t.Helper()
	for _, m := range regexp.MustCompile(`"(\w+)":(\d+)`).FindAllStringSubmatch(raw, -1) {
		n, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			t.Fatal(err)
		}
		switch m[1] {
		case "prompt_tokens", "input_tokens", "prompt_eval_count":
			prompt = max(prompt, n)
		case "completion_tokens", "output_tokens", "eval_count":
			generated = max(generated, n)
		}
	}
	return prompt, generated
}

// TestCountersEqualUsage: for each kind of request, the counters of /metrics grow by the usage in the
// answer.
func TestCountersEqualUsage(t *testing.T) {
	endless := func(r *engine.Request) []engine.Event { // in steps of four tokens
		out := make([]engine.Event, 40)
		for i := range out {
			out[i] = engine.Event{Token: []int32{servertest.TokOne, servertest.TokTwo, servertest.TokThree, servertest.TokHello}[i%4], More: 3 - i%4}
		}
		return out[:min(len(out), r.MaxTokens)]
	}
	for _, c := range []struct {
		name, path        string
		body              M
		prompt, generated float64
		finished          float64 // sequences
	}{
		{"plain", "/v1/completions", completion(M{"max_tokens": 5}), 3, 5, 1},
		{"n", "/v1/completions", completion(M{"max_tokens": 5, "n": 4}), 3, 20, 4},
		{"n in a stream", "/v1/completions",
			completion(M{"max_tokens": 5, "n": 4, "stream": true, "stream_options": M{"include_usage": true}}), 3, 20, 4},
		{"best of", "/v1/completions", completion(M{"max_tokens": 5, "n": 2, "best_of": 3}), 3, 15, 3},
		{"several prompts", "/v1/completions", completion(M{"prompt": []string{"Hi", "H", ""}, "max_tokens": 5, "n": 2}), 6, 30, 6},
		{"echo alone", "/v1/completions", completion(M{"max_tokens": 0, "echo": true, "logprobs": 1}), 3, 0, 1},
		{"echo without logprobs", "/v1/completions", completion(M{"max_tokens": 0, "echo": true}), 3, 0, 1},
		{"such an echo in a stream", "/v1/completions",
			completion(M{"max_tokens": 0, "echo": true, "stream": true, "stream_options": M{"include_usage": true}}), 3, 0, 1},
		{"such echoes of several prompts", "/v1/completions",
			completion(M{"prompt": []string{"Hi", "H", ""}, "max_tokens": 0, "echo": true, "n": 2}), 6, 0, 6},
		{"a stop string within a step", "/v1/completions", completion(M{"max_tokens": 30, "stop": "two"}), 3, 2, 1},
		{"a stop string in a stream", "/v1/completions",
			completion(M{"max_tokens": 30, "stop": "two", "stream": true, "stream_options": M{"include_usage": true}}), 3, 2, 1},
		{"chat", "/v1/chat/completions", chat(M{"max_tokens": 7, "n": 2}), 6, 14, 2},
		{"Anthropic", "/v1/messages", chat(M{"max_tokens": 7}), 6, 7, 1},
		{"Anthropic's stream", "/v1/messages", chat(M{"max_tokens": 7, "stream": true}), 6, 7, 1},
		{"Responses", "/v1/responses", M{"model": "fake/model", "input": "Hi", "max_output_tokens": 16}, 6, 16, 1},
		{"Ollama", "/api/generate", M{"model": "fake/model", "prompt": "Hi", "raw": true, "options": M{"num_predict": 7}}, 3, 7, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := &servertest.Engine{Script: endless}
			url := serve(t, e)
			a := post(t, url+c.path, c.body)
			if prompt, generated := counted(t, a.raw); a.status != 200 || prompt != c.prompt || generated != c.generated {
				t.Fatalf("usage %v and %v, want %v and %v: %s", prompt, generated, c.prompt, c.generated, a.raw)
			}
			first := c.finished // sequences with a first token: those that the engine has had
			e.Mu.Lock()
			if len(e.Requests) == 0 {
				first = 0
			}
			e.Mu.Unlock()
			got := series(t, url)
			for name, want := range map[string]float64{
				"vllm:prompt_tokens_total": c.prompt, "vllm:generation_tokens_total": c.generated, "vllm:request_generation_tokens_sum": c.generated,
				"vllm:request_generation_tokens_count": c.finished, "vllm:time_to_first_token_seconds_count": first,
				"vllm:request_prompt_tokens_count": c.finished, "vllm:e2e_request_latency_seconds_count": c.finished,
			} {
				if got[name] != want {
					t.Errorf("%s is %v, want %v", name, got[name], want)
				}
			}
			if n := got[`vllm:request_success_total{finished_reason="stop"}`] + got[`vllm:request_success_total{finished_reason="length"}`]; n != c.finished {
				t.Errorf("%v sequences finished, want %v", n, c.finished)
			}
		})
	}
}

// TestAttemptsAreCountedOnce: a task that another attempt takes up again has its prompt counted
// once, and each token that was counted before it was lost or replayed once.
func TestAttemptsAreCountedOnce(t *testing.T) {
	s := newServer(t, &servertest.Engine{})
	body, err := json.Marshal(completion(M{"max_tokens": 4, "n": 2}))
	if err != nil {
		t.Fatal(err)
	}
	task, err := s.NewTask(context.Background(), openai.EndpointCompletions, body, generate.TaskOptions{ID: "1"})
	if err != nil {
		t.Fatal(err)
	}
	accept := func(r *generate.Replay, choice, n int) {
		for range n {
			ev := engine.Event{Token: servertest.TokOne}
			if r.Tokens(choice) == 3 {
				ev.Finish = engine.FinishLength
			}
			if _, err := r.Accept(choice, ev); err != nil {
				t.Fatal(err)
			}
		}
	}
	url := serveIt(t, s)
	want := func(prompt, generated, finished, failed, ttft float64) {
		t.Helper()
		got := series(t, url)
		for name, v := range map[string]float64{
			"vllm:prompt_tokens_total": prompt, "vllm:generation_tokens_total": generated, "vllm:time_to_first_token_seconds_count": ttft,
			`vllm:request_success_total{finished_reason="length"}`: finished, `vllm:request_success_total{finished_reason="error"}`: failed,
		} {
			if got[name] != v {
				t.Errorf("%s is %v, want %v", name, got[name], v)
			}
		}
	}
	lost := task.Replay() // nothing of this attempt reaches the log
	lost.Begin()
	accept(lost, 0, 2)
	want(0, 0, 0, 0, 0)

	first := task.Replay()
	first.Begin()
	first.Timer(0).Event(&engine.Event{Token: servertest.TokOne})
	accept(first, 0, 4)
	accept(first, 1, 1)
	first.Count()
	first.Count()
	want(3, 5, 1, 0, 1)

	second := task.Replay()
	accept(second, 0, 4)
	accept(second, 1, 1)
	second.Begin()
	second.Timer(1).Event(&engine.Event{Token: servertest.TokOne})
	second.Count()
	want(3, 5, 1, 0, 1)
	accept(second, 1, 2)
	second.Count()
	want(3, 7, 1, 0, 1)
	second.Abandon("error")
	want(3, 7, 1, 1, 1)
}

// TestTokensShareTheTimeOfTheirStep: three tokens that come together 300 ms after the step before
// are 100 ms apart, not 300, 0 and 0.
func TestTokensShareTheTimeOfTheirStep(t *testing.T) {
	for _, c := range []struct {
		name    string
		resumed bool
		steps   []int  // tokens, one step each 300 ms
		stop    string // of the text, which repeats "one two three"
		finish  string
		ttft    float64
		gaps    map[string]float64 // cumulative buckets of inter-token latency
		sum     float64
	}{
		{name: "one each", steps: []int{1, 1, 1}, ttft: 1, gaps: map[string]float64{"0.2": 0, "0.3": 2}, sum: 0.6},
		{name: "three at once", steps: []int{1, 3, 3}, ttft: 1, gaps: map[string]float64{"0.075": 0, "0.1": 6, "0.2": 6}, sum: 0.6},
		{name: "of unlike size", steps: []int{1, 6, 1, 2}, ttft: 1,
			gaps: map[string]float64{"0.025": 0, "0.05": 6, "0.15": 8, "0.3": 9}, sum: 0.9},
		{name: "the first step gives several", steps: []int{4, 2}, ttft: 1, gaps: map[string]float64{"0.1": 0, "0.15": 2}, sum: 0.3},
		{name: "an attempt that goes on", resumed: true, steps: []int{2, 2}, ttft: 0, gaps: map[string]float64{"0.1": 0, "0.15": 2}, sum: 0.3},
		{name: "a stop string within a step", steps: []int{1, 6, 3}, stop: "three one", ttft: 1,
			gaps: map[string]float64{"0.025": 0, "0.05": 3, "0.3": 3}, sum: 0.15},
		{name: "a stop string in the first step", steps: []int{3, 3}, stop: "two", ttft: 1, gaps: map[string]float64{"0.3": 0}, sum: 0},
		{name: "a failure has no time", steps: []int{1, 1}, finish: engine.FinishError, ttft: 1, gaps: map[string]float64{"0.3": 1}, sum: 0.3},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newServer(t, &servertest.Engine{})
			body := completion(M{"max_tokens": 30})
			if c.stop != "" {
				body["stop"] = c.stop
			}
			text, err := json.Marshal(body)
			if err != nil {
				t.Fatal(err)
			}
			task, err := s.NewTask(context.Background(), openai.EndpointCompletions, text, generate.TaskOptions{ID: "1"})
			if err != nil {
				t.Fatal(err)
			}
			synctest.Test(t, func(t *testing.T) { playSteps(t, task, c.steps, c.resumed, c.finish) })
			url := serveIt(t, s)
			got := series(t, url)
			for le, want := range c.gaps {
				if n := got[`vllm:inter_token_latency_seconds_bucket{le="`+le+`"}`]; n != want {
					t.Errorf("%v gaps up to %s s, want %v", n, le, want)
				}
			}
			if sum := got["vllm:inter_token_latency_seconds_sum"]; math.Abs(sum-c.sum) > 1e-9 {
				t.Errorf("%v s in all, want %v", sum, c.sum)
			}
			if n := got["vllm:time_to_first_token_seconds_count"]; n != c.ttft {
				t.Errorf("%v first tokens, want %v", n, c.ttft)
			}
		})
	}
}

// playSteps replays steps of 300 ms, each with a number of tokens, then an end.
func playSteps(t *testing.T, task *generate.Task, steps []int, resumed bool, finish string) {
	replay, sampled := task.Replay(), 0
	take := func(timer *generate.SequenceTimer, ev engine.Event) {
		if timer != nil {
			timer.Event(&ev)
		}
		if _, err := replay.Accept(0, ev); err != nil && ev.Err == nil {
			t.Fatal(err)
		}
	}
	next := func() int32 {
		sampled++
		return []int32{servertest.TokOne, servertest.TokTwo, servertest.TokThree}[(sampled-1)%3]
	}
	if resumed {
		take(nil, engine.Event{Token: next()})
	}
	replay.Begin()
	timer := replay.Timer(0)
	for _, n := range steps {
		time.Sleep(300 * time.Millisecond)
		for k := range n {
			take(timer, engine.Event{Token: next(), More: n - 1 - k})
		}
	}
	if finish != "" {
		take(timer, engine.Event{Token: engine.NoToken, Finish: finish, Err: errors.New("x")})
	}
	replay.Count()
}
