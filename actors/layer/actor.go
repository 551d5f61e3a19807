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

// advanced tells a layer that an exchange of a batch has ended, or its last stage.
type advanced struct {
	batch *Batch
	err   error
	last  bool
}

// pass is where a batch stands in this layer.
type pass struct {
	run      *Run
	schedule []*Stage
	at       int // next stage
	to       *actor.PID
}

// Actor is one layer: between messages it only moves `at` forward.
type Actor struct {
	Last    bool // no layer follows
	Weights *Weights
	Term    *Term

	passes map[*Batch]*pass
}

// Dispatcher runs a layer's handler on the goroutine that sends to it, since all it
// does is to submit to the executor. A goroutine for each of the messages of a step,
// four a layer, took more time than what they carry, most of it to grow its stack.
var Dispatcher = actor.NewSynchronizedDispatcher(300)

// Receive implements actor.Actor.
func (a *Actor) Receive(c actor.Context) {
	switch m := c.Message().(type) {
	case *Run:
		if a.passes == nil {
			a.passes = map[*Batch]*pass{}
		}
		w := &pass{run: m, schedule: m.Batch.scheduleOf(a.Weights.Experts != nil, a.Last), to: c.Sender()}
		a.passes[m.Batch] = w
		a.next(c, w)
	case *advanced:
		w := a.passes[m.batch]
		if w == nil {
			return // of a batch that failed already
		}
		switch then := w.run.Then; {
		case m.err != nil || m.last && len(then) == 0:
			delete(a.passes, m.batch)
			c.Send(w.to, &Done{Batch: m.batch, Err: m.err})
		case m.last:
			delete(a.passes, m.batch)
			c.RequestWithCustomSender(then[0], &Run{Batch: m.batch, Group: w.run.Group, Then: then[1:]}, w.to)
		default:
			a.next(c, w)
		}
	}
}

// next submits one job: unpack what arrived, compute up to the next exchange,
// and start that. So there is one hand-off a synchronisation.
func (a *Actor) next(c actor.Context, w *pass) {
	from, to := w.at, w.at
	for to < len(w.schedule) && !w.schedule[to].Exchange() {
		to++
	}
	w.at = to + 1
	self, root := c.Self(), c.ActorSystem().Root
	b, group, schedule := w.run.Batch, w.run.Group, w.schedule
	a.Term.Submit(func() {
		began := time.Now()
		if from > 0 {
			schedule[from-1].unpack(b)
		}
		b.run(a.Weights, schedule[from:to])
		sent := time.Now()
		b.Compute += sent.Sub(began)
		if to == len(schedule) {
			root.Send(self, &advanced{batch: b, last: true})
			return
		}
		schedule[to].start(b, group, func(err error) {
			b.Wait += time.Since(sent)
			root.Send(self, &advanced{batch: b, err: err})
		})
	})
}
