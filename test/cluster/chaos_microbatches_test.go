package cluster_test

import (
	"syscall"
	"testing"
)

// TestChaosMicroBatches kills two nodes, one after the other, while every step has two micro-batches: while streams
// decode, and while prompts are read. Each stream has the tokens and logprobs of the undisturbed run on one node.
func TestChaosMicroBatches(t *testing.T) {
	reqs := load()
	want, _ := up(t, 1).undisturbed(t, reqs)
	c := up(t, 4, "--micro-batches", "2", "--chunk", "24")
	divided := false
	for i, id := range []string{"node-1", "node-3"} {
		what := "in two micro-batches, kill -9 " + id
		fault := func() {
			divided = divided || c.state().MicroBatches == 2
			c.signal(id, syscall.SIGKILL)
		}
		if i == 0 {
			surviveFault(t, c, what, reqs, want, fault)
		} else {
			surviveFaultAt(t, c, what, reqs, want, 2, fault) // most prompts are not complete
		}
		c.waitNodes(3-i, recoverLimit)
	}
	c.waitIdle(patience)
	if !divided {
		t.Error("no step had two micro-batches when a node was killed")
	}
}
