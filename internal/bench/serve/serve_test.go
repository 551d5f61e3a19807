package serve_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/client"
	"github.com/shoal-llm/shoal/internal/bench/serve"
	"github.com/shoal-llm/shoal/internal/bench/serve/stats"
	"github.com/shoal-llm/shoal/internal/bench/serve/workload"
)

// peer is a server as other programs have them: without Shoal's own routes and members.
type peer struct {
	running, most atomic.Int64
	requests      atomic.Int64
	bodies        chan map[string]any
	first, gap    time.Duration
	fail          int64 // every fail-th request is refused; 0: none
	broken        string
}

func (p *peer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/v1/models" {
		fmt.Fprint(w, `{"data":[{"id":"peer-model"}]}`)
		return
	}
	if r.Header.Get("Authorization") != "Bearer k" {
		http.Error(w, "no key", http.StatusUnauthorized)
		return
	}
	now := p.running.Add(1)
	left := sync.OnceFunc(func() { p.running.Add(-1) }) // before the client receives the end
	defer left()
	for m := p.most.Load(); now > m && !p.most.CompareAndSwap(m, now); m = p.most.Load() {
	}
	var body map[string]any
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		http.Error(w, err.Error(), 400)
		return
	}
	select {
	case p.bodies <- body:
	default:
	}
	if n := p.requests.Add(1); p.fail > 0 && n%p.fail == 0 && n > 2 {
		w.WriteHeader(503)
		fmt.Fprint(w, `{"error":{"message":"busy"}}`)
		return
	}
	prompt, piece := fmt.Sprint(body["prompt"]), `{"choices":[{"text":"x"}]}`
	if m, ok := body["messages"].([]any); ok {
		prompt, piece = m[0].(map[string]any)["content"].(string), `{"choices":[{"delta":{"content":"x"}}]}`
		fmt.Fprint(w, "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n")
	}
	n := int(body["max_tokens"].(float64))
	send := func(text string) {
		fmt.Fprintf(w, "data: %s\n\n", text)
		w.(http.Flusher).Flush()
	}
	select {
	case <-time.After(p.first):
	case <-r.Context().Done():
		return
	}
	for i := range n {
		if i > 0 {
			time.Sleep(p.gap)
		}
		send(piece)
	}
	if p.broken != "" && p.requests.Load() > 2 {
		fmt.Fprint(w, p.broken)
		return
	}
	send(fmt.Sprintf(`{"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}`, 2*len(strings.Fields(prompt))+7, n))
	left()
	send("[DONE]")
}

// options returns a measurement of a peer.
func options(t *testing.T, p *peer, arrival string, rate float64, n int) serve.Options {
	t.Helper()
	server := httptest.NewServer(p)
	t.Cleanup(server.Close)
	a, err := workload.ParseArrivals(arrival, rate)
	if err != nil {
		t.Fatal(err)
	}
	l, err := workload.ParseLengths("fixed:101:5")
	if err != nil {
		t.Fatal(err)
	}
	return serve.Options{Client: &client.Client{Server: server.URL, Key: "k"}, API: serve.Chat, Timeout: 30 * time.Second,
		Load: workload.Spec{Arrivals: a, Lengths: l, Requests: n, PrefixGroups: 1, Seed: 3}}
}

func run(t *testing.T, o serve.Options) *serve.Result {
	t.Helper()
	if err := o.Prepare(context.Background()); err != nil {
		t.Fatal(err)
	}
	r, err := serve.Run(context.Background(), o, func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestClosedLoop: the requested number of requests is in flight, lengths are the requested ones, and times
// are at least those of the server.
func TestClosedLoop(t *testing.T) {
	for _, api := range []serve.API{serve.Chat, serve.Completions} {
		p := &peer{bodies: make(chan map[string]any, 100), first: 20 * time.Millisecond, gap: 5 * time.Millisecond}
		o := options(t, p, "poisson", 0, 24)
		o.API, o.Concurrency, o.Warmup = api, 4, 1
		o.Limits = stats.Limits{TTFT: time.Minute}
		r := run(t, o)
		s := r.Summary
		if r.Model != "peer-model" || r.PerWord != 2 || s.Completed != 24 || s.Output != 24*5 || s.GoodShare != 1 {
			t.Errorf("%s: %+v", api, r)
		}
		if mean := float64(s.Input) / 24; mean < 100 || mean > 102 {
			t.Errorf("%s: prompts of %.1f tokens, want 101", api, mean)
		}
		if p.most.Load() != 4 {
			t.Errorf("%s: %d requests in flight, want 4", api, p.most.Load())
		}
		if s.TTFT.P50 < 20 || s.TPOT.P50 < 5 || s.ITL.P50 < 4 || s.E2E.P50 < 40 || s.ITL.Count != 24*4 || s.Late.Max != 0 {
			t.Errorf("%s: TTFT %v TPOT %v ITL %v E2E %v", api, s.TTFT, s.TPOT, s.ITL, s.E2E)
		}
		if b := <-p.bodies; b["ignore_eos"] != true || b["stream"] != true || b["model"] != "peer-model" {
			t.Errorf("%s: body %v", api, b)
		}
	}
}

// TestOpenLoop: requests are sent at their times, however long the answers take.
func TestOpenLoop(t *testing.T) {
	p := &peer{first: 300 * time.Millisecond}
	o := options(t, p, "constant", 50, 20)
	o.EndOfText, o.Extra = true, map[string]any{"top_k": 1}
	p.bodies = make(chan map[string]any, 1)
	r := run(t, o)
	if most := p.most.Load(); most < 8 {
		t.Errorf("%d requests in flight; answers of 0.3 s at 50 per second want 15", most)
	}
	if r.Summary.Concurrency < 5 || r.Summary.Late.P50 > 100 {
		t.Errorf("concurrency %.1f, late %v", r.Summary.Concurrency, r.Summary.Late)
	}
	if b := <-p.bodies; b["ignore_eos"] != nil || b["top_k"] != 1.0 {
		t.Errorf("body %v", b)
	}
}

// TestFailures: refused, broken and empty answers count as failures with their reason.
func TestFailures(t *testing.T) {
	p := &peer{fail: 4}
	o := options(t, p, "poisson", 0, 20)
	o.Concurrency = 2
	r := run(t, o)
	if s := r.Summary; s.Completed != 15 || len(s.Failures) != 1 || s.Failures[0].Count != 5 ||
		!strings.Contains(s.Failures[0].Reason, "busy") || s.GoodShare != 0.75 {
		t.Errorf("%+v", s)
	}
	for _, c := range []struct{ broken, want string }{
		{"data: {\"error\":{\"message\":\"a node died\"}}\n\n", "a node died"},
		{"data: {\n\n", "not JSON"},
		{" ", "without [DONE]"},
	} {
		o := options(t, &peer{broken: c.broken}, "poisson", 0, 4)
		o.Concurrency = 1
		if err := o.Prepare(context.Background()); err != nil {
			t.Fatal(err)
		}
		if _, err := serve.Run(context.Background(), o, func(int) {}); err == nil ||
			!strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "all 4 requests failed") {
			t.Errorf("%q: %v, want %q", c.broken, err, c.want)
		}
	}
}

// TestEqualFailures: failures that differ only in the port of the client count as one.
func TestEqualFailures(t *testing.T) {
	o := options(t, &peer{}, "poisson", 0, 6)
	o.Concurrency = 3
	if err := o.Prepare(context.Background()); err != nil {
		t.Fatal(err)
	}
	var answered atomic.Int64
	dying := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		const piece = "data: {\"choices\":[{\"text\":\"x\"}]}\n\n"
		if answered.Add(1) == 1 { // without an answer the load is an error
			fmt.Fprint(w, piece+"data: [DONE]\n\n")
			return
		}
		fmt.Fprint(w, piece)
		w.(http.Flusher).Flush()
		conn, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			err = conn.(*net.TCPConn).SetLinger(0) // reset
		}
		if err == nil {
			err = conn.Close()
		}
		if err != nil {
			t.Error(err)
		}
	}))
	defer dying.Close()
	o.Client.Server = dying.URL
	r, err := serve.Run(context.Background(), o, func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	if f := r.Summary.Failures; len(f) != 1 || f[0].Count != 5 || !strings.Contains(f[0].Reason, "reset") {
		t.Errorf("%+v", f)
	}
}

// TestTimeout: an answer that takes too long is a failure, and a canceled load is an error.
func TestTimeout(t *testing.T) {
	p := &peer{}
	o := options(t, p, "poisson", 0, 2)
	o.Concurrency = 2
	if err := o.Prepare(context.Background()); err != nil {
		t.Fatal(err)
	}
	p.first, o.Timeout = time.Minute, 50*time.Millisecond
	if _, err := serve.Run(context.Background(), o, func(int) {}); err == nil || !strings.Contains(err.Error(), "no whole answer in 50ms") {
		t.Errorf("error %v", err)
	}
	o.Timeout = time.Minute
	ctx, cancel := context.WithTimeoutCause(context.Background(), 50*time.Millisecond, fmt.Errorf("the whole took too long"))
	defer cancel()
	if _, err := serve.Run(ctx, o, func(int) {}); err == nil || !strings.Contains(err.Error(), "the whole took too long") {
		t.Errorf("error %v", err)
	}
}

func TestPrepareErrors(t *testing.T) {
	o := options(t, &peer{}, "poisson", 0, 2)
	if err := o.Prepare(context.Background()); err == nil || !strings.Contains(err.Error(), "want a rate, a concurrency or both") {
		t.Errorf("error %v", err)
	}
	o.Concurrency, o.API = 1, "images"
	if err := o.Prepare(context.Background()); err == nil || !strings.Contains(err.Error(), "chat or completions") {
		t.Errorf("error %v", err)
	}
	nobody := httptest.NewServer(http.NotFoundHandler())
	defer nobody.Close()
	o.API, o.Client.Server = serve.Chat, nobody.URL
	if err := o.Prepare(context.Background()); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("error %v", err)
	}
}
