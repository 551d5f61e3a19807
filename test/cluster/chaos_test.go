package cluster_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/internal/testlevel"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// recoverLimit bounds the silence of a stream that a fault may cause, and the time until all nodes
// are ready again. It allows for a machine that runs other programs. SHOAL_E2E=full, on a dedicated
// machine, allows stallLimit.
const (
	recoverLimit = 3 * time.Minute
	stallLimit   = time.Minute
)

// failed returns the number of failed steps of a cluster. On a loaded machine gossip may declare a
// live node dead, which also ends an epoch. Only that is not counted.
func failed(c wire.ClusterState) uint64 {
	if c.Recovery == nil || full() { // on a dedicated machine no epoch ends without a fault
		return c.Recoveries
	}
	return uint64(c.Recovery.Placements["step_failed"])
}

// surviveFault runs the streams, calls fault when about a third of the tokens have arrived, and
// compares the result with the undisturbed run.
func surviveFault(t *testing.T, c *system, what string, reqs []request, want []string, fault func()) {
	t.Helper()
	surviveFaultAt(t, c, what, reqs, want, len(reqs)*reqs[0].body["max_tokens"].(int)/3, fault)
}

// surviveFaultAt is surviveFault after a given number of tokens.
func surviveFaultAt(t *testing.T, c *system, what string, reqs []request, want []string, tokens int, fault func()) {
	t.Helper()
	f := c.open(reqs)
	for again := 0; !f.reached(t, int64(tokens)); again++ { // on a loaded machine some streams start after others have ended
		if again == 5 {
			t.Fatalf("%s: a stream ended before the fault, %d times: give it more tokens", what, again+1)
		}
		got, _ := f.wait(t)
		same(t, what+" that came too late", reqs, want, got)
		f = c.open(reqs)
	}
	before := c.state()
	fault()
	got, stall := f.wait(t)
	after := c.state()
	right := draftsRight(after) - draftsRight(before)
	t.Logf("%s: longest silence %.2f s, epoch %d to %d, %d drafts were right", what, stall.Seconds(), before.Epoch, after.Epoch, right)
	if drafting() != "" && right == 0 {
		t.Errorf("%s: no draft was right: the fault met none", what)
	}
	if stall > recoverLimit || full() && stall > stallLimit {
		t.Errorf("%s: a stream was silent for %v", what, stall)
	}
	same(t, what, reqs, want, got)
}

// draftsRight returns the number of accepted draft tokens.
func draftsRight(c wire.ClusterState) uint64 {
	if c.Drafts == nil {
		return 0
	}
	return c.Drafts.Accepted
}

// load returns the streams that run during faults.
func load() []request {
	if testing.Short() {
		return streaming(6, 18)
	}
	return streaming(16, 32)
}

// TestChaosKill kills one node of four and then two at once, while 16 streams decode. Each stream
// has the tokens and logprobs of the undisturbed run. SHOAL_E2E=full uses each node as the first
// victim.
func TestChaosKill(t *testing.T) {
	reqs := load()
	orders := [][3]string{{"node-2", "node-0", "node-3"}}
	if full() {
		orders = append(orders, [3]string{"node-0", "node-1", "node-2"}, [3]string{"node-1", "node-3", "node-0"},
			[3]string{"node-3", "node-2", "node-1"})
	}
	var want []string
	for _, ids := range orders {
		t.Run(ids[0], func(t *testing.T) {
			c := up(t, 4)
			if want == nil {
				var stall time.Duration
				want, stall = c.undisturbed(t, reqs)
				t.Logf("undisturbed: longest silence %.2f s", stall.Seconds())
			}
			surviveFault(t, c, "kill -9 "+ids[0], reqs, want, func() { c.signal(ids[0], syscall.SIGKILL) })
			c.waitNodes(3, recoverLimit)
			surviveFault(t, c, "kill -9 "+ids[1]+" and "+ids[2], reqs, want, func() {
				c.signal(ids[1], syscall.SIGKILL)
				c.signal(ids[2], syscall.SIGKILL)
			})
			c.waitNodes(1, recoverLimit)
			c.waitIdle(patience)
			if s := c.state(); s.Recoveries == 0 || s.Epoch < 2 {
				t.Errorf("three nodes died, but %+v", s)
			}
		})
	}
}

// TestChaosReplicas kills owners whose sequences have a replica on another node. They continue from
// the replica, and the other sequences from their own caches. No prompt is read again, except under
// policies that score slots in decode.
func TestChaosReplicas(t *testing.T) {
	reqs := load()
	c := up(t, 4, "--replicas", "1")
	want, _ := c.undisturbed(t, reqs)
	copied := int64(0)
	for i, id := range []string{"node-1", "node-3"} {
		surviveFault(t, c, "with replicas, kill -9 "+id, reqs, want, func() {
			for _, n := range c.state().Nodes {
				copied += n.KVReplicas
			}
			c.signal(id, syscall.SIGKILL)
		})
		c.waitNodes(3-i, recoverLimit)
	}
	if copied == 0 {
		t.Error("no node held a replica when the fault came")
	}
	c.waitIdle(patience)
}

// TestChaosPrefill kills one node, then two at once, while long prompts are read: with weights as
// stored, and quantized, and layer by layer under each policy that allows it, also with SwiftKV and recurrent
// states. With quantized weights, prompt rows are rounded before they are sent, and each rank keeps the residual
// stream of its own rows.
func TestChaosPrefill(t *testing.T) {
	t.Run("layers", func(t *testing.T) { chaosPrefill(t, "--prefill", "layers") })
	t.Run("layers of SwiftKV", func(t *testing.T) {
		chaosPrefill(t, "--prefill", "layers", "--model", folder(t, "fry", false), "--swiftkv", folder(t, "fry-swiftkv-across", false))
	})
	t.Run("q8_0", func(t *testing.T) { chaosPrefill(t, "--quant", "q8_0") })
	t.Run("layers with states", func(t *testing.T) {
		chaosPrefill(t, "--prefill", "layers", "--model", folder(t, "qwen3_5", true))
	})
	if full() {
		t.Run("stored", func(t *testing.T) { chaosPrefill(t) })
	}
}

// byLayers are the policies under which prompts are read layer by layer.
var byLayers = []string{"snapkv:topk=60,obs=16", "snapstream:sink=4,recent=20,topk=24,obs=16,pool=7", "h2o:recent=16,topk=24",
	"sage:sink=4,recent=20,topk=24", "tova:size=48", "knorm:sink=4,recent=20,topk=24", "lagkv:sink=4,lag=16,topk=24",
	"pyramidkv:topk=32,obs=16,beta=4", "adakv:topk=72,obs=16,pool=5", "resnap:topk=20,every=9,obs=8", "streaming:sink=4,recent=28",
	"snapkv:topk=60,obs=16,ring=4", "snapstream:sink=4,recent=20,topk=24,obs=16,votes=candidates", "knorm:sink=4,recent=20,topk=72,heads=ada",
	"h2o:recent=16,topk=24,step=1"}

func chaosPrefill(t *testing.T, flags ...string) {
	c := up(t, 4, append(flags, "--chunk", "64", "--step-tokens", "64", "--max-sequences", "16")...)
	var reqs []request
	for _, r := range mixed(false) {
		if p := r.body["prompt"].([]int); len(p) >= 100 && len(p) <= 500 {
			r.body["cache"] = false // read every time
			for i := range p {
				p[i] = 16 + p[i]%(512-16) // a token of every model
			}
			reqs = append(reqs, r)
		}
	}
	if slices.Contains(flags, "layers") {
		prompts := reqs
		reqs = nil
		for i, policy := range byLayers {
			r := prompts[i%len(prompts)]
			r.body = maps.Clone(r.body)
			r.name, r.body["kv_policy"] = policy, policy
			reqs = append(reqs, r)
		}
	}
	want := c.send(t, reqs, len(reqs))
	left := 4
	for _, victims := range [][]string{{"node-0"}, {"node-1", "node-3"}} {
		got := make(chan []string, 1)
		go func() { got <- c.send(t, reqs, len(reqs)) }()
		testutil.Eventually(t, requestLimit, "prompts are read", func() (bool, string) { return c.used() > 0, "nothing is held" })
		for _, id := range victims {
			c.signal(id, syscall.SIGKILL)
		}
		same(t, fmt.Sprintf("kill -9 %v in prefill", victims), reqs, want, <-got)
		left -= len(victims)
		c.waitNodes(left, recoverLimit)
		c.waitIdle(patience)
	}
}

// TestChaosFreeze stops a node with SIGSTOP while streams decode. They finish on the other nodes.
// After SIGCONT it rejoins, and nothing changes.
func TestChaosFreeze(t *testing.T) {
	testlevel.NeedLong(t)
	if testing.Short() {
		t.Skip("long")
	}
	parallel(t)
	reqs := load()
	c := up(t, 4, "--sync-deadline", "5s", "--step-deadline", "10s")
	want, _ := c.undisturbed(t, reqs)
	pid := c.node("node-1").PID
	surviveFault(t, c, "SIGSTOP node-1", reqs, want, func() {
		before := c.state().Recoveries
		c.signal("node-1", syscall.SIGSTOP)
		began := time.Now()
		testutil.Eventually(t, recoverLimit, "the placement with a frozen node is withdrawn",
			func() (bool, string) { return c.state().Recoveries > before, "it serves" })
		took := time.Since(began)
		t.Logf("a frozen node was fenced after %.2f s", took.Seconds())
		if full() && took > 3*time.Second { // the limit holds on a dedicated machine
			t.Errorf("a frozen node was fenced after %v, want 3 s", took)
		}
	})
	c.waitNodes(3, recoverLimit)
	got, _ := c.open(reqs).wait(t)
	same(t, "while it is frozen", reqs, want, got)
	surviveFault(t, c, "SIGCONT node-1", reqs, want, func() {
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	})
	c.waitNodes(4, recoverLimit)
	got, _ = c.open(reqs).wait(t)
	same(t, "after it came back", reqs, want, got)
	// A pause below all deadlines only costs time.
	surviveFault(t, c, "SIGSTOP node-2 for half a second", reqs, want, func() {
		c.signal("node-2", syscall.SIGSTOP)
		pid := c.node("node-2").PID
		time.Sleep(500 * time.Millisecond)
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	})
	c.waitNodes(4, recoverLimit)
}

// busy runs the streams repeatedly until change returns, and compares every round.
func (s *system) busy(t *testing.T, what string, reqs []request, want []string, change func()) {
	t.Helper()
	stop, ended := make(chan struct{}), make(chan struct{})
	var worst time.Duration
	rounds := 0
	go func() {
		defer close(ended)
		for more := true; more; rounds++ {
			select {
			case <-stop:
				more = false // one more round, after the change
			default:
			}
			got, stall := s.open(reqs).wait(t)
			worst = max(worst, stall)
			same(t, what, reqs, want, got)
		}
	}()
	before := s.state()
	change()
	close(stop)
	<-ended
	t.Logf("%s: %d rounds, longest silence %.2f s, epoch %d to %d", what, rounds, worst.Seconds(), before.Epoch, s.state().Epoch)
}

// TestChaosJoin lets nodes join and leave gracefully while streams decode.
func TestChaosJoin(t *testing.T) {
	testlevel.NeedLong(t)
	if testing.Short() {
		t.Skip("long")
	}
	parallel(t)
	reqs := load()
	c, gossip := coordinate(t, config{args: []string{"--nodes", "2"}})
	join(t, "a", gossip, nil)
	b := join(t, "b", gossip, nil)
	c.waitReady()
	want, _ := c.undisturbed(t, reqs)
	c.busy(t, "a third node joins", reqs, want, func() {
		join(t, "c", gossip, nil, "--share", "2")
		c.waitNodes(3, recoverLimit)
	})
	surviveFault(t, c, "a node leaves", reqs, want, func() {
		if err := b.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	})
	if code := b.end(t, patience); code != 0 {
		t.Errorf("the node that left ended with status %d", code)
	}
	c.waitNodes(2, recoverLimit)
	c.busy(t, "it comes back", reqs, want, func() {
		join(t, "b", gossip, nil)
		c.waitNodes(3, recoverLimit)
	})
	before := c.state()
	c.busy(t, "a node is drained", reqs, want, func() {
		if out, stderr, code := command(t, recoverLimit, nil, "drain", "c", "--server", c.base); code != 0 ||
			!strings.Contains(out, "c is drained") {
			t.Errorf("shoal drain: status %d: %s%s", code, out, stderr)
		}
	})
	testutil.Eventually(t, patience, "a drained node without caches", func() (bool, string) { // nodes are polled periodically
		n := c.node("c")
		return n.State == "drained" && n.Sequences == 0 && n.KVUsedBytes == 0, fmt.Sprintf("%+v", n)
	})
	if s := c.state(); s.Epoch <= before.Epoch || full() && s.Epoch != before.Epoch+1 {
		t.Errorf("drained in epochs %d to %d", before.Epoch, s.Epoch)
	}
	for status, want := range []string{"c takes a share again", "is a member or is waiting to become one"} {
		if out, stderr, code := command(t, recoverLimit, nil, "undrain", "c", "--server", c.base); code != status ||
			!strings.Contains(out+stderr, want) {
			t.Errorf("shoal undrain: status %d: %s%s", code, out, stderr)
		}
		c.waitNodes(3, recoverLimit)
	}
	_, stderr, code := command(t, recoverLimit, nil, "drain", "nobody", "--server", c.base)
	if code == 0 || !strings.Contains(stderr, "no node") {
		t.Errorf("draining an unknown node: status %d: %s", code, stderr)
	}
	for _, n := range c.state().Nodes {
		t.Logf("%s: share %.2f", n.ID, n.Share)
	}
}
