package cluster_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/shoal-llm/shoal/client/wire"
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
	if drafting() != "" {
		t.Skip("cut sequences have no drafts")
	}
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
		killAnother(t, c)
	})
	c.waitNodes(3, recoverLimit)
	surviveFault(t, c, "kill -9 of the owner", reqs, want, func() { c.signal(ownerOf(t, c.state()), syscall.SIGKILL) })
	c.waitNodes(2, recoverLimit)
	got, _ := c.open(reqs).wait(t)
	same(t, "two nodes", reqs, want, got)
}

// killAnother kills a node other than the one that owns most sequences.
func killAnother(t *testing.T, c *system) {
	t.Helper()
	s := c.state()
	owner := ownerOf(t, s)
	i := slices.IndexFunc(s.Nodes, func(n wire.NodeState) bool { return n.ID != owner })
	c.signal(s.Nodes[i].ID, syscall.SIGKILL)
}

// TestCutContexts: a context under full that fits no node is kept cut, and requests share it. Every token and
// log-probability equals that of one node without a context, on four nodes of which two are killed, the second as
// the owner of most requests.
func TestCutContexts(t *testing.T) {
	testlevel.NeedLong(t)
	if drafting() != "" {
		t.Skip("cut sequences have no drafts")
	}
	parallel(t)
	text := ids(rand.New(rand.NewPCG(46, 1)), 700)
	var asked, plain []request
	for i := range 6 {
		question := ids(rand.New(rand.NewPCG(47, uint64(i))), 12+9*i)
		b := map[string]any{"max_tokens": 90, "stream": true, "logprobs": 3, "return_tokens_as_token_ids": true, "ignore_eos": true,
			"skip_special_tokens": false, "temperature": 0.7, "seed": i, "stream_options": map[string]any{"include_usage": true}}
		whole := maps.Clone(b)
		b["prompt"], b["context"], whole["prompt"] = question, "book", append(slices.Clone(text), question...)
		asked = append(asked, request{fmt.Sprint("question ", i), "/v1/completions", b})
		plain = append(plain, request{fmt.Sprint("question ", i), "/v1/completions", whole})
	}
	want, _ := up(t, 1).open(plain).wait(t)
	c := up(t, 4, "--kv-memory", "6MiB", "--data-dir", t.TempDir())
	c.want(400, "POST", "/v1/contexts", map[string]any{"name": "book", "prompt": text, "kv_policy": "quest"})
	c.want(200, "POST", "/v1/contexts", map[string]any{"name": "book", "prompt": text, "kv_policy": "full"})
	a := c.want(200, "POST", "/v1/completions", map[string]any{"prompt": asked[0].body["prompt"], "context": "book", "max_tokens": 1})
	if !strings.Contains(string(a.body), `"cached_tokens":640`) {
		t.Errorf("a request began with other than the 10 full blocks of the context: %s", a.body)
	}
	got, _ := c.open(asked).wait(t)
	same(t, "four nodes", asked, want, got)
	surviveFault(t, c, "kill -9 of a node", asked, want, func() {
		killAnother(t, c)
	})
	c.waitNodes(3, recoverLimit)
	surviveFault(t, c, "kill -9 of an owner", asked, want, func() { c.signal(ownerOf(t, c.state()), syscall.SIGKILL) })
	c.waitNodes(2, recoverLimit)
	got, _ = c.open(asked).wait(t)
	same(t, "two nodes", asked, want, got)
	c.want(200, "DELETE", "/v1/contexts/book", nil)
}
