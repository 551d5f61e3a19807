package socket

import (
	"fmt"
	"runtime/debug"

	"github.com/asynkron/protoactor-go/actor"
)

// afterPanic is the log message of a socket that has started again.
const afterPanic = "the socket starts again after a panic"

// survive starts the socket again after a panic in a message, without weights and caches. Those who wait for answers
// get an error at once, so that the coordinator places the model again.
func (a *Actor) survive(c actor.Context) {
	cause := recover()
	if cause == nil {
		return
	}
	switch c.Message().(type) {
	case *actor.Started, *actor.Stopping: // there is nothing to start again
		panic(cause)
	}
	err := fmt.Errorf("socket: broken invariant: %v", cause)
	a.Config.Logger.Error(afterPanic, "error", err, "stack", string(debug.Stack()))
	if s := a.step; s != nil {
		a.step = nil
		s.reply(nil, err)
	}
	fail(c.Message(), err)
	epoch := a.machine.Epoch
	a.stop(c)
	a.start()
	a.machine.Retire(epoch) // a coordinator without a store numbers its epochs after those that its nodes have seen
}

// fail answers a message with an error. The first answer to a message counts.
func fail(message any, err error) {
	switch m := message.(type) {
	case *Load:
		m.Reply(nil, err)
	case *loaded:
		m.reply(nil, err)
	case *Join:
		m.Reply(nil, err)
	case *joined:
		m.reply(nil, err)
	case *Step:
		m.Reply(nil, err)
	case *Retire:
		m.Reply(err)
	case *Release:
		m.Reply(nil, err)
	case *Between:
		m.Reply(err)
	case *jobDone:
		m.reply(err)
	case *Prefix:
		m.Reply(nil, err)
	case *Adapter:
		m.Reply(nil, err)
	case *adapterLoaded:
		m.reply(nil, err)
	case *Take:
		m.Reply(nil, err)
	case *taken:
		m.reply(nil, err)
	case *Saved:
		m.Reply(nil, err)
	case *Lend:
		m.Reply(nil, err)
	}
}
