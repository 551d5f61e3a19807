package tensor

import "sync/atomic"

// share is a run of successive tasks, lo<<32 | hi, of one thread, which takes them from
// the front. So each thread reads weights that follow each other, and what it
// prefetches it also multiplies. Whoever is done takes half of what another has left.
type share struct {
	rest atomic.Uint64
	_    [56]byte
}

func packed(lo, hi uint64) uint64 { return lo<<32 | hi }

// split deals n tasks to the threads.
func (m *matmul) split(n int) {
	for i := range m.shares {
		m.shares[i].rest.Store(packed(uint64(n*i/len(m.shares)), uint64(n*(i+1)/len(m.shares))))
	}
}

// claim takes a task. It is called once for each, so there is one to be had, be it
// between two shares for a moment. Only its thread adds to a share, and only to an
// empty one. A run of tasks never comes back to a share in the
// same product, which makes the exchanges safe.
func (m *matmul) claim(worker int) int {
	own := &m.shares[worker].rest
	for {
		for r := own.Load(); r>>32 != r&0xffffffff; r = own.Load() {
			if own.CompareAndSwap(r, r+1<<32) {
				return int(r >> 32)
			}
		}
		for i := range m.shares {
			other := &m.shares[(worker+1+i)%len(m.shares)].rest
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
