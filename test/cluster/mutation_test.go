package cluster_test

import (
	"testing"

	"github.com/shoal-llm/shoal/internal/testlevel"
)

// TestMutationIsCaught shows that the same-bits comparison can fail. A binary with -tags mutation
// (collective/mutation_enabled.go) sums the parts of a reduction from left to right instead of along
// the canonical tree. On one node that changes nothing; on three the answers must differ.
func TestMutationIsCaught(t *testing.T) {
	testlevel.NeedLong(t)
	if testing.Short() {
		t.Skip("builds another binary")
	}
	parallel(t)
	var reqs []request
	answers := func(nodes int) []string {
		c := start(t, config{nodes: nodes, tags: "mutation", args: []string{"--mapping", "reduce"}})
		if reqs == nil {
			reqs = mixed(c.chats())[2:14]
		}
		return c.send(t, reqs, 4)
	}
	want := answers(1)
	n := compare(t.Logf, "mutated", reqs, want, answers(3))
	if n < len(reqs)/2 {
		t.Errorf("sums in another order changed only %d of %d answers: the comparison does not detect it", n, len(reqs))
	}
}
