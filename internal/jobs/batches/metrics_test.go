package batches_test

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/jobs"
	"github.com/shoal-llm/shoal/internal/jobs/journal/journaltest"
	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// metric reads one series of /metrics.
func (h *house) metric(name string) (value float64) {
	h.t.Helper()
	resp := h.open("GET", "/metrics", "")
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(b), "\n"+name+" ")
	if _, err := fmt.Sscan(rest, &value); !ok || err != nil {
		h.t.Fatalf("no %s: %v", name, err)
	}
	return value
}

// TestWorkOfJobsIsCounted: tokens of jobs, batches and background responses count once in the same
// counters as those of plain requests, for any number of attempts.
func TestWorkOfJobsIsCounted(t *testing.T) {
	e := &fakeEngine{}
	fails := 2 // fail the n=2 job after some of its tokens were stored
	e.fail = func(r *engine.Request, i int) error {
		e.mu.Lock()
		defer e.mu.Unlock()
		if len(r.Prompt) == 1 {
			return apierr.ErrFailed{Code: "step_failed", Message: "always"}
		}
		if r.MaxTokens == 40 && i > 10 && fails > 0 && strings.HasSuffix(r.ID, "/0") {
			fails--
			return apierr.ErrFailed{Code: "step_failed", Message: "boom"}
		}
		return nil
	}
	h := open(t, journaltest.NewMemoryLog(), t.TempDir(), e, config{Config: jobs.Config{Rules: jobs.Rules{MaxFailures: 3}}})
	var prompt, generated float64
	check := func(what string, usage any) {
		t.Helper()
		u := usage.(map[string]any)
		for _, name := range []string{"prompt_tokens", "input_tokens"} {
			if n, ok := u[name].(float64); ok {
				prompt += n
			}
		}
		for _, name := range []string{"completion_tokens", "output_tokens"} {
			if n, ok := u[name].(float64); ok {
				generated += n
			}
		}
		if p, g := h.metric(`vllm:prompt_tokens_total{model_name="m"}`), h.metric(`vllm:generation_tokens_total{model_name="m"}`); p != prompt || g != generated {
			t.Errorf("after %s: %v prompt tokens and %v generated, but %v and %v in the usage", what, p, g, prompt, generated)
		}
	}
	check("a request", h.want(200, "POST", "/v1/completions", `{"prompt":"a b","max_tokens":3,"n":2}`)["usage"])
	j := h.until(h.want(202, "POST", "/v1/jobs", askFor)["id"].(string), "completed")
	if j["attempt"] != 3.0 {
		t.Fatalf("the job took %v attempts, want 3", j["attempt"])
	}
	check("a job in three attempts", j["result"].(map[string]any)["usage"])
	r := h.want(200, "POST", "/v1/responses", `{"input":"Count.","max_output_tokens":20,"background":true}`)
	check("a response in the background", h.untilResponse(r["id"].(string), "incomplete")["usage"])
	in := h.upload(batchLines(5))
	id := h.want(200, "POST", "/v1/batches", `{"input_file_id":"`+in+`","endpoint":"/v1/completions","completion_window":"24h"}`)["id"].(string)
	b := h.batchUntil(id, func(b map[string]any) bool { return b["status"] == "completed" })
	lines := map[string]any{"prompt_tokens": 0.0, "completion_tokens": 0.0}
	for _, line := range h.lines(b["output_file_id"]) {
		u := line["response"].(map[string]any)["body"].(map[string]any)["usage"].(map[string]any)
		for name := range lines {
			lines[name] = lines[name].(float64) + u[name].(float64)
		}
	}
	check("a batch", lines)

	for name, want := range map[string]float64{
		`vllm:request_success_total{finished_reason="length",model_name="m"}`: 2 + 2 + 1 + 5,
		`vllm:request_generation_tokens_sum{model_name="m"}`:                  generated,
	} {
		if got := h.metric(name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	// An attempt that fails before its first token is stored has counted that token, and the
	// next attempt counts its own.
	const first = `vllm:time_to_first_token_seconds_count{model_name="m"}`
	if got := h.metric(first); got < 2+2+1+5 || got > 2+2+1+5+2 {
		t.Errorf("%s is %v, want 10, and at most 2 more", first, got)
	}
	h.until(h.want(202, "POST", "/v1/jobs", `{"prompt":[65]}`)["id"].(string), "dead")
	e.mu.Lock()
	e.hold = 1
	begun := e.begun
	e.mu.Unlock()
	id = h.want(202, "POST", "/v1/jobs", `{"prompt":"a b","n":3}`)["id"].(string)
	testutil.Eventually(t, patience, "three choices have started", func() (bool, string) {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.begun == begun+3, fmt.Sprint(e.begun-begun, " have")
	})
	h.want(200, "DELETE", "/v1/jobs/"+id, "")
	for name, want := range map[string]float64{"error": 1, "abort": 3} {
		name = `vllm:request_success_total{finished_reason="` + name + `",model_name="m"}`
		testutil.Eventually(t, patience, fmt.Sprintf("%s is %v", name, want), func() (bool, string) {
			got := h.metric(name)
			return got == want, fmt.Sprint(got)
		})
	}
}
