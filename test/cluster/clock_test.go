package cluster_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/internal/testlevel"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// TestClockJumps sets the clocks of a coordinator and its nodes hours ahead and back, in different
// directions, while streams and jobs run. It kills a node and restarts it under its name with an
// earlier clock. It stops the coordinator, whose journal then ends in the future. Nothing is lost,
// each answer equals the undisturbed run, and nothing waits for a clock.
func TestClockJumps(t *testing.T) {
	testlevel.NeedFull(t)
	parallel(t)
	c := clocks{t, t.TempDir()}
	p := newProcessCluster(t, t.TempDir(), 2)
	p.bin, p.env = built.skewed(t), c.env
	p.headArgs, p.nodeArgs = []string{"--insecure"}, []string{"--insecure"} // certificates depend on the clock
	p.start()
	reqs := streaming(16, 300)
	var works []request // jobs long enough to be interrupted
	for _, r := range streaming(4, 150) {
		delete(r.body, "stream")
		delete(r.body, "stream_options")
		works = append(works, request{"job, " + r.name, r.path, r.body})
	}
	want, _ := p.undisturbed(t, reqs)
	results := p.send(t, works, len(works))
	part := int64(len(reqs) * reqs[0].body["max_tokens"].(int) / 4)

	flow, jobs := p.open(reqs), p.submitAll(t, "first", works)
	flow.reach(t, part)
	c.set(map[string]time.Duration{"coordinator": 5 * time.Hour, "n0": -7 * time.Hour, "n1": 2 * time.Hour})
	var completion struct{ Created int64 }
	a := p.call("POST", "/v1/completions", map[string]any{"prompt": []int{100}, "max_tokens": 1})
	if err := json.Unmarshal(a.body, &completion); err != nil || time.Until(time.Unix(completion.Created, 0)) < 4*time.Hour {
		t.Errorf("the coordinator's clock is not 5 h ahead, the test does not move it: %s", a.body)
	}
	flow.reach(t, 2*part)
	c.set(map[string]time.Duration{"coordinator": -9 * time.Hour, "n0": 3 * time.Hour, "n1": -4 * time.Hour})
	got, stall := flow.wait(t)
	t.Logf("clocks jump: longest silence %.2f s", stall.Seconds())
	same(t, "clocks jump", reqs, want, got)
	p.sameResults(t, "clocks jump", works, results, jobs)
	if s := p.cluster(); s.Recoveries > 0 {
		t.Errorf("%d recoveries because clocks were set", s.Recoveries)
	}

	flow = p.open(reqs)
	flow.reach(t, part)
	p.nodes[1].kill(t)
	c.set(map[string]time.Duration{"n1": -20 * time.Hour})
	p.startNode(1)
	got, _ = flow.wait(t)
	same(t, "a node comes back with an earlier clock", reqs, want, got)
	testutil.Eventually(t, recoverLimit, "two ready nodes", func() (bool, string) {
		ready := 0
		for _, n := range p.cluster().Nodes {
			if n.State == "ready" {
				ready++
			}
		}
		return ready == 2, fmt.Sprint(ready)
	})

	c.set(map[string]time.Duration{"coordinator": 10 * time.Hour})
	jobs = p.submitAll(t, "second", works)
	testutil.Eventually(t, patience, "a job has begun", func() (bool, string) {
		var j jobState
		p.getJSON("/v1/jobs/"+jobs[0], &j)
		return j.Events > 0, j.State
	})
	if err := p.coordinator.cmd.Process.Signal(syscall.SIGTERM); err != nil { // records them as interrupted
		t.Fatal(err)
	}
	p.coordinator.end(t, patience)
	c.set(map[string]time.Duration{"coordinator": -10 * time.Hour})
	p.startCoordinator()
	p.ready(recoverLimit)
	p.sameResults(t, "the coordinator comes back with an earlier clock", works, results, jobs)
}

func (p *processCluster) cluster() (s wire.ClusterState) {
	p.getJSON("/v1/cluster", &s)
	return s
}

// submitAll submits requests as jobs and returns their ids.
func (p *processCluster) submitAll(t testing.TB, what string, reqs []request) (out []string) {
	t.Helper()
	for i, r := range reqs {
		id, err := p.submit(fmt.Sprintf("%s-%d", what, i), r.body, time.Now().Add(patience))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, id)
	}
	return out
}

// sameResults waits for the ends of jobs and compares their results.
func (p *processCluster) sameResults(t testing.TB, what string, reqs []request, want, jobs []string) {
	t.Helper()
	got := make([]string, len(jobs))
	for i, id := range jobs {
		if _, _, err := p.follow(id, time.Now().Add(requestLimit)); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		var j jobState
		p.getJSON("/v1/jobs/"+id, &j)
		got[i] = canonical(string(j.Result))
		want[i] = strings.TrimSpace(want[i])
	}
	compare(t.Errorf, what, reqs, want, got)
}
