package cluster_test

import (
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/testlevel"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// TestChaosStraggler slows one node of four to a fifth with SIGSTOP and SIGCONT. Each stop is too
// short for gossip to declare it dead. The node is named and then fenced, and the streams do not
// change. After that it returns with a smaller share.
func TestChaosStraggler(t *testing.T) {
	testlevel.NeedFull(t)
	reqs := streaming(4, 200)
	c := up(t, 4)
	want, _ := c.undisturbed(t, reqs)
	slow := c.node("node-2")
	stop, ended := make(chan struct{}), make(chan struct{})
	defer func() { <-ended }()
	go func() {
		defer close(ended)
		defer func() { _ = syscall.Kill(slow.PID, syscall.SIGCONT) }()
		for {
			_ = syscall.Kill(slow.PID, syscall.SIGSTOP)
			time.Sleep(240 * time.Millisecond)
			_ = syscall.Kill(slow.PID, syscall.SIGCONT)
			select {
			case <-stop:
				return
			case <-time.After(60 * time.Millisecond):
			}
		}
	}()
	began := time.Now()
	c.busy(t, "with a straggler", reqs, want, func() {
		defer close(stop)
		worst := 0.0
		testutil.Eventually(t, 3*recoverLimit, "the straggler is fenced", func() (bool, string) {
			n := c.node("node-2")
			worst = max(worst, n.Late)
			return n.State == "fenced", n.State
		})
		n := c.node("node-2")
		t.Logf("fenced after %.1f s: %s; the others waited for it up to %.0f %% of the time", time.Since(began).Seconds(), n.Reason, 100*worst)
		if !strings.Contains(n.Reason, "the others wait for it") {
			t.Errorf("the reason is %q", n.Reason)
		}
	})
	c.waitNodes(4, recoverLimit)
	if n := c.node("node-2"); n.Share >= slow.Share || n.PID != slow.PID {
		t.Errorf("it came back with share %.2f, had %.2f", n.Share, slow.Share)
	}
	got, _ := c.open(reqs).wait(t)
	same(t, "after it came back", reqs, want, got)
	if text := string(c.want(200, "GET", "/metrics", nil).body); !strings.Contains(text, `shoal_fences_total{kind="slow"}`) || strings.Contains(text, `shoal_fences_total{kind="slow"} 0`) {
		t.Error("/metrics counts no fence")
	}
}

// TestChaosLongSequence: the owner of one long sequence computes all of its attention, for which
// the others wait most of every step. It is healthy and must be neither named nor fenced.
func TestChaosLongSequence(t *testing.T) {
	testlevel.NeedFull(t)
	c := up(t, 4)
	began := c.state().Epoch // earlier clusters with this model have left a record
	_, stall := c.open([]request{{"a long sequence", "/v1/completions",
		map[string]any{"prompt": ids(rand.New(rand.NewPCG(7, 9)), 6000), "max_tokens": 1500,
			"stream": true, "ignore_eos": true, "temperature": 0, "speculate": "off"}}}).wait(t)
	s := c.state()
	t.Logf("longest silence %.2f s", stall.Seconds())
	for _, n := range s.Nodes {
		t.Logf("%s: the others waited for it %.0f %% of the time besides", n.ID, 100*n.Late)
	}
	if s.Epoch != began || s.Fences["slow"] > 0 {
		t.Errorf("epoch %d, at first %d, fences %v", s.Epoch, began, s.Fences)
	}
}
