package cluster_test

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"

	"github.com/shoal-llm/shoal/internal/testlevel"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// cutRequests are streams whose full cache takes 6.5 to 7 MiB.
func cutRequests() (reqs []request) {
	for i := range 4 {
		b := map[string]any{"prompt": ids(rand.New(rand.NewPCG(45, uint64(i))), 660+20*i), "max_tokens": 150, "stream": true, "logprobs": 3,
			"return_tokens_as_token_ids": true, "ignore_eos": true, "skip_special_tokens": false, "temperature": 0.8, "seed": i,
			"stream_options": map[string]any{"include_usage": true}}
		if i%2 == 1 {
			b["repetition_penalty"], b["frequency_penalty"] = 1.1, 0.2
		}
		if i == 3 {
			b["structured_outputs"] = map[string]any{"regex": "[a-z ]{400}"}
		}
		reqs = append(reqs, request{fmt.Sprint("stream ", i), "/v1/completions", b})
	}
	return reqs
}

// TestCutSequences: sequences that fit no node are cut over all nodes. Every token and log-probability equals
// that of a single node with more memory, on 3 and 16 nodes, and on four nodes of which two are killed one after
// the other, the second as the owner.
func TestCutSequences(t *testing.T) {
	testlevel.NeedLong(t)
	parallel(t)
	reqs := cutRequests()
	want, _ := up(t, 1).undisturbed(t, reqs)
	cut := func(c *system) {
		t.Helper()
		testutil.Eventually(t, patience, "a cut sequence decodes", func() (bool, string) {
			s := c.state()
			for _, q := range s.Sequences {
				if q.Cut && q.State == "decoding" && q.Output > 0 {
					return true, ""
				}
			}
			return false, fmt.Sprintf("%+v", s.Sequences)
		})
	}
	for _, s := range []shape{{nodes: 3, mapping: "gather", chunk: 64}, {nodes: 16, mapping: "reduce", chunk: 128, uneven: true}} {
		t.Run(s.String(), func(t *testing.T) {
			c := up(t, s.nodes, append(s.args(), "--kv-memory", "6MiB")...)
			f := c.open(reqs)
			cut(c)
			got, _ := f.wait(t)
			same(t, s.String(), reqs, want, got)
		})
	}
	c := up(t, 4, "--kv-memory", "6MiB")
	surviveFault(t, c, "kill -9 of a node", reqs, want, func() {
		cut(c)
		s := c.state()
		for _, n := range s.Nodes {
			if n.ID != ownerOf(t, s) {
				c.signal(n.ID, syscall.SIGKILL)
				break
			}
		}
	})
	c.waitNodes(3, recoverLimit)
	surviveFault(t, c, "kill -9 of the owner", reqs, want, func() { c.signal(ownerOf(t, c.state()), syscall.SIGKILL) })
	c.waitNodes(2, recoverLimit)
	got, _ := c.open(reqs).wait(t)
	same(t, "two nodes", reqs, want, got)
}
