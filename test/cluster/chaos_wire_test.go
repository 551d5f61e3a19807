package cluster_test

import (
	"fmt"
	"testing"
	"time"
)

// wired is a cluster whose processes are plugged into a wire.
type wired struct {
	*system
	w     *wire
	head  *port
	nodes []*port
	procs []*process
}

// newWired starts a coordinator and nodes n0, n1 and so on, and waits until they
// serve.
func newWired(t *testing.T, keyed bool, nodes int, args ...string) *wired {
	x := &wired{w: newWire(t, keyed)}
	x.head = x.w.plug()
	var gossip string
	x.system, gossip = coordinate(t, config{at: x.head, args: append([]string{"--nodes", fmt.Sprint(nodes)}, args...)})
	for i := range nodes {
		p := x.w.plug()
		id := fmt.Sprintf("n%d", i)
		x.nodes = append(x.nodes, p)
		x.procs = append(x.procs, spawnIn(t, p, built.shoal(t, ""), id, nil, "node", "--id", id, "--join", gossip, "--threads", "1", "--bind", p.ip()+":0"))
	}
	x.waitReady()
	return x
}

// others are all ports but one.
func (x *wired) others(than *port) (out []*port) {
	for _, p := range append([]*port{x.head}, x.nodes...) {
		if p != than {
			out = append(out, p)
		}
	}
	return out
}

func cut(r *rule) { r.cut = true }

// TestChaosPartition takes one node of four off the network while 16 streams
// decode: in both directions, then so that it hears and is not heard, then so
// that only two nodes do not hear one another. Each time the streams end as if
// nothing had been, and when the network is mended all four serve again.
func TestChaosPartition(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	reqs := streaming(16, 18)
	x := newWired(t, false, 4, "--sync-deadline", "2s", "--step-deadline", "5s")
	want, _ := x.open(reqs).wait(t)
	faults := []struct {
		what string
		do   func()
	}{
		{"n1 is cut off", func() { x.w.between([]*port{x.nodes[1]}, x.others(x.nodes[1]), true, cut) }},
		{"n2 hears and is not heard", func() { x.w.between([]*port{x.nodes[2]}, x.others(x.nodes[2]), false, cut) }},
		{"n0 and n3 do not hear each other", func() { x.w.between(x.nodes[:1], x.nodes[3:], true, cut) }},
		{"n0 does not hear n3", func() { x.w.between(x.nodes[3:], x.nodes[:1], false, cut) }},
	}
	if !full() {
		faults = faults[:2]
	}
	for _, f := range faults {
		disturb(t, x.system, f.what, reqs, want, f.do)
		x.waitNodes(3, recoverLimit)
		x.w.heal()
		began := time.Now()
		x.waitNodes(4, recoverLimit)
		t.Logf("four nodes serve %.2f s after the network was mended", time.Since(began).Seconds())
	}
	got, _ := x.open(reqs).wait(t)
	same(t, "in the end", reqs, want, got)
	x.waitIdle(10 * time.Second)
}
