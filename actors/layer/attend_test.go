package layer

import "testing"

// TestSplitReads checks that each query of a prompt belongs to exactly one task, and that consecutive
// tasks balance: with any number of threads, none exceeds its share by more than two tasks.
func TestSplitReads(t *testing.T) {
	for _, n := range []int{1, 11, 12, 13, 128, 500, 512} {
		for _, queries := range []int{1, 6, 12, 48} {
			reads := splitReads(nil, attendTask{s: &Segment{N: n}, head: 3}, queries)
			seen, all := make([]int, n), 0
			for _, r := range reads {
				if r.head != 3 || r.n < 1 || r.n > queries {
					t.Fatalf("%d tokens by %d: task %+v", n, queries, r)
				}
				for i := range r.n {
					seen[r.first+i]++
					all += r.first + i + 1
				}
			}
			for i, times := range seen {
				if times != 1 {
					t.Fatalf("%d tokens by %d: token %d is in %d tasks", n, queries, i, times)
				}
			}
			for threads := 2; threads < 20 && threads*2 <= len(reads); threads++ {
				for thread := range threads {
					keys := 0
					for _, r := range reads[len(reads)*thread/threads : len(reads)*(thread+1)/threads] {
						keys += r.n*r.first + r.n*(r.n+1)/2
					}
					if most := all/threads + 2*n*queries; keys > most {
						t.Errorf("%d tokens by %d: one of %d threads reads %d keys of %d", n, queries, threads, keys, all)
					}
				}
			}
		}
	}
}

// TestSplitWrites checks that the tasks that write a prompt's rows follow each other, one per block,
// if several threads may write.
func TestSplitWrites(t *testing.T) {
	for _, c := range []struct {
		start, n int
		want     []int
	}{{0, 512, []int{0, 64, 128, 192, 256, 320, 384, 448}}, {0, 7, []int{0}}, {60, 70, []int{0, 4, 68}}, {64, 64, []int{0}}} {
		for _, apart := range []bool{true, false} {
			s := &Segment{N: c.n, Start: c.start, Cache: cacheWithParallelWrite{may: apart}}
			puts, end := splitWrites(nil, attendTask{s: s, head: 2, n: c.n, cache: 1, unit: 2}), 0
			for i, p := range puts {
				if p.first != end || p.head != 2 || apart && p.first != c.want[i] {
					t.Errorf("%d tokens from %d on, apart %v: task %d is %+v", c.n, c.start, apart, i, p)
				}
				end += p.n
			}
			if want := len(c.want); end != c.n || apart && len(puts) != want || !apart && len(puts) != 1 {
				t.Errorf("%d tokens from %d on, apart %v: %d tasks up to %d", c.n, c.start, apart, len(puts), end)
			}
		}
	}
}

// cacheWithParallelWrite is a cache that allows or refuses parallel writes.
type cacheWithParallelWrite struct {
	PromptCache
	may bool
}

func (a cacheWithParallelWrite) ParallelWrite(int, int, int, int) bool { return a.may }
