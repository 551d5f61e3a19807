package cluster_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
)

// request is one line of a workload.
type request struct {
	name string
	path string
	body map[string]any
}

// vocabulary is the vocabulary size of the bundled model.
const vocabulary = 4096

// ids returns n pseudo-random ordinary tokens.
func ids(r *rand.Rand, n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = 16 + r.IntN(vocabulary-16)
	}
	return out
}

// policies are small enough that the prompts and answers of these tests do not fit: slots are
// selected, and overwritten during decode.
var policies = []string{
	"streaming:sink=4,recent=28",
	"snapstream:sink=4,recent=20,topk=24,obs=16,pool=7",
	"h2o:recent=16,topk=24",
	"snapkv:topk=32,obs=16,pool=7",
	"sage:sink=4,recent=20,topk=24",
	"quest:page=16,budget=64",
	"shadowkv:chunk=8,budget=32,outliers=4,local=2",
	"squeezed:clusters=0.2,levels=2,sparsity=0.6,tail=12,obs=16",
	"adakv:topk=72,obs=16,pool=5",
	"resnap:topk=20,every=9,obs=8",
	"pyramidkv:topk=32,obs=16,beta=4",
	"lagkv:sink=4,lag=16,topk=24",
	"loki:budget=40,dims=0.5,calib=32",
	"infinigen:alpha=2,most=0.3,calib=32",
	"squeezed:clusters=0.2,sparsity=0.6,tail=12,obs=16,ring=24",
	"snapstream:sink=4,recent=20,topk=28,obs=16,recall=32",
}

// policyOf returns the policy of request i: of three requests one keeps every token, and the others take the
// policies in turn.
func policyOf(i int) string {
	if i%3 == 0 {
		return "full"
	}
	return policies[(i-1-i/3)%len(policies)]
}

// mixed returns the workload of the same-bits tests: 20 requests with prompts of 1 to 2000 tokens,
// greedy and seeded, with penalties, bias, echo, cache policies and chat.
func mixed(chat bool) []request {
	r := rand.New(rand.NewPCG(1, 2))
	var out []request
	add := func(path string, prompt int, more map[string]any) {
		b := map[string]any{"return_tokens_as_token_ids": true, "ignore_eos": true}
		if path == "/v1/chat/completions" {
			b["logprobs"], b["top_logprobs"] = true, 20
		} else {
			b["logprobs"], b["prompt"] = 5, ids(r, prompt)
		}
		for k, v := range more {
			b[k] = v
		}
		out = append(out, request{fmt.Sprintf("request %d (prompt %d)", len(out), prompt), path, b})
	}
	const completions = "/v1/completions"
	type m = map[string]any
	greedy := func(n int) m { return m{"temperature": 0, "max_tokens": n} }
	add(completions, 500, m{"temperature": 0, "max_tokens": 16, "kv_policy": policies[1]}) // the long ones first, to overlap with the rest
	add(completions, 2000, greedy(6))
	add(completions, 1, greedy(16))
	add(completions, 2, m{"temperature": 1, "seed": 1, "max_tokens": 12})
	add(completions, 3, m{"temperature": 0.7, "top_p": 0.9, "seed": 2, "max_tokens": 8})
	add(completions, 15, m{"temperature": 1.3, "top_k": 40, "seed": -3, "max_tokens": 8})
	add(completions, 31, greedy(8))
	add(completions, 32, m{"temperature": 0, "max_tokens": 8, "echo": true})
	add(completions, 33, m{"temperature": 1, "min_p": 0.05, "seed": 4, "max_tokens": 8, "repetition_penalty": 1.2})
	add(completions, 63, m{"temperature": 1, "seed": 5, "max_tokens": 8, "presence_penalty": 0.5, "frequency_penalty": 0.3})
	add(completions, 64, greedy(8))
	add(completions, 65, m{"temperature": 0, "repetition_penalty": 1.1, "max_tokens": 8})
	add(completions, 90,
		m{"temperature": 0.9, "top_p": 0.8, "top_k": 100, "min_p": 0.01, "seed": 6, "max_tokens": 8, "kv_policy": policies[2]})
	add(completions, 129, m{"temperature": 0, "max_tokens": 1, "echo": true})
	add(completions, 150, m{"temperature": 0.8, "seed": 7, "n": 2, "max_tokens": 8, "kv_policy": policies[3]})
	add(completions, 257,
		m{"temperature": 1, "seed": 8, "max_tokens": 8, "logit_bias": m{"100": 5, "200": -100, "300": 3.5}, "kv_policy": policies[4]})
	add(completions, 45, m{"temperature": 1.2, "seed": 13, "max_tokens": 24, "bad_words": []string{"e", "th", " a"},
		"allowed_token_ids": firstIDs(320), "kv_policy": policies[1]})
	add(completions, 300, m{"temperature": 1, "seed": 9, "max_tokens": 8, "ignore_eos": false, "min_tokens": 4, "kv_policy": policies[0]})
	add(completions, 40, m{"temperature": 1, "seed": 12, "n": 2, "max_tokens": 24,
		"guided_json": m{"type": "object", "properties": m{"a": m{"type": "number"}}, "required": []string{"a"}}})
	add(completions, 70, m{"temperature": 0, "max_tokens": 12, "ignore_eos": false, "guided_regex": `(\d{2,4} [a-z]+, ){2}é`, "kv_policy": policies[5]})
	if !chat {
		for i := range 3 {
			add(completions, 20+i, m{"temperature": float64(i) * 0.4, "seed": 10 + i, "max_tokens": 8})
		}
		return out
	}
	for i, text := range []string{"Write a Go function that reverses a string.", "hi", "Sort a slice of ints, largest first. 本当に?"} {
		add("/v1/chat/completions", 0, m{"messages": []m{{"role": "user", "content": text}}, "temperature": float64(i%2) * 0.8,
			"top_p": 0.95, "seed": 10 + i, "max_tokens": 8, "ignore_eos": false})
	}
	return out
}

// firstIDs returns the tokens 0 to n-1.
func firstIDs(n int) (ids []int) {
	for i := range n {
		ids = append(ids, i)
	}
	return ids
}

// chats reports whether the server has a chat template.
func (c *httpClient) chats() bool {
	c.t.Helper()
	return c.call("POST", "/v1/chat/completions", `{"messages":[{"role":"user","content":"hi"}],"max_tokens":1}`).status == 200
}

// send runs the requests, at most width at a time, and returns the canonical answers.
func (c *httpClient) send(t testing.TB, reqs []request, width int) []string {
	t.Helper()
	out, errs := make([]string, len(reqs)), make([]error, len(reqs))
	slots := make(chan struct{}, width)
	var wg sync.WaitGroup
	for i, r := range reqs {
		slots <- struct{}{}
		wg.Add(1)
		go func() {
			defer wg.Done()
			defer func() { <-slots }()
			a, err := c.try(context.Background(), "POST", r.path, r.body)
			if err == nil && a.status != 200 {
				err = fmt.Errorf("status %d: %s", a.status, a.body)
			}
			out[i], errs[i] = canonical(string(a.body)), err
		}()
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			t.Fatalf("%s: %v", reqs[i].name, err)
		}
	}
	return out
}

// compare fails the test for every differing answer and returns their number.
func compare(report func(format string, args ...any), what string, reqs []request, want, got []string) int {
	n := 0
	for i := range reqs {
		if want[i] != got[i] {
			n++
			if n <= 2 {
				report("%s: %s differs from the first cluster's answer %s", what, reqs[i].name, firstDifference(want[i], got[i]))
			}
		}
	}
	return n
}
