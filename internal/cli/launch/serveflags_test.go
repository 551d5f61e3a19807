package launch

import (
	"testing"

	"github.com/shoal-llm/shoal/cluster"
)

// TestKVBytes checks that the default uses at most half of the memory.
func TestKVBytes(t *testing.T) {
	const gib = 1 << 30
	for _, x := range []struct {
		flag  int64
		nodes int
		limit int64
		want  int64
		less  bool
		fails bool
	}{
		{0, 4, 0, gib, false, false},          // the limit is unknown
		{0, 4, 64 * gib, gib, false, false},   // enough memory
		{0, 4, 2 * gib, gib / 4, true, false}, // a small container
		{0, 1, 2 * gib, gib, false, false},
		{0, 64, gib, 16 << 20, true, false}, // the minimum
		{3 * gib, 4, 64 * gib, 3 * gib, false, false},
		{3 * gib, 4, 2 * gib, 3 * gib, false, true}, // more than the limit
		{3 * gib, 4, 8 * gib, 3 * gib, false, true}, // one node fits, four do not
		{3 * gib, 4, 0, 3 * gib, false, false},
	} {
		f := NodeFlags{cluster.Resources{KVMemory: x.flag}}
		got, less, err := f.kvBytes(x.nodes, x.limit, "this container")
		if got != x.want || less != x.less || (err != nil) != x.fails {
			t.Errorf("%d nodes in %d, asked for %d: %d, %v, %v; want %d", x.nodes, x.limit, x.flag, got, less, err, x.want)
		}
	}
}
