package tensor

import (
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
	"github.com/shoal-llm/shoal/internal/engine/tensor/workers"
)

// Pool is a set of worker goroutines for the kernels. One Run is in progress at a time; concurrent
// callers wait. A task must not call the pool.
type Pool struct {
	mu      sync.Mutex // held by the Run in progress
	workers []*worker
	use     atomic.Int32 // threads that take part in a Run; changes only between Runs
	stopped bool
	exited  sync.WaitGroup

	task       func(worker, i int) // of the current Run; read only by a thread that holds one of its tasks
	user       func(int)
	own        func(worker, i int) // calls user; allocated once
	mat        matmul              // the current matrix product, guarded by mu
	heads      headsWork           // the current product of heads, guarded by mu
	shares     workers.Shares      // of the current Run
	backups    backups             // backup tasks of the current Run
	watch      workers.Stopwatch
	contention workers.Contention // of the caller's thread

	_     [64]byte
	run   atomic.Uint64 // number of the current or the last Run
	over  atomic.Uint64 // number of the last Run that has ended
	_     [48]byte
	left  atomic.Uint64 // of the current Run: number<<workers.ShareBits | tasks not reported as done
	_     [56]byte
	wait  atomic.Bool   // the caller is parked on ready
	ready chan struct{} // capacity 1
	stop  atomic.Bool
}

type worker struct {
	busy       atomic.Uint64 // the Run that it works for, or 0
	_          [56]byte
	parked     atomic.Bool
	wake       chan struct{} // capacity 1
	contention workers.Contention
	_          [64]byte
}

// NewPool starts a pool with a number of threads; the caller of Run is one of them. threads < 1
// means GOMAXPROCS. Close stops it.
func NewPool(threads int) *Pool {
	if threads < 1 {
		threads = runtime.GOMAXPROCS(0)
	}
	p := &Pool{ready: make(chan struct{}, 1)}
	p.own = func(_, i int) { p.user(i) }
	p.mat.init(threads)
	p.shares = make(workers.Shares, threads)
	p.watch.Init(threads)
	p.use.Store(int32(threads))
	workers.Spinning.Add(int32(threads - 1))
	workers.MaxProcs.Store(int32(runtime.GOMAXPROCS(0)))
	for id := 1; id < threads; id++ {
		w := &worker{wake: make(chan struct{}, 1)}
		p.workers = append(p.workers, w)
		p.exited.Add(1)
		go p.serve(w, id)
	}
	register(p)
	return p
}

// Threads returns the number of threads that take part in a Run, the caller included.
func (p *Pool) Threads() int { return int(p.use.Load()) }

// SetThreads sets the number of the pool's threads that take part in Runs, from one to all of them. The
// other threads park at once, so they do not occupy CPUs that others may need.
func (p *Pool) SetThreads(threads int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	threads = max(1, min(threads, len(p.workers)+1))
	p.use.Store(int32(threads))
	workers.MaxProcs.Store(int32(runtime.GOMAXPROCS(0)))
	for i := threads; i < len(p.shares); i++ {
		p.shares[i].Rest.Store(0) // late threads have no share of later Runs
	}
}

// Close stops the workers and waits for them. It may be called twice. A Run after Close does all
// its work on the caller.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return
	}
	p.stopped = true
	unregister(p)
	p.stop.Store(true)
	for _, w := range p.workers {
		w.wakeUp()
	}
	p.exited.Wait()
	p.mat = matmul{}
	p.mat.init(1)
	p.shares = make(workers.Shares, 1)
	p.workers = nil
	p.use.Store(1)
}

// Run calls f(0), ..., f(n-1) on the pool's threads and returns when all calls have returned. Each
// thread takes successive tasks, but the order is not guaranteed. f must not call the pool.
func (p *Pool) Run(n int, f func(i int)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.user = f
	p.dispatch(n, p.own)
	p.user = nil
}

// dispatch is Run for a task that gets its thread's number. p.mu is held.
func (p *Pool) dispatch(n int, task func(worker, i int)) {
	if p.Threads() == 1 || n <= 1 {
		for i := range n {
			task(0, i)
		}
		return
	}
	p.backups.enabled = false
	p.share(n, task)
}

// share is dispatch for a Run of several tasks. task is nil for a product whose tasks may be
// repeated: see attempt.
func (p *Pool) share(n int, task func(worker, i int)) {
	number := p.run.Load() + 1
	p.task = task
	p.left.Store(number<<workers.ShareBits | uint64(n))
	p.shares[:p.Threads()].Split(number&workers.TagMask, n)
	p.watch.Start(number)
	p.backups.begin(n)
	p.run.Store(number)
	p.work(0, number)
	p.await(number)
	p.over.Store(number)
	p.watch.Stop(number, p.Threads())
	p.task = nil
}

// work does tasks of a Run until none is left, the thread's own share first. It reports the number
// of finished tasks when the share is empty, not task by task. A task that is held and not reported
// keeps its Run waiting, unless it may be repeated: then the Run may be over.
func (p *Pool) work(id int, number uint64) {
	for child := 2 * id; child < min(2*id+2, p.Threads()-1); child++ {
		p.workers[child].wakeUp()
	}
	tag, deal := number&workers.TagMask, p.shares[:max(id+1, p.Threads())]
	for i, ok := deal.Next(id, tag); ; i, ok = deal.Next(id, tag) {
		if !ok {
			i, ok = deal.Steal(id, tag)
		}
		if !ok {
			return
		}
		task := p.task
		if p.over.Load() >= number {
			return
		}
		p.watch.Enter(id, number)
		done := 0
		for ; ok; i, ok = deal.Next(id, tag) {
			if task == nil {
				if p.attempt(id, i, number, false) {
					done++
				}
				continue
			}
			task(id, i)
			done++
		}
		p.watch.Leave(id)
		if p.report(number, done, task == nil) && id != 0 && p.wait.Load() {
			select {
			case p.ready <- struct{}{}:
			default:
			}
		}
	}
}

// report counts a thread's finished tasks and reports whether those were all. For tasks that may be
// repeated it counts nothing if the Run is over.
func (p *Pool) report(number uint64, done int, twice bool) bool {
	if !twice {
		return p.left.Add(-uint64(done))&workers.MaxTasks == 0
	}
	for {
		left := p.left.Load()
		if left>>workers.ShareBits != number {
			return false
		}
		if p.left.CompareAndSwap(left, left-uint64(done)) {
			return (left-uint64(done))&workers.MaxTasks == 0
		}
	}
}

// wakeUp wakes a parked worker. Each thread wakes two others, because waking one takes
// microseconds.
func (w *worker) wakeUp() {
	if w.parked.Load() && w.parked.CompareAndSwap(true, false) {
		w.wake <- struct{}{}
	}
}

// await returns when all tasks are done. It spins, yields, repeats the tasks of late threads, or
// parks.
func (p *Pool) await(number uint64) {
	for s := workers.NewSpinner(&p.contention); ; {
		for range workers.SpinCheck {
			if p.left.Load()&workers.MaxTasks == 0 {
				return
			}
			kernel.Pause()
		}
		more := s.Relax(true)
		if p.backups.enabled {
			if p.backups.due(s.Began, p.Threads()) {
				p.backup(number)
				return
			}
			continue
		}
		if !more {
			break
		}
	}
	p.wait.Store(true)
	for p.left.Load()&workers.MaxTasks != 0 {
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
	defer workers.Spinning.Add(-1)
	for seen := uint64(0); ; {
		if number := p.run.Load(); number != seen {
			if id < p.Threads() {
				w.busy.Store(number)
				p.work(id, number)
				w.busy.Store(0)
			}
			seen = number
			continue
		}
		if id < p.Threads() && p.spin(w, id, seen) {
			continue
		}
		w.parked.Store(true)
		if (p.run.Load() != seen || p.stop.Load()) && w.parked.CompareAndSwap(true, false) {
			if p.stop.Load() {
				return
			}
			continue
		}
		workers.Spinning.Add(-1)
		<-w.wake
		workers.Spinning.Add(1)
		if p.stop.Load() {
			return
		}
	}
}

// spin waits a while for a Run after the one that was seen, see workers.Spinner.
func (p *Pool) spin(w *worker, id int, seen uint64) bool {
	for s := workers.NewSpinner(&w.contention); ; {
		for range workers.SpinCheck {
			if p.run.Load() != seen {
				return true
			}
			kernel.Pause()
		}
		if id >= p.Threads() || !s.Relax(p.left.Load()&workers.MaxTasks != 0) {
			return false
		}
	}
}

// Spent returns how the pool's threads spent their time since its start.
func (p *Pool) Spent() workers.Spent {
	s := p.watch.Spent()
	s.Again = p.backups.repeated.Load()
	return s
}
