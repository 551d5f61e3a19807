package workers

import (
	"fmt"
	"sync/atomic"
)

// Share is the rest of a thread's successive tasks, [lo, hi), and the tag of the Run that dealt
// them: tag<<40 | lo<<20 | hi. A thread takes tasks from the front. So it reads successive weights
// and caches, and uses the prefetched data. An idle thread takes half of another thread's rest. No word
// is written by all threads: with many threads, a shared counter would take longer than small tasks.
type Share struct {
	Rest atomic.Uint64
	_    [56]byte
}

const (
	ShareBits = 20
	MaxTasks  = 1<<ShareBits - 1
	TagMask   = 1<<(64-2*ShareBits) - 1
)

// Packed encodes a share as one word.
func Packed(tag, lo, hi uint64) uint64 { return tag<<(2*ShareBits) | lo<<ShareBits | hi }

func unpacked(r uint64) (tag, lo, hi uint64) {
	return r >> (2 * ShareBits), r >> ShareBits & MaxTasks, r & MaxTasks
}

// Shares are the tasks of a Run, one share per thread.
type Shares []Share

// Split deals n tasks to the threads.
func (s Shares) Split(tag uint64, n int) {
	if n > MaxTasks {
		panic(fmt.Sprintf("workers: %d tasks at once, at most %d", n, MaxTasks))
	}
	for i := range s {
		s[i].Rest.Store(Packed(tag, uint64(n*i/len(s)), uint64(n*(i+1)/len(s))))
	}
}

// Next takes a task of the thread's own share.
func (s Shares) Next(worker int, tag uint64) (task int, ok bool) {
	own := &s[worker].Rest
	for {
		r := own.Load()
		of, lo, hi := unpacked(r)
		if of != tag || lo == hi {
			return 0, false
		}
		if own.CompareAndSwap(r, Packed(tag, lo+1, hi)) {
			return int(lo), true
		}
	}
}

// Steal takes a task from another share, and moves the tasks after it to the thread's own share,
// which is empty. Only its own thread adds to a share, except when a later Run has dealt new tasks; a
// late thread does not have its tag. Tasks that a third thread holds at the moment are not found.
func (s Shares) Steal(worker int, tag uint64) (task int, ok bool) {
	own := s[worker].Rest.Load()
	if of, _, _ := unpacked(own); of != tag {
		return 0, false
	}
	for i := range len(s) - 1 {
		other := &s[(worker+1+i)%len(s)].Rest
		for {
			r := other.Load()
			of, lo, hi := unpacked(r)
			if of != tag || lo == hi {
				break
			}
			mid := lo + (hi-lo)/2
			if other.CompareAndSwap(r, Packed(tag, lo, mid)) {
				s[worker].Rest.CompareAndSwap(own, Packed(tag, mid+1, hi))
				return int(mid), true
			}
		}
	}
	return 0, false
}
