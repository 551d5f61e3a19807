package batcher

import (
	"time"

	"github.com/shoal-llm/shoal/actors/batcher/saved"
)

// submit adds a request. Its sink is registered before the first effect is performed, and removed with
// its Finish.
func (b *Batcher) submit(m *submission) {
	now := b.Millis(time.Now())
	if m.spec.Arrival == 0 {
		m.spec.Arrival = now
	}
	b.perform(b.state.Step(Tick{Now: now}))
	e := b.state.Step(Submit{Spec: m.spec})
	if len(e.Rejects) > 0 {
		m.reply <- &e.Rejects[0]
	} else {
		b.tickets[m.spec.ID] = m.ticket
		m.reply <- nil
	}
	b.perform(e)
}

// step passes the time and then the input to the state.
func (b *Batcher) step(in Input) {
	b.perform(b.state.Step(Tick{Now: b.Millis(time.Now())}))
	b.perform(b.state.Step(in))
}

// perform executes Effects in order.
func (b *Batcher) perform(e Effects) {
	for _, f := range e.Faults {
		b.opts.Logger.Error("batcher: broken invariant", "kind", f.Kind, "request", f.ID, "detail", f.Message)
		if b.opts.OnFault != nil {
			b.opts.OnFault(f)
		}
	}
	for _, s := range e.Scores {
		b.tickets[s.ID].sink.Scores(s.Prompt)
	}
	for _, m := range e.Emits {
		b.tickets[m.ID].sink.Emit(m)
	}
	for _, f := range e.Finishes {
		t := b.tickets[f.ID]
		delete(b.tickets, f.ID)
		t.sink.Finish(f)
	}
	if e.Broken != nil {
		b.opts.Logger.Warn("batcher: epoch broken", "epoch", e.Broken.Epoch, "step", e.Broken.Step, "reason", e.Broken.Reason)
		b.stepper.Broken(*e.Broken)
	}
	if len(e.Release)+len(e.Evict) > 0 {
		b.stepper.Release(b.state.epoch, e.Keep, e.Release, e.Evict)
	}
	for _, d := range e.Disk {
		b.stepper.Disk(b.state.epoch, d, func(blocks int) { b.send(DiskDone{Number: d.Number, Blocks: blocks}) })
	}
	for _, l := range e.Adapters {
		epoch := b.state.epoch
		b.stepper.Adapt(epoch, l, func(err error) {
			d := AdapterDone{Epoch: epoch, ID: l.ID}
			if err != nil {
				d.Err = err.Error()
			}
			b.send(d)
		})
	}
	for _, o := range e.Saved {
		b.stepper.Saved(o, func(d saved.Done) { b.send(d) })
	}
	for _, n := range e.Drops {
		b.opts.Prefill.Drop(n)
	}
	for _, r := range e.Prefills {
		b.opts.Prefill.Prefill(r)
	}
	for _, t := range e.Takes {
		b.opts.Prefill.Take(t)
	}
	for _, d := range e.Exports {
		b.opts.Prefill.Exported(d)
	}
	if p := e.Start; p != nil {
		began := time.Now()
		b.stepper.StartStep(p, func(d StepDone, err error) {
			if err != nil {
				b.send(&stepEnded{StepFailed{Epoch: p.Epoch, Step: p.Step, Reason: err.Error()}})
				return
			}
			d.Micros = time.Since(began).Microseconds()
			b.send(&stepEnded{d})
		})
	}
}
