package layer

import (
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/shoal-llm/shoal/actors/layer/executor"
	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Run makes a layer actor compute a batch and pass it to the following layers. The layers own the batch
// until the last layer, or the one that fails, sends Done to ReplyTo. Several batches (micro-batches of
// one epoch) may be in flight.
type Run struct {
	Batch   *Batch
	Group   Group // unused on a single rank
	ReplyTo *actor.PID
}

// Group performs the exchanges of one rank. An operation returns at once and calls done exactly
// once, unless the epoch ends first. It owns the slices until then. collective.Group implements it.
type Group interface {
	executor.Listener
	AllGather(id collective.OpID, mine []float32, recv [][]float32, done func(error))
	AllToAll(id collective.OpID, send, recv [][]byte, done func(error))
	AllReduceTree(id collective.OpID, units int, nodes [][]tensor.Span, mine [][]float32, out []float32, done func(error))
	ReduceScatterTree(id collective.OpID, units int, nodes [][]tensor.Span, mine [][]float32, bounds []int, out []float32, done func(error))
}

// Done is the reply to a Run.
type Done struct {
	Batch *Batch
	Err   error
}

// advanced reports to a layer that an exchange of a pass has completed.
type advanced struct {
	pass *pass
	err  error
}

// pass is the progress of one micro-batch through a layer's schedule. A layer reuses the pass of a
// batch in every step, so its closures are allocated once.
type pass struct {
	layer    *Actor
	run      *Run
	schedule *Schedule
	at       int // index of the exchange in flight; -1: none yet
	sent     time.Time
	compute  func() // runs on the executor
	resume   func() // queues compute again
	begin    func() // starts the exchange
	between  func() bool
	arrived  func(error)
	advanced advanced
	one      [1]LayerRun // reused by every run
}

// Actor is one layer. Its handler only moves passes forward. On several ranks it computes one layer
// and sends the batch to the next. On a single rank the backend gets all remaining layers in one
// call, so that a device need not synchronize with the host between layers.
type Actor struct {
	Layers []Layer      // this layer and all layers after it
	Next   []*actor.PID // the layers after this one
	Term   *executor.Term

	self   *actor.PID
	root   *actor.RootContext
	passes map[*Batch]*pass
}

// Dispatcher runs a layer's handler on the sender's goroutine, because the handler only submits jobs to
// the executor. A goroutine per message takes longer than the work of the message, mostly because its
// stack has to grow. A layer has at least two messages a step, and more with exchanges.
var Dispatcher = actor.NewSynchronizedDispatcher(300)

func (a *Actor) Receive(c actor.Context) {
	switch m := c.Message().(type) {
	case *actor.Started:
		a.self, a.root, a.passes = c.Self(), c.ActorSystem().Root, map[*Batch]*pass{}
	case *Run:
		if m.Batch.T == 0 { // every row was dropped
			c.Send(m.ReplyTo, &Done{Batch: m.Batch})
			return
		}
		p := a.passes[m.Batch]
		if p == nil {
			p = a.newPass()
			a.passes[m.Batch] = p
		}
		p.run, p.schedule, p.at = m, m.Batch.scheduleOf(a.Layers[0].Kind(), len(a.Next) == 0), -1
		a.Term.Submit(p.compute)
	case *advanced:
		if m.err != nil {
			c.Send(m.pass.run.ReplyTo, &Done{Batch: m.pass.run.Batch, Err: m.err})
			return
		}
		a.Term.Submit(m.pass.compute)
	}
}

func (a *Actor) newPass() *pass {
	p := &pass{layer: a}
	p.advanced.pass = p
	p.arrived = func(err error) {
		p.run.Batch.Wait += time.Since(p.sent)
		p.run.Batch.release()
		p.advanced.err = err
		a.root.Send(a.self, &p.advanced)
	}
	p.compute = p.next
	p.between = a.Term.Between
	p.resume = func() { p.layer.Term.Submit(p.compute) }
	p.begin = func() {
		p.run.Batch.uses.Add(1)
		p.schedule.exchanges[p.at].start(p.run.Batch, p.run.Group, p.arrived)
	}
	return p
}

// next unpacks the received data, computes up to the next exchange and starts that exchange: one
// hand-off per synchronization. At the end of the schedule it sends the batch to the first layer
// that has not been computed.
func (p *pass) next() {
	began, b, s := time.Now(), p.run.Batch, p.schedule
	if b.order.Park(s.uses[p.at+1], p.resume) {
		return
	}
	if p.at >= 0 {
		s.exchanges[p.at].unpack(b)
	}
	p.at++
	a, last := p.layer, p.at == len(s.exchanges)
	var runs []LayerRun
	if b.alone() {
		runs = b.untilRowsDrop(a.Layers[:len(a.Layers)-b.After])
	} else {
		p.one[0] = LayerRun{a.Layers[0], s.runs[p.at]}
		runs = p.one[:]
	}
	b.Backend.Run(runs, p.between)
	if a.Term.Ended() {
		return
	}
	if last && b.dropAfter(runs[len(runs)-1].Layer.Kind()) {
		b.dropRows()
	}
	if resume := b.order.Ran(s.uses[p.at], b.T == 0); resume != nil {
		resume()
	}
	p.sent = time.Now()
	b.Compute += p.sent.Sub(began)
	switch {
	case !last:
		a.Term.Await(b.Bulk(), p.run.Group, p.begin)
	case len(a.Next)-b.After >= len(runs):
		a.root.Send(a.Next[len(runs)-1], p.run)
	default:
		a.root.Send(p.run.ReplyTo, &Done{Batch: b})
	}
}
