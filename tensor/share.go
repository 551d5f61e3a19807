package tensor

import "sync/atomic"

// share is a run of successive tasks, lo<<32 | hi, of one thread, which takes them from
// the front. So each thread reads weights, and caches, that follow each other, and what
// it prefetches it also uses. Whoever is done takes half of what another has left.
type share struct {
	rest atomic.Uint64
	_    [56]byte
}

func packed(lo, hi uint64) uint64 { return lo<<32 | hi }

// shares are the tasks of a Run, a share a thread.
type shares []share

// split deals n tasks to the threads.
func (s shares) split(n int) {
	for i := range s {
		s[i].rest.Store(packed(uint64(n*i/len(s)), uint64(n*(i+1)/len(s))))
	}
}

// claim takes a task. It is called once for each, so there is one to be had, be it
// between two shares for a moment. Only its thread adds to a share, and only to an
// empty one. A run of tasks never comes back to a share in the
// same Run, which makes the exchanges safe.
func (s shares) claim(worker int) int {
	own := &s[worker].rest
	for {
		for r := own.Load(); r>>32 != r&0xffffffff; r = own.Load() {
			if own.CompareAndSwap(r, r+1<<32) {
				return int(r >> 32)
			}
		}
		for i := range s {
			other := &s[(worker+1+i)%len(s)].rest
			r := other.Load()
			lo, hi := r>>32, r&0xffffffff
			mid := lo + (hi-lo)/2
			if lo != hi && other.CompareAndSwap(r, packed(lo, mid)) {
				own.Store(packed(mid+1, hi))
				return int(mid)
			}
		}
	}
}
