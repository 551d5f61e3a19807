package layer

import (
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Run asks a layer to carry a batch through, and to pass it on to the layers that
// follow. The batch belongs to them until the last one answers ReplyTo with Done, or
// the one that fails. Several batches, micro-batches of the same epoch, may be under way.
type Run struct {
	Batch   *Batch
	Group   Group // unused where nothing is exchanged
	ReplyTo *actor.PID
}

// Group carries out the exchanges of a rank. An operation returns at once, calls done
// exactly once, unless the epoch ends before, and has the slices until then (see
// collective.Group, which is one).
type Group interface {
	Listener
	AllGather(id collective.OpID, mine []float32, recv [][]float32, done func(error))
	AllToAll(id collective.OpID, send, recv [][]byte, done func(error))
	AllReduceTree(id collective.OpID, units int, nodes [][]tensor.Span, mine [][]float32, out []float32, done func(error))
	ReduceScatterTree(id collective.OpID, units int, nodes [][]tensor.Span, mine [][]float32, bounds []int, out []float32, done func(error))
}

// Done ends a Run.
type Done struct {
	Batch *Batch
	Err   error
}

// advanced tells a layer that an exchange of a pass has ended.
type advanced struct {
	pass *pass
	err  error
}

// pass is what a layer holds of a micro-batch: where its batch stands in the schedule. Its
// parts are made once, for a batch returns with every step.
type pass struct {
	layer    *Actor
	run      *Run
	schedule *Schedule
	at       int // the exchange that is under way; -1: none yet
	sent     time.Time
	compute  func() // the executor's
	begin    func() // the exchange
	arrived  func(error)
	advanced advanced
	one      [1]LayerRun // in hand
}

// Actor is one layer: between messages it only moves its passes forward. On several ranks it
// hands the batch to the next layer. Where nothing is exchanged the backend gets all layers that
// follow at once, so that a device need not wait for the host between them.
type Actor struct {
	Layers []Layer      // this one and those that follow
	Next   []*actor.PID // the layers that follow
	Term   *Term

	self   *actor.PID
	root   *actor.RootContext
	passes map[*Batch]*pass
}

// Dispatcher runs a layer's handler on the goroutine that sends to it, since all it
// does is to submit to the executor. A goroutine for each of the messages of a step,
// two a layer and more with exchanges, took more time than what they carry, most of it
// to grow its stack.
var Dispatcher = actor.NewSynchronizedDispatcher(300)

func (a *Actor) Receive(c actor.Context) {
	switch m := c.Message().(type) {
	case *actor.Started:
		a.self, a.root, a.passes = c.Self(), c.ActorSystem().Root, map[*Batch]*pass{}
	case *Run:
		if m.Batch.T == 0 { // all rows have left
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
		p.advanced.err = err
		a.root.Send(a.self, &p.advanced)
	}
	p.compute = p.next
	p.begin = func() { p.schedule.exchanges[p.at].start(p.run.Batch, p.run.Group, p.arrived) }
	return p
}

// next unpacks what arrived, computes up to the next exchange, and starts that: there is one
// hand-off a synchronisation. At the end of the schedule the batch goes to the layer that follows
// those which were computed.
func (p *pass) next() {
	began, b, s := time.Now(), p.run.Batch, p.schedule
	if p.at >= 0 {
		s.exchanges[p.at].unpack(b)
	}
	p.at++
	a, last := p.layer, p.at == len(s.exchanges)
	var runs []LayerRun
	if b.alone() {
		runs = b.untilLeaving(a.Layers)
	} else {
		p.one[0] = LayerRun{a.Layers[0], s.runs[p.at]}
		runs = p.one[:]
	}
	b.Backend.Run(runs, a.Term.between)
	if a.Term.over {
		return
	}
	if last && runs[len(runs)-1].Layer.Kind().Input {
		b.leave()
	}
	p.sent = time.Now()
	b.Compute += p.sent.Sub(began)
	switch {
	case !last:
		a.Term.Await(b, p.run.Group, p.begin)
	case len(a.Next) >= len(runs):
		a.root.Send(a.Next[len(runs)-1], p.run)
	default:
		a.root.Send(p.run.ReplyTo, &Done{Batch: b})
	}
}
