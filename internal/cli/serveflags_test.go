package cli

import "testing"

// TestKVBytes: the default never takes more than half of what there is.
func TestKVBytes(t *testing.T) {
	const gib = 1 << 30
	for _, x := range []struct {
		flag  size
		nodes int
		limit int64
		want  int64
		less  bool
		fails bool
	}{
		{0, 4, 0, gib, false, false},          // nobody knows
		{0, 4, 64 * gib, gib, false, false},   // plenty
		{0, 4, 2 * gib, gib / 4, true, false}, // a small container
		{0, 1, 2 * gib, gib, false, false},
		{0, 64, gib, 16 << 20, true, false}, // nothing runs with less
		{3 * gib, 4, 64 * gib, 3 * gib, false, false},
		{3 * gib, 4, 2 * gib, 3 * gib, false, true}, // more than there is
		{3 * gib, 4, 8 * gib, 3 * gib, false, true}, // each fits, all do not
		{3 * gib, 4, 0, 3 * gib, false, false},
	} {
		f := nodeFlags{KVMemory: x.flag}
		got, less, err := f.kvBytes(x.nodes, x.limit, "this container")
		if got != x.want || less != x.less || (err != nil) != x.fails {
			t.Errorf("%d nodes in %d, asked for %d: %d, %v, %v; want %d", x.nodes, x.limit, x.flag, got, less, err, x.want)
		}
	}
}
