package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// TestSoak keeps 64 clients busy on four nodes for SHOAL_SOAK (make soak: two minutes). Only
// requests cancelled by their clients fail, and no node exceeds its budget. Afterwards goroutines,
// files, subscriptions and bytes are back at their initial values.
func TestSoak(t *testing.T) {
	if os.Getenv("SHOAL_SOAK") == "" {
		t.Skip("make soak runs it, or SHOAL_SOAK=2m")
	}
	span, err := time.ParseDuration(os.Getenv("SHOAL_SOAK"))
	if err != nil {
		t.Fatalf("SHOAL_SOAK: %v", err)
	}
	const clients = 64
	// The budget is smaller than the load, so requests must wait for memory.
	const budget = 24 << 20
	c := up(t, 4, "--kv-memory", strconv.Itoa(budget), "--max-sequences", "48", "--prefix-disk",
		filepath.Join(t.TempDir(), "disk"), "--prefix-disk-size", "32MiB")
	c.send(t, mixed(c.chats())[2:14], 12) // creates the buffers, connections and pools
	c.waitIdle(patience)
	before := c.settled()

	var done, cancelled, tokens atomic.Int64
	ctx, stop := context.WithTimeout(context.Background(), span)
	defer stop()
	failed := make(chan error, clients)
	var wg sync.WaitGroup
	for i := range clients {
		wg.Add(1)
		go func() {
			defer wg.Done()
			r := rand.New(rand.NewPCG(7, uint64(i)))
			for ctx.Err() == nil {
				n, err := c.one(r)
				switch {
				case errors.Is(err, context.Canceled):
					cancelled.Add(1)
				case err != nil:
					failed <- fmt.Errorf("client %d: %w", i, err)
					stop()
					return
				default:
					done.Add(1)
					tokens.Add(int64(n))
				}
			}
		}()
	}
	var peak int64
	polls, waited := 0, 0
	for ctx.Err() == nil {
		s := c.state()
		polls++
		if s.Waiting > 0 {
			waited++
		}
		for _, n := range s.Nodes {
			peak = max(peak, n.KVUsedBytes+n.KVPrefix)
			if n.KVUsedBytes+n.KVPrefix > n.KVBudgetBytes {
				t.Errorf("%s holds %d bytes, its budget is %d", n.ID, n.KVUsedBytes, n.KVBudgetBytes)
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	wg.Wait() // each request has its own deadline
	close(failed)
	for err := range failed {
		t.Error(err)
	}
	t.Logf("%d clients, %v: %d answers, %d cancelled, %d tokens (%.0f a second); at most %.1f "+
		"of %d MiB on a node; requests waited in %d of %d polls",
		clients, span, done.Load(), cancelled.Load(), tokens.Load(), float64(tokens.Load())/span.Seconds(),
		float64(peak)/(1<<20), budget>>20, waited, polls)
	if done.Load() == 0 || peak == 0 {
		t.Error("nothing was done")
	}
	if d := c.state().Drafts; d != nil {
		t.Logf("%d of %d drafts were right, in %d steps", d.Accepted, d.Drafted, d.Steps)
		if drafting() != "" && (d.Accepted == 0 || d.Accepted == d.Drafted) {
			t.Error("too few drafts to test anything")
		}
	}
	if p := c.state().PrefixCache; p == nil || p.Hits == 0 || p.Evicted == 0 || p.Disk == nil ||
		p.Disk.Written == 0 || p.Disk.Bytes > p.Disk.Limit || p.Disk.Damaged+p.Disk.Failed > 0 {
		t.Errorf("prefixes: %+v", p)
	} else {
		t.Logf("%d of %d prompt tokens were found, %d evicted; %+v", p.Hits, p.Queries, p.Evicted, *p.Disk)
	}
	c.http.CloseIdleConnections()
	c.waitIdle(patience)
	if s := c.state(); s.Recoveries != 0 {
		t.Errorf("the cluster recovered %d times: nothing was to fail", s.Recoveries)
	}
	testutil.Eventually(t, patience, "goroutines, files and subscriptions as before", func() (bool, string) {
		now := c.settled()
		why := now.above(before)
		return why == "", why
	})
}

// one sends a random request, sometimes cancels it halfway, and returns the number of events.
func (s *system) one(r *rand.Rand) (int, error) {
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	prompt := 1 + r.IntN(60)
	if r.IntN(8) == 0 {
		prompt = 200 + r.IntN(1000)
	}
	want := 1 + r.IntN(40)
	text := ids(r, prompt)
	if r.IntN(3) == 0 { // with a shared prefix
		text = append(ids(rand.New(rand.NewPCG(19, uint64(r.IntN(12)))), 64+r.IntN(500)), text...)
	}
	body := map[string]any{"prompt": text, "max_tokens": want, "ignore_eos": true, "skip_special_tokens": false,
		"temperature": float64(r.IntN(3)) / 2, "top_p": 0.9, "seed": r.IntN(1000), "stream": r.IntN(4) > 0}
	if r.IntN(3) == 0 {
		body["logprobs"] = 3
	}
	switch r.IntN(6) {
	case 0:
		body["kv_policy"] = "streaming:sink=4,recent=60"
	case 1:
		body["kv_policy"] = "h2o:recent=40,topk=40"
	}
	cancelAt := -1
	if r.IntN(5) == 0 {
		cancelAt = r.IntN(want)
		if cancelAt == 0 { // before the first event
			timer := time.AfterFunc(time.Duration(r.IntN(200))*time.Millisecond, leave)
			defer timer.Stop()
		}
	}
	if body["stream"] != true {
		a, err := s.try(ctx, "POST", "/v1/completions", body)
		if err == nil && a.status != 200 {
			err = fmt.Errorf("status %d: %s", a.status, a.body)
		}
		return want, err
	}
	st, err := s.stream(ctx, "/v1/completions", body, func(n int, data string) error {
		if strings.Contains(data, `"error"`) {
			return errors.New(data)
		}
		if n == cancelAt {
			leave()
		}
		return nil
	})
	if err == nil && !st.done {
		err = errors.New("a stream ended without [DONE]")
	}
	return len(st.events), err
}

// figures are the values that must not grow.
type figures struct {
	state            wire.ClusterState // has the nodes, and the coordinator's subscriptions
	goroutines, open float64           // of the coordinator
}

// settled reads the figures. Nodes report theirs once a second.
func (s *system) settled() figures {
	s.t.Helper()
	time.Sleep(2500 * time.Millisecond)
	f := figures{state: s.state()}
	text := string(s.want(200, "GET", "/metrics", nil).body)
	f.goroutines, f.open = metric(s.t, text, "go_goroutines"), metric(s.t, text, "process_open_fds")
	return f
}

func metric(t testing.TB, text, name string) float64 {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + name + `(?:\{[^}]*\})? (\S+)$`).FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("/metrics has no %s", name)
	}
	x, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// above lists the figures that have grown. It tolerates a few timers and idle connections.
func (f figures) above(before figures) string {
	const slackGoroutines, slackFiles = 8, 4
	var why []string
	check := func(what string, now, was, slack float64) {
		if now > was+slack {
			why = append(why, fmt.Sprintf("%s: %.0f, before %.0f", what, now, was))
		}
	}
	check("goroutines of the coordinator", f.goroutines, before.goroutines, slackGoroutines)
	check("files of the coordinator", f.open, before.open, slackFiles)
	check("subscriptions of the coordinator", float64(f.state.Subscriptions), float64(before.state.Subscriptions), 0)
	for i, n := range f.state.Nodes {
		b := before.state.Nodes[i]
		check("goroutines of "+n.ID, float64(n.Goroutines), float64(b.Goroutines), slackGoroutines)
		check("files of "+n.ID, float64(n.OpenFiles), float64(b.OpenFiles), slackFiles)
		check("subscriptions of "+n.ID, float64(n.Subscriptions), float64(b.Subscriptions), 0)
		if n.Goroutines == 0 || n.OpenFiles == 0 || n.Subscriptions == 0 {
			why = append(why, n.ID+" does not report its goroutines, files and subscriptions")
		}
	}
	return strings.Join(why, "; ")
}
