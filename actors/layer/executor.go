package layer

import (
	"sync"
	"sync/atomic"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Executor runs jobs of a socket one after another on a goroutine of its own,
// so that no actor computes in its handler. Submit never blocks, for a job may
// submit the next one. What waits is bounded by those who submit: one job a batch,
// and between steps those of commands, for whose answers a coordinator waits.
type Executor struct {
	mu    sync.Mutex
	some  sync.Cond // a job waits
	jobs  []job
	at    int  // of the first that waits
	over  bool // what comes now is dropped
	done  chan struct{}
	taken atomic.Uint64 // jobs submitted
	ended atomic.Uint64 // of them, done

	waiter tensor.Waiter
	await  Listener // where the next job's cause comes from, or nil
	awake  Listener // that polls, or nil
}

// Listener is where that comes from which the executor waits for: a collective.Group.
type Listener interface {
	Hold()      // what begins now is left to the Poll that follows
	Poll() bool // sends and takes; false: others do, unasked
	Rest()      // nobody polls for a while
}

// Progress is how many jobs have been done, and whether one is in hand. A socket
// that is not busy in a step waits for others; one that is busy and makes no
// progress hangs.
func (e *Executor) Progress() (done uint64, busy bool) {
	done = e.ended.Load()
	return done, e.taken.Load() > done
}

// NewExecutor starts the goroutine; Close stops it after the jobs in hand.
func NewExecutor() *Executor {
	e := &Executor{done: make(chan struct{})}
	e.some.L = &e.mu
	go func() {
		defer close(e.done)
		for j, ok := e.next(); ok; j, ok = e.next() {
			e.await = nil
			e.carryOut(j)
		}
	}()
	return e
}

// carryOut does a job, unless its term has ended.
func (e *Executor) carryOut(j job) {
	if j.term == nil || !j.term.over {
		j.do()
	}
	e.ended.Add(1)
}

// between does the jobs that wait, in the midst of one that has more to do. It counts as progress.
func (e *Executor) between() {
	e.taken.Add(1)
	e.ended.Add(1)
	e.mu.Lock()
	waiting := append([]job(nil), e.jobs[e.at:]...)
	clear(e.jobs[e.at:])
	e.jobs, e.at = e.jobs[:0], 0
	e.mu.Unlock()
	for _, j := range waiting {
		e.carryOut(j)
	}
}

// job is a piece of work, of a term or of none.
type job struct {
	do   func()
	term *Term
}

// next waits for a job; false: there will be none.
func (e *Executor) next() (job, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for e.at == len(e.jobs) {
		e.jobs, e.at = e.jobs[:0], 0
		if e.over {
			return job{}, false
		}
		if e.await == nil && e.awake == nil {
			e.some.Wait()
			continue
		}
		e.mu.Unlock()
		e.listen()
		e.mu.Lock()
	}
	j := e.jobs[e.at]
	e.jobs[e.at] = job{}
	e.at++
	return j, true
}

// Await begins an exchange of a batch, and has the executor, when it has nothing to do, poll for
// its end a while before it sleeps. With prompts there is much to send and to take, which several
// threads do. Called from a job.
func (e *Executor) Await(b *Batch, l Listener, begin func()) {
	if b.HasPrefill() {
		l.Rest()
		begin()
		return
	}
	l.Hold()
	begin()
	if l.Poll() {
		e.await, e.awake = l, l
	}
}

// listen waits for a job that follows from what is polled, or rests.
func (e *Executor) listen() {
	l := e.await
	if l == nil {
		e.awake.Rest()
		e.awake = nil
		return
	}
	e.await = nil
	had := e.taken.Load()
	e.waiter.Wait(func() bool {
		l.Poll()
		return e.taken.Load() != had
	})
}

// Submit queues a job; after Close it drops it.
func (e *Executor) Submit(do func()) { e.submit(job{do: do}) }

func (e *Executor) submit(j job) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.over {
		return
	}
	e.taken.Add(1)
	if e.at > 0 && len(e.jobs) == cap(e.jobs) { // room for as many as wait, not for all that ever came
		waiting := copy(e.jobs, e.jobs[e.at:])
		clear(e.jobs[waiting:])
		e.jobs, e.at = e.jobs[:waiting], 0
	}
	e.jobs = append(e.jobs, j)
	e.some.Signal()
}

// Close waits for the jobs in hand and ends the goroutine; no job may call it.
func (e *Executor) Close() {
	e.mu.Lock()
	e.over = true
	e.some.Signal()
	e.mu.Unlock()
	<-e.done
}

// Term is how long an epoch's weights may be read. A layer hears of a teardown
// after its socket, and may submit a job behind the one that freed what it
// would read; so a term ends on the executor, and its later jobs are dropped.
type Term struct {
	exec *Executor
	over bool // the executor's
}

func (e *Executor) NewTerm() *Term { return &Term{exec: e} }

func (t *Term) Submit(do func()) { t.exec.submit(job{do, t}) }

// Await is the executor's.
func (t *Term) Await(b *Batch, l Listener, begin func()) { t.exec.Await(b, l, begin) }

// between is Executor.between, called from a job of the term. It reports whether the term goes on.
func (t *Term) between() bool {
	t.exec.between()
	return !t.over
}

// End queues the last job of the term.
func (t *Term) End(free func()) {
	t.Submit(func() {
		t.over = true
		free()
	})
}
