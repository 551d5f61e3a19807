package layer

import (
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"shoal/collective"
)

// Run asks a layer to carry a batch through, and to pass it on to the layers that
// follow. The batch belongs to them until the last one answers with Done, or the
// one that fails.
type Run struct {
	Batch *Batch
	Group *collective.Group
	Then  []*actor.PID
}

// Done is the answer to whoever sent the first Run.
type Done struct {
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

// Dispatcher runs a layer's handler on the goroutine that sends to it, since all it
// does is to submit to the executor. A goroutine for each of the messages of a step,
// four a layer, took more time than what they carry, most of it to grow its stack.
var Dispatcher = actor.NewSynchronizedDispatcher(300)

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
		switch then := w.run.Then; {
		case m.err != nil || m.last && len(then) == 0:
			delete(a.walks, m.batch)
			c.Send(w.to, &Done{Batch: m.batch, Err: m.err})
		case m.last:
			delete(a.walks, m.batch)
			c.RequestWithCustomSender(then[0], &Run{Batch: m.batch, Group: w.run.Group, Then: then[1:]}, w.to)
		default:
			a.next(c, w)
		}
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
