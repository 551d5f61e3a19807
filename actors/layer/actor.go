package layer

import (
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"shoal/collective"
)

// Executor runs jobs of a socket one after another on a goroutine of its own,
// so that no actor computes in its handler. At most one job a lane is
// outstanding, so Submit never blocks when lanes <= the executor's capacity.
type Executor struct {
	jobs  chan func()
	done  chan struct{}
	taken atomic.Uint64 // jobs submitted
	ended atomic.Uint64 // of them, done
}

// Progress is how many jobs have been done, and whether one is in hand. A socket
// that is not busy in a step waits for others; one that is busy and makes no
// progress hangs.
func (e *Executor) Progress() (done uint64, busy bool) {
	done = e.ended.Load()
	return done, e.taken.Load() > done
}

// NewExecutor starts the goroutine; Close stops it after the jobs in hand.
func NewExecutor(lanes int) *Executor {
	e := &Executor{jobs: make(chan func(), lanes+1), done: make(chan struct{})}
	go func() {
		defer close(e.done)
		for job := range e.jobs {
			if job == nil {
				return
			}
			job()
			e.ended.Add(1)
		}
	}()
	return e
}

// Submit queues a job; after Close it drops it.
func (e *Executor) Submit(job func()) {
	e.taken.Add(1)
	select {
	case e.jobs <- job:
	case <-e.done:
	}
}

// Close waits for the jobs in hand and ends the goroutine.
func (e *Executor) Close() {
	e.Submit(nil)
	<-e.done
}

// Term is how long an epoch's weights may be read. A layer hears of a teardown
// after its socket, and may submit a leg behind the job that freed what the leg
// would read; so a term ends on the executor, and its later jobs are dropped.
type Term struct {
	exec *Executor
	over bool // the executor's
}

// NewTerm begins a term.
func (e *Executor) NewTerm() *Term { return &Term{exec: e} }

// Submit queues a job of the term.
func (t *Term) Submit(job func()) {
	t.exec.Submit(func() {
		if !t.over {
			job()
		}
	})
}

// End queues the last job of the term.
func (t *Term) End(free func()) {
	t.Submit(func() {
		t.over = true
		free()
	})
}

// Run asks a layer to carry a batch through. The batch belongs to the layer
// until it answers with Done.
type Run struct {
	Batch *Batch
	Group *collective.Group
}

// Done is the layer's answer to whoever sent Run.
type Done struct {
	Index int
	Batch *Batch
	Err   error
}

// leg ends: the exchange that the leg began has ended, or the layer has.
type legEnd struct {
	batch *Batch
	err   error
	last  bool
}

// walk is where a lane's batch stands in its program.
type walk struct {
	run     *Run
	program []Phase
	at      int // next phase
	to      *actor.PID
}

// Actor is one layer: between messages it only moves `at` forward.
type Actor struct {
	Index   int
	Last    bool // no layer follows
	Weights *Weights
	Term    *Term

	walks map[*Batch]*walk
}

// Receive implements actor.Actor.
func (a *Actor) Receive(c actor.Context) {
	switch m := c.Message().(type) {
	case *Run:
		if a.walks == nil {
			a.walks = map[*Batch]*walk{}
		}
		w := &walk{run: m, program: m.Batch.Program(a.Weights.Experts != nil, a.Last), to: c.Sender()}
		a.walks[m.Batch] = w
		a.next(c, w)
	case *legEnd:
		w := a.walks[m.batch]
		if w == nil {
			return // a leg of a batch that failed already
		}
		if m.err != nil || m.last {
			delete(a.walks, m.batch)
			c.Send(w.to, &Done{Index: a.Index, Batch: m.batch, Err: m.err})
			return
		}
		a.next(c, w)
	}
}

// next submits one leg: unpack what arrived, compute up to the next exchange,
// and start that. One job a leg keeps hand-offs to one per synchronisation.
func (a *Actor) next(c actor.Context, w *walk) {
	from, to := w.at, w.at
	for to < len(w.program) && !w.program[to].Exchange() {
		to++
	}
	w.at = to + 1
	self, root := c.Self(), c.ActorSystem().Root
	b, group, program := w.run.Batch, w.run.Group, w.program
	a.Term.Submit(func() {
		began := time.Now()
		if from > 0 {
			b.Unpack(program[from-1])
		}
		for _, p := range program[from:to] {
			start := time.Now()
			a.Weights.Compute(p, a.Index, b)
			b.Spent[p] += time.Since(start)
		}
		if to == len(program) {
			b.Compute += time.Since(began)
			root.Send(self, &legEnd{batch: b, last: true})
			return
		}
		sent := time.Now()
		b.Compute += sent.Sub(began)
		b.Start(program[to], group, func(err error) {
			b.Wait += time.Since(sent)
			root.Send(self, &legEnd{batch: b, err: err})
		})
	})
}
