package cluster_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"
)

// coordinators are the pids of a cluster's coordinator processes, by id.
func (s *system) coordinators(ids ...string) map[string]int {
	out, running := map[string]int{}, built.running()
	for _, pid := range s.children() {
		line := running[pid]
		for _, id := range ids {
			if strings.Contains(line, " coordinator ") && strings.Contains(line, " --id "+id+" ") {
				out[id] = pid
			}
		}
	}
	return out
}

// TestUpStandby: `shoal up --standby`, whose coordinator is killed with jobs under
// way. At the same address they go on, under the other one or under the one that
// was started in its place, whoever had the lease first, and both are there again.
func TestUpStandby(t *testing.T) {
	if testing.Short() {
		t.Skip("a takeover takes some ten seconds")
	}
	beside(t)
	c := start(t, config{nodes: 2, args: []string{"--standby", "--data-dir", t.TempDir()}})
	at := &parts{t: t, httpClient: c.httpClient}
	p := &pair{t: t, at: [2]*parts{at, at}} // one address
	p.copies(0)
	r := rand.New(rand.NewPCG(6, 6))
	var reqs []request
	for i := range 3 {
		reqs = append(reqs, request{fmt.Sprintf("job %d", i), "/v1/completions",
			map[string]any{"prompt": ids(r, 20+30*i), "max_tokens": 250, "ignore_eos": true, "temperature": float64(i%2) * 0.8, "seed": i}})
	}
	want := at.send(t, reqs, len(reqs))
	jobs := p.jobs(0, "killed", reqs)
	p.begun(0, jobs)
	before, _ := p.state(0)
	pids := c.coordinators("coordinator", "standby")
	first := pids[before.Store.Coordinator]
	if first == 0 || len(pids) != 2 {
		t.Fatalf("coordinators: %v, of which %s coordinates", pids, before.Store.Coordinator)
	}
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	t.Logf("killed: served again after %.1f s", p.serves(0, recoverLimit).Seconds())
	p.check(0, "killed", reqs, want, jobs)
	t.Logf("all jobs ended %.1f s after the kill", time.Since(began).Seconds())
	p.copies(0) // the dead one is back, and keeps its copy
	after, _ := p.state(0)
	if after.Store.Term <= before.Store.Term || after.Epoch <= before.Epoch || len(after.Nodes) != 2 {
		t.Errorf("after epoch %d of %+v comes epoch %d of %+v with %d nodes", before.Epoch, *before.Store, after.Epoch, *after.Store, len(after.Nodes))
	}
	if now := c.coordinators("coordinator", "standby"); len(now) != 2 || now[before.Store.Coordinator] == first {
		t.Errorf("coordinators: %v, before %v", now, pids)
	}
	if a, err := at.try(context.Background(), "POST", "/v1/completions", map[string]any{"prompt": "a", "max_tokens": 2}); err != nil || a.status != 200 {
		t.Errorf("a plain request: status %d %s, %v", a.status, a.body, err)
	}
	all := c.children()
	if err := c.head.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if code := c.head.end(t, requestLimit); code != 0 {
		t.Errorf("status %d after Ctrl-C, want 0", code)
	}
	c.gone(all)
}
