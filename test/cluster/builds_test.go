package cluster_test

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/rpc"
	"github.com/shoal-llm/shoal/internal/testlevel"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// Two builds with the same wire version and arithmetic may serve together. Others are refused, and
// print the reason. The binaries differ from the tested one by a build tag: rolled changes nothing,
// otherscale makes attention scores 2 % larger, otherwire uses a wire version that no other build has.

// refusedBuild waits until a process has exited, and checks that its error describes its build, the
// cluster's build, and the remedy.
func refusedBuild(t *testing.T, p *process, words ...string) {
	t.Helper()
	code := p.end(t, startLimit)
	stderr := tail(p.err)
	if code != 1 {
		t.Errorf("%s: status %d", p.name, code)
	}
	for _, w := range append(words, `the coordinator "coordinator" (build dev go`, "run the same build of Shoal everywhere") {
		if !strings.Contains(stderr, w) {
			t.Errorf("the error of %s lacks %q: %s", p.name, w, stderr)
		}
	}
}

// arithmeticOf returns the arithmetic that `shoal version` of a binary prints.
func arithmeticOf(t *testing.T, tags string) string {
	t.Helper()
	p := spawn(t, built.shoal(t, tags), "version-"+tags, nil, "version")
	m := p.line(t, p.out, regexp.MustCompile(`arithmetic (\S+)`), patience)
	return m[1]
}

// TestOtherArithmetic: a node and a standby with other arithmetic are refused while streams run,
// and the streams keep their bits. A node of another build with the same arithmetic serves with the
// others. Nodes survive a coordinator with other arithmetic.
func TestOtherArithmetic(t *testing.T) {
	testlevel.NeedLong(t)
	if testing.Short() {
		t.Skip("builds other binaries")
	}
	parallel(t)
	odd, ours := arithmeticOf(t, "otherscale"), arithmeticOf(t, "")
	if same := arithmeticOf(t, "rolled"); odd == ours || same != ours {
		t.Fatalf("arithmetic %s, of other scores %s, of another build %s", ours, odd, same)
	}
	p := newProcessCluster(t, t.TempDir(), 2)
	p.start()
	reqs := streaming(4, 400)
	want, _ := p.undisturbed(t, reqs)

	other := built.shoal(t, "otherscale")
	flow := p.open(reqs)
	flow.reach(t, 100)
	says := []string{"(build dev tags=otherscale go", "has arithmetic " + odd, "has arithmetic " + ours}
	refusedBuild(t, spawn(t, other, "odd", nil, "node", "--join", p.gossip, "--id", "odd", "--threads", "1"), append(says, "this node")...)
	refusedBuild(t, spawn(t, other, "standby", nil, "coordinator", "--standby", "--id", "standby",
		"--join", p.gossip, "--bind", "127.0.0.1:0", "--listen", "127.0.0.1:0",
		"--data-dir", t.TempDir()), append(says, "this coordinator")...)
	got, _ := flow.wait(t)
	same(t, "with strangers", reqs, want, got)
	if s := p.cluster(); s.Epoch != 1 || s.Arithmetic != ours || len(s.Nodes) != 2 {
		t.Errorf("strangers made it epoch %d, %+v", s.Epoch, s.Nodes)
	}

	spawn(t, built.shoal(t, "rolled"), "n2", nil, "node", "--join", p.gossip, "--id", "n2", "--threads", "1")
	testutil.Eventually(t, startLimit, "a node of another build serves", func() (bool, string) {
		s := p.cluster()
		return len(s.Nodes) == 3 && s.Nodes[2].State == "ready" && s.Nodes[2].Share > 0, strings.TrimSpace(p.stateText())
	})
	got, _ = p.open(reqs).wait(t)
	same(t, "over two builds", reqs, want, got)
	out, stderr, _ := command(t, patience, nil, "status", "--server", p.base)
	if !strings.Contains(out, "arithmetic "+ours+"   wire version") || !strings.Contains(out, "another build on n2: dev tags=rolled go") {
		t.Errorf("shoal status: %s%s", out, stderr)
	}

	p.coordinator.kill(t)
	p.bin = other
	p.startCoordinator()
	testutil.Eventually(t, recoverLimit, "all nodes are refused", func() (bool, string) {
		text := p.stateText()
		return strings.Count(text, "refused") >= 3, text
	})
	if a := p.call("GET", "/ready", nil); a.status != 503 || !strings.Contains(string(a.body), "3 are refused") {
		t.Errorf("/ready: %d %s", a.status, a.body)
	}
	for _, n := range p.nodes {
		n.line(t, n.err, regexp.MustCompile(`the present one has an incompatible build.*`+regexp.QuoteMeta(odd)), patience)
	}
	p.coordinator.kill(t)
	p.bin = built.shoal(t, "")
	p.startCoordinator()
	p.ready(recoverLimit)
	got, _ = p.open(reqs).wait(t)
	same(t, "after a coordinator of another build", reqs, want, got)
}

// stateText returns the output of `shoal status`.
func (p *processCluster) stateText() string {
	out, _, _ := command(p.t, patience, nil, "status", "--server", p.base)
	return out
}

// speaks formats the wire versions of this build.
func speaks() string {
	if rpc.MinVersion < rpc.Version {
		return fmt.Sprintf("speaks wire versions %d to %d", rpc.MinVersion, rpc.Version)
	}
	return fmt.Sprintf("speaks wire version %d", rpc.Version)
}

// TestOtherWireVersion: a node with another wire version reports it and exits, and the cluster
// continues. A node that has served waits if the next coordinator has another version.
func TestOtherWireVersion(t *testing.T) {
	if testing.Short() {
		t.Skip("builds another binary")
	}
	parallel(t)
	p := newProcessCluster(t, t.TempDir(), 1)
	p.start()
	other := built.shoal(t, "otherwire")
	ours := speaks()
	refusedBuild(t, spawn(t, other, "odd", nil, "node", "--join", p.gossip, "--id", "odd", "--threads", "1"),
		"this node (build dev tags=otherwire go", "speaks wire version 9", ours)
	if a, err := p.try(context.Background(), "GET", "/ready", nil); err != nil || a.status != 200 {
		t.Errorf("%d %s %v", a.status, a.body, err)
	}
	p.coordinator.kill(t)
	p.bin = other
	p.startCoordinator()
	testutil.Eventually(t, recoverLimit, "the node is refused", func() (bool, string) {
		text := p.stateText()
		return strings.Contains(text, "n0 is refused: it (build dev go") &&
			strings.Contains(text, ours+", the cluster (build dev tags=otherwire"), text
	})
	p.nodes[0].line(t, p.nodes[0].err, regexp.MustCompile("the present one has an incompatible build"), patience)
	time.Sleep(2 * time.Second)
	select {
	case <-p.nodes[0].done:
		t.Error("the node has ended instead of waiting for a coordinator of its build")
	default:
	}
}
