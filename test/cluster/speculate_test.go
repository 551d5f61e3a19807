package cluster_test

import (
	"maps"
	"syscall"
	"testing"
)

// TestChaosSpeculation kills nodes while streams decode rows with drafts, from text and from a
// small model (here the model itself): what was drafted
// and not drawn leaves nothing behind, on owners, on replicas and in what is rebuilt. Tokens
// and logprobs are those of a run without drafts.
func TestChaosSpeculation(t *testing.T) {
	reqs := streaming(len(load()), 240) // drafts make them short
	fits := maps.Clone(reqs[0].body)
	fits["structured_outputs"] = map[string]any{"regex": "([a-f]{3}[0-9]{2} ){120}"}
	reqs = append(reqs, request{"a stream that fits a regular expression", reqs[0].path, fits})
	c := up(t, 4, "--replicas", "1", "--speculate", "off", "--draft", "../../models/fry")
	want, _ := c.undisturbed(t, reqs)
	if d := c.state().Drafts; d != nil {
		t.Fatalf("nobody asked for drafts, and there were some: %+v", d)
	}
	for i := range reqs {
		reqs[i].body = maps.Clone(reqs[i].body)
		reqs[i].body["speculate"] = []string{"suffix:9", "lookup:6", "model:4"}[i/2%3] // whatever they cost: this machine may be busy
	}
	got, _ := c.open(reqs).wait(t) // the next run finds its outputs
	same(t, "with drafts", reqs, want, got)
	for i, id := range []string{"node-1", "node-3"} {
		before := c.state().Drafts
		// Some streams end after few steps: they say what they said before.
		disturbAt(t, c, "with drafts, kill -9 "+id, reqs, want, 6*len(reqs), func() { c.signal(id, syscall.SIGKILL) })
		c.waitNodes(3-i, recoverLimit)
		if after := c.state().Drafts; before == nil || after.Accepted == before.Accepted {
			t.Errorf("drafts before %+v, after %+v: none were right", before, after)
		} else {
			t.Logf("%d of %d drafts were right", after.Accepted-before.Accepted, after.Drafted-before.Drafted)
		}
	}
	c.waitIdle(patience)
}
