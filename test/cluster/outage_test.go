package cluster_test

import (
	"context"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/testutil"
)

// TestOutage loses every node while the coordinator lives. Within a bounded time all routes report
// it, with a reason and a retry time. Jobs are kept. When nodes are back, it serves with the same
// bits.
func TestOutage(t *testing.T) {
	parallel(t)
	p := startProcesses(t, 2)
	r := request{"a request", "/v1/completions",
		map[string]any{"prompt": ids(rand.New(rand.NewPCG(31, 32)), 40), "max_tokens": 20, "ignore_eos": true, "logprobs": 1, "temperature": 0}}
	want := p.send(t, []request{r}, 1)
	until := time.Now().Add(requestLimit)
	p.nodes[0].kill(t)
	p.nodes[1].kill(t)
	id, err := p.submit("kept", r.body, until)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct{ method, path string }{{"GET", "/health"}, {"GET", "/ready"}, {"POST", r.path}} {
		var body any
		if x.method == "POST" {
			body = r.body
		}
		var a answer
		testutil.Eventually(t, patience, "an outage is reported at "+x.path, func() (bool, string) {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second) // within the grace period it would wait
			defer cancel()
			var err error
			if a, err = p.try(ctx, x.method, x.path, body); err != nil {
				return false, err.Error()
			}
			return a.status == http.StatusServiceUnavailable && strings.Contains(string(a.body), "0 of 1 nodes are here"), string(a.body)
		})
		if a.header.Get("Retry-After") == "" {
			t.Errorf("%s %s without nodes: %d %v %s", x.method, x.path, a.status, a.header, a.body)
		}
		t.Logf("%s: %s", x.path, a.body)
	}
	if k := p.lookAt(id); len(k) != 1 || k[0].missing || ended(k[0].state) {
		t.Errorf("without nodes the job is %+v", k)
	}
	p.startNode(0)
	p.ready(startLimit)
	if _, _, err := p.follow(id, until); err != nil {
		t.Error(err)
	}
	if k := p.lookAt(id); len(k) != 1 || k[0].result != strings.TrimSpace(want[0]) {
		t.Errorf("the job that was kept: %+v", k)
	}
	if got := p.send(t, []request{r}, 1); got[0] != want[0] {
		t.Errorf("when a node is back %s", firstDifference(want[0], got[0]))
	}
	if a := p.call("GET", "/health", nil); a.status != http.StatusOK {
		t.Errorf("/health when a node is back: %d %s", a.status, a.body)
	}
}
