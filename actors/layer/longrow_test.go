package layer

import "testing"

// TestCutIsWhole: the pieces are all runs of all rows, each once, whatever the threads; and
// they are enough to occupy them.
func TestCutIsWhole(t *testing.T) {
	for threads := 1; threads < 40; threads += 3 {
		for _, counts := range [][]int{{}, {1}, {2}, {128}, {7, 1, 90}, {40, 40, 40, 40}} {
			var l longRows
			all := 0
			for _, n := range counts {
				l.add(attendTask{}).count = n
				all += n
			}
			l.cut(threads)
			seen := map[*longRow]int{}
			for _, p := range l.pieces {
				if p.lo != seen[p.row] || p.hi <= p.lo {
					t.Fatalf("%d threads, runs %v: a piece [%d,%d) behind run %d", threads, counts, p.lo, p.hi, seen[p.row])
				}
				seen[p.row] = p.hi
			}
			for _, r := range l.rows[:l.n] {
				if seen[r] != r.count {
					t.Fatalf("%d threads, runs %v: %d of %d runs", threads, counts, seen[r], r.count)
				}
			}
			if len(l.pieces) < min(all, threads) {
				t.Fatalf("%d threads, runs %v: %d pieces", threads, counts, len(l.pieces))
			}
			l.reset()
		}
	}
}

// TestWorthCutting: tasks that fill the threads stay whole, and so does a single run.
func TestWorthCutting(t *testing.T) {
	for _, c := range []struct {
		blocks, all, threads int
		want                 bool
	}{
		{500, 8 * 500, 32, true}, {500, 8 * 500, 9, true}, {500, 8 * 500, 8, false}, {500, 500, 1, false},
		{16, 16, 32, false}, {17, 17, 2, true},
		{2000, 2000 + 100*16, 2, true}, {500, 64 * 500, 32, false}, // one long beside many short; many long
	} {
		if got := worthCutting(c.blocks, c.all, c.threads); got != c.want {
			t.Errorf("%d blocks of %d, %d threads: %v", c.blocks, c.all, c.threads, got)
		}
	}
}
