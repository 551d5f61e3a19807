package layer

import (
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// TestSplitCoversAllRuns checks that the pieces cover all runs of all rows exactly once with any number
// of threads, and that there are enough to keep the threads busy.
func TestSplitCoversAllRuns(t *testing.T) {
	for threads := 1; threads < 40; threads += 3 {
		for _, counts := range [][]int{{}, {1}, {2}, {128}, {7, 1, 90}, {40, 40, 40, 40}} {
			var l longRows
			all := 0
			for _, n := range counts {
				l.add(attendTask{}).count = n
				all += n
			}
			l.split(threads)
			seen := map[*longRow]int{}
			for _, p := range l.pieces {
				if p.lo != seen[p.row] || p.hi <= p.lo {
					t.Fatalf("%d threads, runs %v: piece [%d,%d) follows run %d", threads, counts, p.lo, p.hi, seen[p.row])
				}
				seen[p.row] = p.hi
			}
			for _, r := range l.rows[:l.n] {
				if seen[r] != r.count {
					t.Fatalf("%d threads, runs %v: %d of %d runs", threads, counts, seen[r], r.count)
				}
			}
			if len(l.pieces) < min(all, threads) {
				t.Fatalf("%d threads, runs %v: %d pieces are too few or too many", threads, counts, len(l.pieces))
			}
			l.reset()
		}
	}
}

// TestWorthSplitting checks that tasks are not split if they fill the threads or have a single run.
func TestWorthSplitting(t *testing.T) {
	for _, c := range []struct {
		blocks, all, threads int
		want                 bool
	}{
		{500, 8 * 500, 32, true}, {500, 8 * 500, 9, true}, {500, 8 * 500, 8, false}, {500, 500, 1, false},
		{16, 16, 32, false}, {17, 17, 2, true},
		{2000, 2000 + 100*16, 2, true}, {500, 64 * 500, 32, false}, // one long task among many short ones; many long tasks
	} {
		if got := worthSplitting(c.blocks, c.all, c.threads); got != c.want {
			t.Errorf("%d blocks of %d, %d threads: %v", c.blocks, c.all, c.threads, got)
		}
	}
}

// TestMayBeLong checks that a decode row, or the only row of a prompt, may be split if it has more tokens than a
// run of slots, and no other row.
func TestMayBeLong(t *testing.T) {
	const run = tensor.RunBlocks * tensor.BlockSlots
	for _, c := range []struct {
		segment Segment
		want    bool
	}{
		{Segment{Start: run - 1, N: 1}, false}, {Segment{Start: run, N: 1}, true}, {Segment{Start: run - 1, N: 2}, true},
		{Segment{Start: run, N: 9, Prefill: true}, false}, {Segment{Start: run, N: 1, Prefill: true}, true},
	} {
		if got := mayBeLong([]Segment{{N: 1}, c.segment}); got != c.want {
			t.Errorf("from %d on, %d tokens, prompt %v: %v", c.segment.Start, c.segment.N, c.segment.Prefill, got)
		}
	}
}
