// Package socket is one rank of the tensor-parallel group: an actor that owns a slice of every weight
// matrix and one partition of the KV cache. It carries out the steps that the coordinator plans.
package socket

import (
	"context"
	"errors"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/actors/layer/executor"
	"github.com/shoal-llm/shoal/actors/socket/adapter"
	"github.com/shoal-llm/shoal/actors/socket/caches"
	"github.com/shoal-llm/shoal/actors/socket/machine"
	"github.com/shoal-llm/shoal/actors/socket/step"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/proto"
)

// Stop ends an actor (a socket or its parent) and waits until the socket has ended. The socket first
// completes its current stage or matrix, which is finite work. Proto.Actor's grace period of 10 s is
// not always enough, and memory that a stage reads must not be unmapped.
func Stop(root *actor.RootContext, pid *actor.PID, stopped <-chan struct{}) {
	root.Stop(pid)
	<-stopped
}

// Actor is the shell of a socket. Machine decides; the executor, the layers and the collective actor
// do the work.
type Actor struct {
	Config Config

	machine *machine.Machine
	exec    *executor.Executor
	caches  *caches.Caches
	epoch   *step.Epoch
	link    *caches.Link   // of the current epoch, from its Join on
	term    *executor.Term // of the current epoch
	layers  []*actor.PID
	// collective actor of the epoch; nil before the epoch's Join
	collective *actor.PID
	step       *flight            // in flight; nil: none
	cancel     context.CancelFunc // cancels loading
	read       *progress          // of the newest load
	adapters   *adapter.Loader    // nil: the socket takes no LoRA adapters
	adapted    adapted            // those in memory
	adaptable  int64              // bytes that they may use
}

// ErrRetired is the error of the steps in flight when their epoch is retired.
var ErrRetired = errors.New("socket: epoch retired")

// Receive implements actor.Actor.
func (a *Actor) Receive(c actor.Context) {
	defer a.survive(c)
	switch m := c.Message().(type) {
	case *actor.Started:
		a.start()
	case *actor.Stopping:
		a.stop(c)
		select {
		case <-a.Config.Stopped: // the actor was restarted under its name
		default:
			if a.Config.Stopped != nil {
				close(a.Config.Stopped)
			}
		}
	case *Load:
		a.load(c, m)
	case *loaded:
		a.loaded(c, m)
	case *Join:
		a.join(c, m)
	case *joined:
		a.joined(c, m)
	case *Step:
		a.begin(c, m)
	case *stageDone:
		a.advance(c, m.step, m.err)
	case *layer.Done:
		a.batchDone(c, m)
	case *groupFailed:
		a.Config.Logger.Warn("collective group failed", "epoch", m.number, "error", m.err)
	case *Retire:
		if effects, ok := a.machine.Retire(m.Request.Epoch); ok {
			a.teardown(c, effects)
			held := a.caches
			a.exec.Submit(func() { held.KeepOnly(nil) })
		}
		m.Reply(nil)
	case *Release:
		a.release(m)
	case *Prefix:
		a.prefix(m)
	case *Adapter:
		a.adapter(c, m)
	case *Take:
		a.take(c, m)
	case *taken:
		a.taken(m)
	case *Lend:
		a.lend(m)
	case *Saved:
		a.saved(m)
	case *adapterLoaded:
		a.adapterLoaded(m)
	case *Between:
		a.between(c, m)
	case *jobDone:
		if effects := a.machine.JobDone(m.number, m.made); len(effects) > 0 {
			a.exec.Submit(func() { a.caches.Release(effects) })
		}
		m.reply(m.err)
	case *Status:
		m.Reply(a.status())
	}
}

// start makes the parts of a socket without weights and caches.
func (a *Actor) start() {
	a.machine = machine.NewMachine()
	a.exec, a.adaptable = executor.New(), a.Config.AdapterBudget
	a.caches = caches.New(caches.Options{Arena: a.Config.device().Arena(a.Config.KVBudget), Executor: a.exec,
		PrefixDisk: a.Config.PrefixDisk, Scratch: a.Config.Scratch})
	if a.Config.Adapters != nil {
		a.adapters = adapter.NewLoader(a.Config.Adapters, &a.Config.Checkpoint.Config)
	}
	if a.Config.ParsePolicy == nil {
		a.Config.ParsePolicy = kvpolicy.Parse
	}
}

// stop ends the parts that start has made. It waits for the stage that runs.
func (a *Actor) stop(c actor.Context) {
	a.teardown(c, a.machine.Stop())
	a.caches.StopTransfers()
	if a.adapters != nil {
		a.adapters.Close()
	}
	a.exec.Close()
	a.caches.Close()
}

// teardown ends all work in flight and frees the epoch, except for the caches that a later epoch can
// use. The executor may be running a stage, so freeing is the last job of the epoch's term.
func (a *Actor) teardown(c actor.Context, effects []machine.Effect) {
	if a.cancel != nil {
		a.cancel()
		a.cancel = nil
	}
	a.failStep(ErrRetired)
	for _, p := range a.layers {
		c.Stop(p)
	}
	a.layers, a.adapted = nil, adapted{}
	held := a.caches
	if e := a.epoch; e != nil {
		a.epoch = nil
		a.link.Close()
		a.link = nil
		if a.collective != nil {
			c.Stop(a.collective)
			a.collective = nil
		}
		a.term.End(func() { e.Close(effects) })
		return
	}
	if len(effects) > 0 {
		a.exec.Submit(func() { held.Release(effects) })
	}
}

func (a *Actor) status() *proto.SocketStatus {
	done, busy := a.exec.Progress()
	before := uint64(0)
	if a.step != nil {
		before = a.step.jobsBefore
	}
	s := &proto.SocketStatus{Progress: done - before, Busy: busy, Epoch: a.machine.Epoch,
		State: string(a.machine.Phase), LastStep: a.machine.Step,
		KvUsedBytes: a.caches.Arena.Used(), KvPeakBytes: a.caches.Arena.Peak(), KvBudgetBytes: a.caches.Arena.Budget(),
		PrefixDisk: a.caches.PrefixDisk(), Scratch: a.caches.Scratch()}
	if a.epoch != nil {
		s.WeightBytes = a.epoch.Weights.Bytes() + a.epoch.Drafter.Bytes()
	}
	s.AdapterBytes, s.Adapters = a.adapted.bytes, uint32(len(a.adapted.all))
	if a.read != nil {
		s.LoadedBytes, s.LoadBytes = a.read.done.Load(), a.read.total.Load()
	}
	return s
}
