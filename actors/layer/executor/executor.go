// Package executor runs the jobs of a socket one at a time, and polls for an exchange while it has none.
package executor

import (
	"sync"
	"sync/atomic"

	"github.com/shoal-llm/shoal/internal/engine/tensor/workers"
)

// Executor runs the jobs of a socket one at a time on its own goroutine, so that no actor computes
// in its handler. Submit never blocks, because a job may submit the next one. The callers bound the
// queue: one job per batch and, between steps, the commands for which a coordinator waits.
type Executor struct {
	mu        sync.Mutex
	queued    sync.Cond // signals that a job is queued
	jobs      []job
	head      int  // index of the first queued job
	closed    bool // closed: new jobs are dropped
	done      chan struct{}
	submitted atomic.Uint64 // jobs submitted
	completed atomic.Uint64 // jobs completed

	waiter  workers.Waiter
	awaited Listener // to poll before the next sleep, or nil
	active  Listener // to call Rest on before the next sleep, or nil
}

// Listener is polled by the executor while it waits for an exchange. collective.Group implements it.
type Listener interface {
	Hold()      // operations that begin now are sent and received by the next Poll
	Poll() bool // sends and receives; false: other goroutines do that, no Poll is needed
	Rest()      // announces that no Poll will follow for a while
}

// Progress returns the number of completed jobs and whether a job is running or queued. A socket
// that is not busy during a step waits for others. A busy socket without progress hangs.
func (e *Executor) Progress() (done uint64, busy bool) {
	done = e.completed.Load()
	return done, e.submitted.Load() > done
}

// New starts the goroutine. Close stops it after the queued jobs.
func New() *Executor {
	e := &Executor{done: make(chan struct{})}
	e.queued.L = &e.mu
	go func() {
		defer close(e.done)
		for j, ok := e.next(); ok; j, ok = e.next() {
			e.awaited = nil
			e.runJob(j)
		}
	}()
	return e
}

// runJob runs a job, unless its term has ended.
func (e *Executor) runJob(j job) {
	if j.term == nil || !j.term.ended {
		j.do()
	}
	e.completed.Add(1)
}

// between runs the queued jobs in the middle of a long job. They count as progress.
func (e *Executor) between() {
	e.submitted.Add(1)
	e.completed.Add(1)
	e.mu.Lock()
	waiting := append([]job(nil), e.jobs[e.head:]...)
	clear(e.jobs[e.head:])
	e.jobs, e.head = e.jobs[:0], 0
	e.mu.Unlock()
	for _, j := range waiting {
		e.runJob(j)
	}
}

// job is a function, with or without a term.
type job struct {
	do   func()
	term *Term
}

// next waits for a job. It returns false after Close, when the queue is empty.
func (e *Executor) next() (job, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for e.head == len(e.jobs) {
		e.jobs, e.head = e.jobs[:0], 0
		if e.closed {
			return job{}, false
		}
		if e.awaited == nil && e.active == nil {
			e.queued.Wait()
			continue
		}
		e.mu.Unlock()
		e.listen()
		e.mu.Lock()
	}
	j := e.jobs[e.head]
	e.jobs[e.head] = job{}
	e.head++
	return j, true
}

// Await begins an exchange. If the executor is then idle, it polls for the end of the exchange for a while
// before it sleeps. It does not poll for a large exchange, as in steps with prompts, because several threads
// send and receive the bytes. Await must be called from a job.
func (e *Executor) Await(large bool, l Listener, begin func()) {
	if large {
		l.Rest()
		begin()
		return
	}
	l.Hold()
	begin()
	if l.Poll() {
		e.awaited, e.active = l, l
	}
}

// listen polls until a job is submitted or the wait times out. If there is nothing to poll, it
// calls Rest.
func (e *Executor) listen() {
	l := e.awaited
	if l == nil {
		e.active.Rest()
		e.active = nil
		return
	}
	e.awaited = nil
	had := e.submitted.Load()
	e.waiter.Wait(func() bool {
		l.Poll()
		return e.submitted.Load() != had
	})
}

// Submit queues a job. After Close it drops the job.
func (e *Executor) Submit(do func()) { e.submit(job{do: do}) }

func (e *Executor) submit(j job) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return
	}
	e.submitted.Add(1)
	if e.head > 0 && len(e.jobs) == cap(e.jobs) { // reuse the space of completed jobs, so that capacity is bounded by the queue's length
		waiting := copy(e.jobs, e.jobs[e.head:])
		clear(e.jobs[waiting:])
		e.jobs, e.head = e.jobs[:waiting], 0
	}
	e.jobs = append(e.jobs, j)
	e.queued.Signal()
}

// Close waits for the queued jobs and ends the goroutine. No job may call it.
func (e *Executor) Close() {
	e.mu.Lock()
	e.closed = true
	e.queued.Signal()
	e.mu.Unlock()
	<-e.done
}

// Term is the time during which an epoch's weights may be read. The message of a teardown reaches a
// layer after its socket, so a layer may submit a job after the one that freed its weights. Therefore
// the term ends on the executor, which drops later jobs of the term.
type Term struct {
	exec  *Executor
	ended bool // used by the executor only
}

func (e *Executor) NewTerm() *Term { return &Term{exec: e} }

func (t *Term) Submit(do func()) { t.exec.submit(job{do, t}) }

// Await is Executor.Await.
func (t *Term) Await(large bool, l Listener, begin func()) { t.exec.Await(large, l, begin) }

// Between runs the queued jobs in the middle of a long job of the term. It reports whether the term is
// still open.
func (t *Term) Between() bool {
	t.exec.between()
	return !t.ended
}

// Ended reports whether End has run. It must be called from a job.
func (t *Term) Ended() bool { return t.ended }

// End queues the last job of the term, which frees the weights.
func (t *Term) End(free func()) {
	t.Submit(func() {
		t.ended = true
		free()
	})
}
