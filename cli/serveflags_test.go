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
		said  bool
	}{
		{0, 4, 0, gib, false},          // nobody knows
		{0, 4, 64 * gib, gib, false},   // plenty
		{0, 4, 2 * gib, gib / 4, true}, // a small container
		{0, 1, 2 * gib, gib, false},
		{0, 64, gib, 16 << 20, true}, // nothing runs with less
		{3 * gib, 4, 64 * gib, 3 * gib, false},
		{3 * gib, 4, 2 * gib, 3 * gib, true}, // as said, with a word
		{3 * gib, 4, 8 * gib, 3 * gib, true}, // each fits, all do not
		{3 * gib, 4, 0, 3 * gib, false},
	} {
		f := nodeFlags{KVMemory: x.flag}
		if got, why := f.kvBytes(x.nodes, x.limit, "this container"); got != x.want || (why != "") != x.said {
			t.Errorf("%d nodes in %d, asked for %d: %d, %q; want %d", x.nodes, x.limit, x.flag, got, why, x.want)
		}
	}
}
