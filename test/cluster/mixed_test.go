package cluster_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/shoal-llm/shoal/internal/rpc"
	"github.com/shoal-llm/shoal/internal/testlevel"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// Builds of earlier revisions in one cluster with this one, as during a rolling upgrade. CI tries
// the build before this wire version, `make mixed` also the others.

// onePass is a build of wire version 5 that silently drops StepRequest.passes.
const onePass = "e03f502"

func mixedInFull() bool { return os.Getenv("SHOAL_MIXED") != "" }

// plain returns requests whose steps only decode, for plans of several passes.
func plain(n, tokens int) (out []request) {
	for i := range n {
		out = append(out, request{fmt.Sprintf("plain %d", i), "/v1/completions",
			map[string]any{"prompt": fmt.Sprintf("The sea %d", i), "max_tokens": tokens, "stream": true, "logprobs": 1,
				"return_tokens_as_token_ids": true, "ignore_eos": true, "skip_special_tokens": false,
				"speculate": "off", "temperature": 0, "stream_options": map[string]any{"include_usage": true}}})
	}
	return out
}

// TestMixedBuilds: a build with an unsupported wire version is refused with a reason. Nodes of a
// supported older build serve with nodes of this build, under coordinators of both. No epoch ends,
// and the tokens equal those of a single build. Then the old processes are replaced while streams
// run.
func TestMixedBuilds(t *testing.T) {
	testlevel.NeedLong(t)
	parallel(t)
	other, same := releases()
	if other == "" {
		t.Skip("this checkout has no build of another wire version: clone the whole history")
	}
	revs := []string{other}
	if mixedInFull() {
		revs = append(revs, onePass)
		if same != "" {
			revs = append(revs, same)
		}
	}
	for _, rev := range revs {
		t.Run(fmt.Sprintf("%.12s", rev), func(t *testing.T) {
			t.Logf("wire version %d and %d", wireOf(rev), rpc.Version)
			if wireOf(rev) < rpc.MinVersion {
				refusedRelease(t, built.release(t, rev))
				return
			}
			mixedBuilds(t, built.release(t, rev), append(plain(1, 200), streaming(3, 150)...), rev)
		})
	}
}

// refusedRelease: a node of a build with an unsupported wire version exits with a reason, and the
// cluster continues.
func refusedRelease(t *testing.T, old string) {
	p := newProcessCluster(t, t.TempDir(), 2)
	p.start()
	reqs := append(plain(1, 200), streaming(3, 150)...)
	want, _ := p.open(reqs).wait(t)
	flow := p.open(reqs)
	flow.reach(t, 60)
	refusedBuild(t, spawn(t, old, "old", nil, "node", "--join", p.gossip, "--id", "old", "--threads", "1"), "this node", speaks())
	got, _ := flow.wait(t)
	same(t, "while an old node comes", reqs, want, got)
	if s := p.cluster(); s.Epoch != 1 || len(s.Nodes) != 2 {
		t.Errorf("epoch %d, %s", s.Epoch, p.stateText())
	}
}

func mixedBuilds(t *testing.T, old string, reqs []request, rev string) {
	now := built.shoal(t, "")
	p := newProcessCluster(t, t.TempDir(), 3)
	p.start()
	want, _ := p.open(reqs).wait(t)

	settled := func(what string, epoch uint64) {
		t.Helper()
		got, _ := p.open(reqs).wait(t)
		same(t, what, reqs, want, got)
		if s := p.cluster(); s.Epoch != epoch {
			t.Errorf("%s: epoch %d, it was %d: %s", what, s.Epoch, epoch, p.stateText())
		}
	}
	replace := func(i int, bin string) {
		t.Helper()
		if out, stderr, code := command(t, patience, nil, "drain", fmt.Sprintf("n%d", i), "--server", p.base); code != 0 {
			t.Fatalf("drain: %s%s", out, stderr)
		}
		p.nodes[i].kill(t)
		p.bin = bin
		p.startNode(i)
		p.bin = now
		p.serving(3)
	}

	replace(1, old)
	settled("an old node under a new coordinator", p.cluster().Epoch)
	if wireOf(rev) != rpc.Version {
		p.coordinator.line(t, p.coordinator.err, regexp.MustCompile(`nodes of older builds take part.*n1 \(wire version`), patience)
	}
	flow := p.open(reqs)
	flow.reach(t, 60)
	replace(1, now)
	got, _ := flow.wait(t)
	same(t, "while the old node is replaced", reqs, want, got)
	settled("all new again", p.cluster().Epoch)

	p.coordinator.kill(t)
	p.bin = old
	p.startCoordinator()
	p.bin = now
	p.serving(3)
	settled("new nodes under an old coordinator", p.cluster().Epoch)
}

// serving waits until this number of nodes has a share.
func (p *processCluster) serving(nodes int) {
	p.t.Helper()
	testutil.Eventually(p.t, recoverLimit, fmt.Sprintf("%d nodes serve", nodes), func() (bool, string) {
		n := 0
		for _, node := range p.cluster().Nodes {
			began := slices.ContainsFunc(p.nodes, func(x *process) bool { return x != nil && x.cmd.Process.Pid == node.PID })
			if began && node.State == "ready" && node.Share > 0 {
				n++
			}
		}
		return n == nodes, p.stateText()
	})
}
