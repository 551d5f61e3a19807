package tensor

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// How long an idle worker looks for work before it parks, and a caller for the
// last worker. Matrix products of one step follow each other within microseconds,
// and a parked worker takes tens of them to wake; but several node processes may
// share these cores, so the spin stays short and ends in a yield to the system.
const (
	spinFor   = 30 * time.Microsecond
	spinCheck = 64 // looks between two readings of the clock
)

// Pool is a set of worker goroutines for the kernels. One Run is in progress at a
// time; concurrent callers wait for each other. A task must not call the pool.
type Pool struct {
	mu      sync.Mutex // held by the Run in progress
	workers []*worker
	stopped bool
	exited  sync.WaitGroup

	task  func(worker, i int) // of the current Run; read only by who holds a claim
	user  func(int)
	own   func(worker, i int) // calls user; made once so that Run allocates nothing
	mat   matmul              // the current matrix product, guarded by mu
	heads headsWork           // the current product of heads, guarded by mu
	deal  shares              // of the current Run

	_     [64]byte
	claim atomic.Uint64 // n<<32 | next: of n tasks, `next` are claimed
	_     [56]byte
	done  atomic.Int64 // finished tasks of the current Run
	_     [56]byte
	wait  atomic.Bool   // the caller is parked on ready
	ready chan struct{} // capacity 1
	stop  atomic.Bool
}

type worker struct {
	parked atomic.Bool
	wake   chan struct{} // capacity 1
	_      [48]byte
}

// NewPool starts a pool of `threads` threads, the caller of Run being one of them.
// threads < 1 means as many as Go may run at once. Close stops it.
func NewPool(threads int) *Pool {
	if threads < 1 {
		threads = runtime.GOMAXPROCS(0)
	}
	p := &Pool{ready: make(chan struct{}, 1)}
	p.own = func(_, i int) { p.user(i) }
	p.mat.init(threads)
	p.deal = make(shares, threads)
	for id := 1; id < threads; id++ {
		w := &worker{wake: make(chan struct{}, 1)}
		p.workers = append(p.workers, w)
		p.exited.Add(1)
		go p.serve(w, id)
	}
	return p
}

// Threads is the number of threads that take part in a Run, the caller included.
func (p *Pool) Threads() int { return len(p.workers) + 1 }

// Close stops the workers and waits for them. Closing twice is safe; a Run after
// Close does all its work on the caller.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return
	}
	p.stopped = true
	p.stop.Store(true)
	p.wakeAll()
	p.exited.Wait()
	p.mat = matmul{}
	p.mat.init(1)
	p.deal = make(shares, 1)
	p.workers = nil
}

// Run calls f(0), ..., f(n-1) on the pool's threads and returns when all calls have
// returned. Each thread takes tasks that follow each other, but that order is not
// promised. f must not call the pool.
func (p *Pool) Run(n int, f func(i int)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.user = f
	p.run(n, p.own)
	p.user = nil
}

// run is Run for a task that wants to know which thread it is on; p.mu is held.
func (p *Pool) run(n int, task func(worker, i int)) {
	if len(p.workers) == 0 || n <= 1 {
		for i := range n {
			task(0, i)
		}
		return
	}
	p.task = task
	p.deal.split(n)
	p.done.Store(0)
	p.claim.Store(uint64(n) << 32)
	p.wakeAll()
	for p.step(0) {
	}
	p.await(int64(n))
	p.task = nil
}

// step claims one task and runs it: of the thread's own share while that lasts. The
// claim is a compare-and-swap on the counter that also holds n, so that p.task and
// p.deal are only read while their Run is still waiting.
func (p *Pool) step(id int) bool {
	for {
		c := p.claim.Load()
		n, next := c>>32, c&0xffffffff
		if next >= n {
			return false
		}
		if p.claim.CompareAndSwap(c, c+1) {
			p.task(id, p.deal.claim(id))
			if p.done.Add(1) == int64(n) && id != 0 && p.wait.Load() {
				select {
				case p.ready <- struct{}{}:
				default:
				}
			}
			return true
		}
	}
}

func (p *Pool) free() bool {
	c := p.claim.Load()
	return c&0xffffffff < c>>32
}

func (p *Pool) wakeAll() {
	for _, w := range p.workers {
		if w.parked.Load() && w.parked.CompareAndSwap(true, false) {
			w.wake <- struct{}{}
		}
	}
}

// await returns when all n tasks are done: it spins, yields, then parks.
func (p *Pool) await(n int64) {
	for start := time.Now(); ; {
		for range spinCheck {
			if p.done.Load() == n {
				return
			}
			pause()
		}
		if time.Since(start) > spinFor {
			break
		}
	}
	p.wait.Store(true)
	for p.done.Load() != n {
		<-p.ready
	}
	p.wait.Store(false)
	select {
	case <-p.ready:
	default:
	}
}

func (p *Pool) serve(w *worker, id int) {
	defer p.exited.Done()
	for {
		for p.step(id) {
		}
		if p.spin() {
			continue
		}
		w.parked.Store(true)
		if (p.free() || p.stop.Load()) && w.parked.CompareAndSwap(true, false) {
			if p.stop.Load() {
				return
			}
			continue
		}
		<-w.wake
		if p.stop.Load() {
			return
		}
	}
}

// spin looks for work for a short while, then once more after a yield.
func (p *Pool) spin() bool {
	for start := time.Now(); time.Since(start) < spinFor; {
		for range spinCheck {
			if p.free() {
				return true
			}
			pause()
		}
	}
	runtime.Gosched()
	return p.free()
}
