package socket

import (
	"errors"
	"slices"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/actors/socket/machine"
	"github.com/shoal-llm/shoal/actors/socket/step"
	"github.com/shoal-llm/shoal/internal/proto"
)

func (a *Actor) begin(c actor.Context, m *Step) {
	w, err := a.machine.Plan(m.Request)
	if err != nil {
		m.Reply(nil, err)
		a.failStep(err)
		return
	}
	s := &flight{Step: a.epoch.NewStep(w, a.Config.use), reply: m.Reply, observe: m.Times}
	s.jobsBefore, _ = a.exec.Progress()
	a.step = s
	a.run(c, s)
}

// failStep fails the step in flight if the epoch has failed.
func (a *Actor) failStep(cause error) {
	s := a.step
	if s == nil || a.machine.Phase == machine.Stepping || a.machine.Phase == machine.Ready {
		return
	}
	a.step = nil
	s.reply(nil, cause)
}

// flight is a step in flight.
type flight struct {
	*step.Step
	reply      func(*proto.StepReply, error)
	observe    func(step.Times)
	sent       []*layer.Batch // batches in the layers
	jobsBefore uint64         // jobs of the executor before the step
}

// run starts the current stage of a step.
func (a *Actor) run(c actor.Context, s *flight) {
	job, batches := s.Job()
	if job == nil {
		s.sent = slices.Clone(batches)
		for _, b := range batches { // an earlier batch is the first in every layer
			c.Send(a.layers[b.Before], &layer.Run{Batch: b, Group: a.epoch.Group, ReplyTo: c.Self()})
		}
		return
	}
	self, root := c.Self(), c.ActorSystem().Root
	a.exec.Submit(func() { job(func(err error) { root.Send(self, &stageDone{s, err}) }) })
}

// batchDone receives a batch that has left the layers. The step advances after its last batch, or the first
// error.
func (a *Actor) batchDone(c actor.Context, m *layer.Done) {
	s := a.step
	if s == nil {
		return
	}
	i := slices.Index(s.sent, m.Batch)
	if i < 0 {
		return
	}
	s.sent = slices.Delete(s.sent, i, i+1)
	if len(s.sent) == 0 || m.Err != nil {
		a.advance(c, s, m.Err)
	}
}

// advance starts a step's next stage or ends the step.
func (a *Actor) advance(c actor.Context, s *flight, err error) {
	w := s.Work
	if a.step != s {
		return // the step's epoch is over
	}
	if err == nil && s.Advance() {
		a.run(c, s)
		return
	}
	a.step = nil
	if stale := a.machine.End(w, err == nil); stale != nil || err != nil {
		err = errors.Join(err, stale)
		a.Config.Logger.Warn("step failed", "epoch", w.Epoch, "step", w.Step, "error", err)
		s.reply(nil, err)
		a.failStep(err)
		return
	}
	times, reply := s.Finish()
	if s.observe != nil {
		s.observe(times)
	}
	s.reply(reply, nil)
}

// release frees sequences between steps, after the executor's queued jobs.
func (a *Actor) release(m *Release) {
	effects, err := a.machine.Release(m.Request)
	if err != nil {
		m.Reply(nil, err)
		return
	}
	held := a.caches
	a.exec.Submit(func() {
		held.Release(effects)
		m.Reply(&proto.ReleaseReply{KvUsedBytes: held.Arena.Used()}, nil)
	})
}

// between runs a job on the executor between two steps of an epoch, or refuses it.
func (a *Actor) between(c actor.Context, m *Between) {
	if err := a.machine.Job(m.Epoch); err != nil {
		m.Reply(err)
		return
	}
	e, self, root := a.epoch, c.Self(), c.ActorSystem().Root
	a.exec.Submit(func() {
		made, err := e.Run(m.Do)
		root.Send(self, &jobDone{number: m.Epoch, made: made, err: err, reply: m.Reply})
	})
}
