package cli

import (
	"runtime"
	"testing"
)

// Nodes of one machine share its processors out, and leave one each where they have several.
func TestSharedThreads(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, c := range []struct{ processors, nodes, want int }{
		{16, 1, 16}, {16, 2, 7}, {16, 4, 3}, {16, 5, 3}, {16, 8, 2}, {16, 16, 1}, {16, 40, 1}, {2, 1, 2}, {2, 2, 1}, {2, 4, 1}, {4, 1, 4}, {8, 2, 3}, {12, 4, 3},
	} {
		runtime.GOMAXPROCS(c.processors)
		if got := sharedThreads(c.nodes); got != c.want {
			t.Errorf("%d nodes on %d processors have %d threads each, want %d", c.nodes, c.processors, got, c.want)
		}
	}
}
