package cluster_test

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/testlevel"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// wired is a cluster whose processes communicate over a simulated wire.
type wired struct {
	*system
	w      *fakeWire
	flags  []string // of every process
	gossip string
	head   *port
	nodes  []*port
	procs  []*process
}

// newWired starts a coordinator and nodes n0, n1 and so on, and waits until they serve.
func newWired(t *testing.T, keyed bool, nodes int, args ...string) *wired {
	x := &wired{w: newWire(t, keyed), nodes: make([]*port, nodes), procs: make([]*process, nodes)}
	if !keyed {
		x.flags = []string{"--insecure"} // unencrypted, so that the wire can read messages
	}
	x.head = x.w.plug()
	x.system, x.gossip = coordinate(t, config{at: x.head, args: slices.Concat([]string{"--nodes", fmt.Sprint(nodes)}, x.flags, args)})
	for i := range nodes {
		x.nodes[i] = x.w.plug()
		x.join(i)
	}
	x.waitReady()
	return x
}

// join starts the process of a node.
func (x *wired) join(i int) {
	id, at := fmt.Sprintf("n%d", i), x.nodes[i]
	x.procs[i] = spawnIn(x.t, at, built.shoal(x.t, ""), id, nil,
		append([]string{"node", "--id", id, "--join", x.gossip, "--threads", "1", "--bind", at.ip() + ":0"}, x.flags...)...)
}

// others returns all ports except one.
func (x *wired) others(than *port) (out []*port) {
	for _, p := range append([]*port{x.head}, x.nodes...) {
		if p != than {
			out = append(out, p)
		}
	}
	return out
}

func cut(r *rule) { r.Settings.Cut = true }

// TestChaosPartition isolates one node of four while 16 streams decode: in both directions, then
// only for outgoing packets, then only between two nodes. Each time the streams equal the
// undisturbed run, and all four nodes serve after the partition heals.
func TestChaosPartition(t *testing.T) {
	testlevel.NeedLong(t)
	if testing.Short() {
		t.Skip("long")
	}
	parallel(t)
	reqs := streaming(16, 18)
	x := newWired(t, false, 4, "--sync-deadline", "2s", "--step-deadline", "5s")
	want, _ := x.undisturbed(t, reqs)
	faults := []struct {
		what string
		do   func()
	}{
		{"n1 is cut off", func() { x.w.between([]*port{x.nodes[1]}, x.others(x.nodes[1]), true, cut) }},
		{"n2's packets are lost", func() { x.w.between([]*port{x.nodes[2]}, x.others(x.nodes[2]), false, cut) }},
		{"n0 and n3 are separated", func() { x.w.between(x.nodes[:1], x.nodes[3:], true, cut) }},
		{"packets from n3 to n0 are lost", func() { x.w.between(x.nodes[3:], x.nodes[:1], false, cut) }},
	}
	if !full() {
		faults = faults[:2]
	}
	for _, f := range faults {
		surviveFault(t, x.system, f.what, reqs, want, f.do)
		x.waitNodes(3, recoverLimit)
		x.w.heal()
		began := time.Now()
		x.waitNodes(4, recoverLimit)
		t.Logf("four nodes serve %.2f s after the network was healed", time.Since(began).Seconds())
	}
	got, _ := x.open(reqs).wait(t)
	same(t, "in the end", reqs, want, got)
	x.waitIdle(patience)
}

// routes matches the addresses of a node in the mesh: of its routes, and where other ranks connect
// for its tensors.
var routes = regexp.MustCompile(`node joined" .* routes=\S+:(\d+) tensors=\S+:(\d+)`)

// tensors returns a function that recognises connections of the mesh.
func (x *wired) tensors() func(from, to uint16) bool {
	mesh := map[uint16]bool{}
	for _, p := range x.procs {
		for _, port := range p.line(x.t, p.err, routes, startLimit)[1:] {
			n, err := strconv.ParseUint(port, 10, 16)
			if err != nil {
				x.t.Fatal(err)
			}
			mesh[uint16(n)] = true
		}
	}
	return func(from, to uint16) bool { return mesh[from] || mesh[to] }
}

// TestChaosWire changes bits of tensors in transit, breaks connections, truncates messages (tensors
// and calls), delays every packet, and drops and repeats some. A changed message is dropped and its
// epoch fails. The text equals the undisturbed run.
func TestChaosWire(t *testing.T) {
	testlevel.NeedLong(t)
	testlevel.NeedLong(t)
	if testing.Short() {
		t.Skip("long")
	}
	reqs := streaming(16, 18)
	x := newWired(t, false, 3, "--sync-deadline", "2s", "--step-deadline", "8s")
	want, _ := x.undisturbed(t, reqs)
	mesh := x.tensors()
	before := x.state()
	flips := 2
	if full() {
		flips = 12
	}
	surviveFault(t, x.system, "flipped bits", reqs, want, func() {
		x.w.between(x.nodes, x.nodes, false, func(r *rule) { r.flip, r.most, r.only = 40, flips, mesh })
		testutil.Eventually(t, recoverLimit, "bits are flipped", func() (bool, string) {
			_, _, n := x.w.sum()
			return n == flips, fmt.Sprintf("%d of %d", n, flips)
		})
	})
	if after := x.state(); after.Epoch == before.Epoch {
		t.Errorf("epoch %d before and %d after bits were flipped: no fault was detected", before.Epoch, after.Epoch)
	}
	x.w.heal()
	x.waitNodes(3, recoverLimit)
	surviveFault(t, x.system, "broken connections", reqs, want, func() {
		x.w.between(x.nodes, x.nodes, false, func(r *rule) { r.reset, r.most, r.only = 40, 2, mesh })
	})
	x.w.heal()
	x.waitNodes(3, recoverLimit)
	surviveFault(t, x.system, "messages cut short", reqs, want, func() {
		x.w.between(append(x.nodes, x.head), append(x.nodes, x.head), false, func(r *rule) { r.short, r.most = 40, 3 })
	})
	x.w.heal()
	x.waitNodes(3, recoverLimit)
	few := streaming(4, 6)
	undisturbed, _ := x.undisturbed(t, few)
	x.w.between(append(x.nodes, x.head), append(x.nodes, x.head), false, func(r *rule) { r.Delay = 20 * time.Millisecond })
	got, stall := x.open(few).wait(t)
	same(t, "every packet takes 20 ms longer", few, undisturbed, got)
	t.Logf("every packet takes 20 ms longer: longest silence %.2f s, epoch %d", stall.Seconds(), x.state().Epoch)
	x.w.heal()
	x.w.between(append(x.nodes, x.head), append(x.nodes, x.head), false, func(r *rule) { r.Loss, r.Duplicate = 1.0/50, 1.0/50 })
	long := few
	if full() {
		long = streaming(4, 400)
		undisturbed, _ = x.undisturbed(t, long)
	}
	got, stall = x.open(long).wait(t)
	same(t, "one packet in 50 is lost, one in 50 comes twice", long, undisturbed, got)
	s := x.state()
	t.Logf("one packet in 50 is lost, one in 50 comes twice: longest silence %.2f s, epoch %d", stall.Seconds(), s.Epoch)
	if s.Fences["slow"] > 0 {
		t.Errorf("a node is fenced for being slow, but the network of all is: %+v", s.Nodes)
	}
}
