package coordinator

import (
	"testing"

	"github.com/shoal-llm/shoal/topology"
)

// Two micro-batches need two nodes, all of which support them.
func TestMaxMicroBatches(t *testing.T) {
	for name, c := range map[string]struct {
		nodes []topology.Node
		want  int
	}{
		"alone":        {make([]topology.Node, 1), 1},
		"several":      {make([]topology.Node, 3), 2},
		"new builds":   {[]topology.Node{{Wire: 8}, {Wire: 9}}, 2},
		"an old build": {[]topology.Node{{Wire: 8}, {Wire: 7}}, 1},
		"a card":       {[]topology.Node{{}, {Device: "cuda:0 of a test"}}, 1},
	} {
		if got := (&Group{Nodes: c.nodes}).MaxMicroBatches(); got != c.want {
			t.Errorf("%s: %d micro-batches, want %d", name, got, c.want)
		}
	}
}
