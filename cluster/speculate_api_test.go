package cluster

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/shoal-llm/shoal/internal/testlevel"
)

// asked returns API requests with everything that affects how drawn tokens become an answer:
// several choices, stop strings, penalties, biases, grammars, scored prompts.
func asked() (list []map[string]any) {
	type M = map[string]any
	const copied = "Say it again: the sum of two and two is four; the sum of two and two is four; the sum of two and"
	var most []int
	for i := range 4096 { // some tokens of models/fry in each word of the mask
		if i < 300 || i%5 != 4 {
			most = append(most, i)
		}
	}
	for _, more := range []M{
		{"temperature": 0},
		{"n": 3, "temperature": 0.8, "seed": 5, "logprobs": 2},
		{"n": 2, "temperature": 1.1, "top_p": 0.9, "seed": 6, "stop": []string{"our", "\n\n", " two"}},
		{"temperature": 0, "stop": "of two a", "include_stop_str_in_output": true, "min_tokens": 9},
		{"temperature": 0, "repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.3, "logprobs": 1},
		{"temperature": 0.7, "seed": 7, "logit_bias": M{"30": 4, "44": -9, "101": 2.5}, "top_k": 40},
		{"temperature": 0, "bad_words": []string{"four", "two and", "sum of"}, "logprobs": 1},
		{"temperature": 0.8, "seed": 11, "n": 2, "allowed_token_ids": most, "bad_words": []string{"the"}, "min_tokens": 9},
		{"temperature": 0.9, "seed": 12, "allowed_token_ids": most, "structured_outputs": M{"regex": "( (two|four|sum|of)){4,30}"}},
		{"temperature": 0, "structured_outputs": M{"regex": "( (two|four|sum|the|of|and)){4,30}"}, "logprobs": 0},
		{"temperature": 0.9, "seed": 8, "n": 2, "structured_outputs": M{"json": json.RawMessage(ticket)}},
		{"temperature": 0.9, "seed": 9, "structured_outputs": M{"regex": "(ab|abc|b){8}[0-9]{3,20}"}, "stop": "7"},
		{"temperature": 0, "echo": true, "logprobs": 1},
		{"temperature": 0, "kv_policy": "streaming:sink=4,recent=28", "stop": "four; the"},
		{"temperature": 0.6, "seed": 10, "kv_policy": "h2o:recent=20,topk=20", "frequency_penalty": 0.2},
	} {
		body := M{"prompt": copied, "max_tokens": 60}
		for k, v := range more {
			body[k] = v
		}
		list = append(list, body)
	}
	return list
}

var usageOf = regexp.MustCompile(`"prompt_tokens":(\d+),"completion_tokens":(\d+)`)

var unlikely = regexp.MustCompile(`"id":"[^"]*"|"created":[0-9]+|,"(?:completion|prompt)_tokens_details":\{[^}]*\}|,"metrics":\{"speculative_decoding":\{(?:[^{}]|\{[^}]*\})*\}\}`)

// TestSpeculationOfAnswers: clients receive the same bytes as from a server without drafts,
// streaming or not.
func TestSpeculationOfAnswers(t *testing.T) {
	const dir = "../models/fry"
	sizes := []int{3}
	if testlevel.Long() {
		sizes = append(sizes, 1)
	}
	if testlevel.Full() {
		sizes = append(sizes, 4)
	}
	for _, sockets := range sizes {
		c := startLocal(t, LocalConfig{Sockets: sockets, Threads: 1, Serve: ServeConfig{Model: dir, PrefixCache: PrefixOff}})
		s, err := NewAPI(c, c.checkpoint, ServeConfig{Model: dir}, APIConfig{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewServer(s.Handler())
		list := asked()
		var reported [2]atomic.Int64
		ask := func(mode string, stream bool) []string {
			out := make([]string, len(list))
			var wg sync.WaitGroup
			for i, body := range list {
				send := map[string]any{"speculate": mode}
				if mode == "" {
					delete(send, "speculate")
				}
				for k, v := range body {
					send[k] = v
				}
				if stream && send["n"] == nil { // choices arrive in the order of drawing
					send["stream"], send["stream_options"] = true, map[string]any{"include_usage": true}
				}
				wg.Go(func() {
					raw, err := json.Marshal(send)
					if err != nil {
						t.Error(err)
						return
					}
					r, err := http.Post(server.URL+"/v1/completions", "application/json", bytes.NewReader(raw))
					if err != nil {
						t.Error(err)
						return
					}
					defer r.Body.Close()
					answer, err := io.ReadAll(r.Body)
					if err != nil || r.StatusCode != 200 {
						t.Errorf("%v: status %d, %s, %v", send, r.StatusCode, answer, err)
					}
					for _, m := range usageOf.FindAllSubmatch(answer, -1) {
						for k := range reported {
							n, err := strconv.ParseInt(string(m[1+k]), 10, 64)
							if err != nil {
								t.Error(err)
							}
							reported[k].Add(n)
						}
					}
					out[i] = unlikely.ReplaceAllString(string(answer), "")
					if n := strings.Count(string(answer), "num_spec_steps"); n > 0 && (mode == "off" || send["n"] != nil) {
						t.Errorf("%v: figures of drafts in %s", send, answer)
					}
				})
			}
			wg.Wait()
			return out
		}
		for _, stream := range []bool{false, true} {
			want := ask("off", stream)
			// adaptive and fixed draft lengths; the second run can draft from the first one's outputs
			for _, mode := range []string{"suffix", "suffix:6", "lookup:3"} {
				for i, got := range ask(mode, stream) {
					if got != want[i] {
						t.Errorf("%d sockets, %s, %v:\n%s\nwithout drafts\n%s", sockets, mode, list[i], got, want[i])
					}
				}
			}
		}
		r, err := http.Get(server.URL + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		metrics, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		for k, name := range []string{"prompt", "generation"} {
			sum := strconv.FormatFloat(float64(reported[k].Load()), 'g', -1, 64)
			if line := fmt.Sprintf("\nvllm:%s_tokens_total{model_name=\"fry\"} %s\n", name, sum); !strings.Contains(string(metrics), line) {
				t.Errorf("%d sockets: the counter of %s tokens is not %d, the sum over all answers", sockets, name, reported[k].Load())
			}
		}
		snap, err := c.batcher.Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if d := snap.Speculated; d.Accepted < 200 || d.Drafted == d.Accepted {
			t.Errorf("%d sockets: %d of %d drafts were right: too few to test anything", sockets, d.Accepted, d.Drafted)
		}
		server.Close()
		waitIdle(t, c)
	}
}
