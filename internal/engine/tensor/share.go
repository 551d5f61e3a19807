package tensor

import (
	"fmt"
	"sync/atomic"
)

// share is the rest of a thread's successive tasks, [lo, hi), and the tag of the Run that dealt
// them: tag<<40 | lo<<20 | hi. A thread takes tasks from the front. So it reads successive weights
// and caches, and uses what it prefetches. An idle thread takes half of what another one has left.
// No word is written by all threads: with many threads, a shared counter would take longer than
// small tasks.
type share struct {
	rest atomic.Uint64
	_    [56]byte
}

const (
	shareBits = 20
	maxTasks  = 1<<shareBits - 1
	tagMask   = 1<<(64-2*shareBits) - 1
)

func packed(tag, lo, hi uint64) uint64 { return tag<<(2*shareBits) | lo<<shareBits | hi }

func unpacked(r uint64) (tag, lo, hi uint64) {
	return r >> (2 * shareBits), r >> shareBits & maxTasks, r & maxTasks
}

// shares are the tasks of a Run, one share per thread.
type shares []share

// split deals n tasks to the threads.
func (s shares) split(tag uint64, n int) {
	if n > maxTasks {
		panic(fmt.Sprintf("tensor: %d tasks at once, at most %d", n, maxTasks))
	}
	for i := range s {
		s[i].rest.Store(packed(tag, uint64(n*i/len(s)), uint64(n*(i+1)/len(s))))
	}
}

// next takes a task of the thread's own share.
func (s shares) next(worker int, tag uint64) (task int, ok bool) {
	own := &s[worker].rest
	for {
		r := own.Load()
		of, lo, hi := unpacked(r)
		if of != tag || lo == hi {
			return 0, false
		}
		if own.CompareAndSwap(r, packed(tag, lo+1, hi)) {
			return int(lo), true
		}
	}
}

// steal takes a task from another share, and moves the tasks after it to the thread's own share,
// which is empty. Only its own thread adds to a share, unless a later Run has dealt new tasks,
// which a late thread does not know. Tasks that a third thread holds at the moment are not found.
func (s shares) steal(worker int, tag uint64) (task int, ok bool) {
	own := s[worker].rest.Load()
	if of, _, _ := unpacked(own); of != tag {
		return 0, false
	}
	for i := range len(s) - 1 {
		other := &s[(worker+1+i)%len(s)].rest
		for {
			r := other.Load()
			of, lo, hi := unpacked(r)
			if of != tag || lo == hi {
				break
			}
			mid := lo + (hi-lo)/2
			if other.CompareAndSwap(r, packed(tag, lo, mid)) {
				s[worker].rest.CompareAndSwap(own, packed(tag, mid+1, hi))
				return int(mid), true
			}
		}
	}
	return 0, false
}
