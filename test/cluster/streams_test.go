package cluster_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// streaming returns n streams with logprobs, each of a number of tokens: greedy and seeded, with the full
// cache and compressed ones. They have no drafts unless SHOAL_SPECULATE sets a mode, because drafts
// from the undisturbed run would end a stream before its fault.
func streaming(n, tokens int) []request {
	r := rand.New(rand.NewPCG(3, 4))
	var out []request
	for i := range n {
		b := map[string]any{"prompt": ids(r, 5+9*i), "max_tokens": tokens, "stream": true, "logprobs": 5, "return_tokens_as_token_ids": true,
			"ignore_eos": true, "skip_special_tokens": false, "temperature": 0, "speculate": cmp.Or(drafting(), "off"),
			"stream_options": map[string]any{"include_usage": true}}
		if i%2 == 1 {
			b["temperature"], b["top_p"], b["seed"], b["frequency_penalty"] = 0.9, 0.95, 100+i, 0.2
		}
		what := policyOf(i)
		if what != "full" {
			b["kv_policy"] = what
		}
		if i%4 > 1 {
			what += ", under a grammar"
			b["guided_json"] = map[string]any{"type": "array", "minItems": 100,
				"items": map[string]any{"type": []string{"integer", "string"}, "maxLength": 9}}
		}
		out = append(out, request{fmt.Sprintf("stream %d (%s)", i, what), "/v1/completions", b})
	}
	return out
}

// flow is a set of running streams.
type flow struct {
	c      *httpClient
	reqs   []request
	tokens atomic.Int64 // events so far, of all streams
	ended  atomic.Int64
	more   chan struct{} // receives a value when one of them grows
	got    []stream
	errs   []error
	wg     sync.WaitGroup
}

// open starts all streams at once. wait waits for them.
func (c *httpClient) open(reqs []request) *flow {
	f := &flow{c: c, reqs: reqs, got: make([]stream, len(reqs)), errs: make([]error, len(reqs)), more: make(chan struct{}, 1)}
	count := func(n *atomic.Int64) {
		n.Add(1)
		select {
		case f.more <- struct{}{}:
		default:
		}
	}
	for i, r := range reqs {
		f.wg.Add(1)
		go func() {
			defer f.wg.Done()
			defer count(&f.ended)
			f.got[i], f.errs[i] = c.stream(context.Background(), r.path, r.body, func(int, string) error {
				count(&f.tokens)
				return nil
			})
		}()
	}
	return f
}

// undisturbed returns the texts of the streams without faults and drafts.
func (c *httpClient) undisturbed(t testing.TB, reqs []request) (texts []string, stall time.Duration) {
	t.Helper()
	plain := slices.Clone(reqs)
	for i := range plain {
		plain[i].body = maps.Clone(plain[i].body)
		plain[i].body["speculate"] = "off"
	}
	return c.open(plain).wait(t)
}

// reach waits until the streams have n events in total while all of them run. With drafts, which
// vary in quality, half of them suffice.
func (f *flow) reach(t testing.TB, n int64) {
	t.Helper()
	if !f.reached(t, n) {
		t.Fatal("a stream ended before the fault: give it more tokens")
	}
}

// reached is reach with a result instead of a failure.
func (f *flow) reached(t testing.TB, n int64) bool {
	t.Helper()
	for limit := time.After(requestLimit); ; {
		if ended := int(f.ended.Load()); ended > 0 && (drafting() == "" || ended > len(f.reqs)/2) {
			return false
		}
		have := f.tokens.Load()
		if have >= n {
			return true
		}
		select {
		case <-f.more:
		case <-limit:
			t.Fatalf("%d events: not in %v: %d events", n, requestLimit, have)
		}
	}
}

// wait returns the canonical text of every stream and the longest silence of any.
func (f *flow) wait(t testing.TB) (texts []string, stall time.Duration) {
	t.Helper()
	f.wg.Wait()
	for i, s := range f.got {
		if f.errs[i] != nil {
			t.Errorf("%s: %v after %d events", f.reqs[i].name, f.errs[i], len(s.events))
		} else if !s.done {
			t.Errorf("%s ended without [DONE] after %d events", f.reqs[i].name, len(s.events))
		}
		texts = append(texts, s.text())
		stall = max(stall, s.worst)
	}
	return texts, stall
}

// same compares streams byte by byte.
func same(t testing.TB, what string, reqs []request, want, got []string) {
	t.Helper()
	if n := compare(t.Errorf, what, reqs, want, got); n > 0 {
		t.Errorf("%s: %d of %d streams differ from the undisturbed run", what, n, len(reqs))
	}
}
