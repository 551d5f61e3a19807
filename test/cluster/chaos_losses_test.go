package cluster_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/testutil"
)

// TestChaosTooFew loses more nodes than a cluster can tolerate. At first a prompt does not fit in the
// remaining memory, then all nodes are lost, then also the coordinator. Jobs are accepted and kept
// throughout, and requests get a reason. When the nodes return, everything completes as in the
// undisturbed run.
func TestChaosTooFew(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	parallel(t)
	p := newProcessCluster(t, t.TempDir(), 3)
	p.nodeArgs, p.headArgs = []string{"--kv-memory", "6MiB"}, []string{"--prefill", "chunks"} // by layers the prompt fits one node
	p.start()
	r := rand.New(rand.NewPCG(11, 12))
	big := request{"a long prompt", "/v1/completions",
		map[string]any{"prompt": ids(r, 1000), "max_tokens": 30, "ignore_eos": true, "logprobs": 2, "temperature": 0, "kv_policy": policies[1]}}
	small := request{"a short prompt", "/v1/completions",
		map[string]any{"prompt": ids(r, 30), "max_tokens": 30, "ignore_eos": true, "logprobs": 2, "temperature": 0.8, "seed": 3}}
	want := p.send(t, []request{big, small}, 2)
	until := time.Now().Add(requestLimit)
	var jobs, results []string
	keep := func(what string, i int) {
		t.Helper()
		id, err := p.submit(what, []request{big, small}[i].body, until)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		jobs, results = append(jobs, id), append(results, strings.TrimSpace(want[i]))
	}
	p.nodes[1].kill(t)
	p.nodes[2].kill(t)
	testutil.Eventually(t, recoverLimit, "one node serves", func() (bool, string) {
		c := p.look()
		return len(c.Nodes) == 1 && c.Nodes[0].State == "ready", fmt.Sprintf("%+v", c.Nodes)
	})
	if a := p.call("POST", big.path, big.body); a.status != 503 || !strings.Contains(string(a.body), "kv_budget_exceeded") {
		t.Errorf("on one node a prompt of three gets %d %s", a.status, a.body)
	} else {
		t.Logf("does not fit: %d %s", a.status, a.body)
	}
	if got := p.send(t, []request{small}, 1); got[0] != want[1] {
		t.Errorf("on one node a short prompt differs %s", firstDifference(want[1], got[0]))
	}
	keep("too big for one", 0)
	keep("small enough", 1)
	if _, _, err := p.follow(jobs[1], until); err != nil {
		t.Errorf("after a job that has to wait: %v", err)
	}

	p.nodes[0].kill(t)
	keep("without nodes", 1)
	p.coordinator.kill(t)
	p.startCoordinator()
	for _, x := range []struct{ method, path string }{{"GET", "/ready"}, {"POST", small.path}} {
		var body any
		if x.method == "POST" {
			body = small.body
		}
		a := p.call(x.method, x.path, body)
		if a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") == "" ||
			!strings.Contains(string(a.body), "gathering nodes") {
			t.Errorf("%s %s without nodes: %d %v %s", x.method, x.path, a.status, a.header, a.body)
		}
	}
	keep("without nodes, after a restart", 0)
	for _, id := range jobs {
		if k := p.lookAt(id); len(k) != 1 || k[0].missing || id != jobs[1] && ended(k[0].state) {
			t.Errorf("without nodes job %s is %+v", id, k)
		}
	}
	for i := range p.nodes {
		p.startNode(i)
	}
	for i, id := range jobs {
		_, _, err := p.follow(id, until)
		a, _ := p.try(context.Background(), "GET", "/v1/jobs/"+id, nil)
		if k := p.lookAt(id); err != nil || len(k) != 1 || k[0].state != "completed" || k[0].result != results[i] {
			t.Errorf("job %s after the nodes came back: %v %s", id, err, a.body)
		}
	}
	if got := p.send(t, []request{big}, 1); got[0] != want[0] {
		t.Errorf("after the nodes came back a long prompt differs %s", firstDifference(want[0], got[0]))
	}
}
