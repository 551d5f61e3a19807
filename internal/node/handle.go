// Package node is one node of a cluster: a socket with its draft model and grammars, the calls that a
// coordinator makes to it, and the handles through which the coordinator makes them.
package node

import (
	"context"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/shoal-llm/shoal/actors/socket"
	"github.com/shoal-llm/shoal/internal/proto"
)

// Handle is the coordinator's interface to a socket, in this or another process. Every call ends with
// its context. After an error the socket may have acted anyway.
type Handle interface {
	Load(context.Context, *proto.LoadRequest) (*proto.LoadReply, error)
	Join(context.Context, *proto.JoinRequest) (*proto.JoinReply, error)
	Step(context.Context, *proto.StepRequest) (*proto.StepReply, error)
	Retire(context.Context, *proto.RetireRequest) error
	Release(context.Context, *proto.ReleaseRequest) (*proto.ReleaseReply, error)
	Prefix(context.Context, *proto.PrefixRequest) (*proto.PrefixReply, error)
	Adapter(context.Context, *proto.AdapterRequest) (*proto.AdapterReply, error)
	// Saved finds, writes or removes the cache of an idle session in a file.
	Saved(context.Context, *proto.SavedRequest) (*proto.SavedReply, error)
	// Take fetches a cache from another socket, or from a file.
	Take(context.Context, *proto.TakeRequest) (*proto.TakeReply, error)
	Status(context.Context) (*proto.SocketStatus, error)
}

// Local is a socket actor in this process.
type Local struct {
	Root *actor.RootContext
	PID  *actor.PID
}

var _ Handle = Local{}

type answer[T any] struct {
	reply T
	err   error
}

// call sends the command that contains a reply function, and waits for the reply.
func call[T any](ctx context.Context, h Local, command func(reply func(T, error)) any) (T, error) {
	c := make(chan answer[T], 1)
	h.Root.Send(h.PID, command(func(r T, err error) {
		select {
		case c <- answer[T]{r, err}:
		default: // the first answer counts
		}
	}))
	select {
	case a := <-c:
		return a.reply, a.err
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}

func (h Local) Load(ctx context.Context, r *proto.LoadRequest) (*proto.LoadReply, error) {
	return call(ctx, h, func(f func(*proto.LoadReply, error)) any { return &socket.Load{Request: r, Reply: f} })
}

func (h Local) Join(ctx context.Context, r *proto.JoinRequest) (*proto.JoinReply, error) {
	return call(ctx, h, func(f func(*proto.JoinReply, error)) any { return &socket.Join{Request: r, Reply: f} })
}

func (h Local) Step(ctx context.Context, r *proto.StepRequest) (*proto.StepReply, error) {
	return call(ctx, h, func(f func(*proto.StepReply, error)) any { return &socket.Step{Request: r, Reply: f} })
}

func (h Local) Retire(ctx context.Context, r *proto.RetireRequest) error {
	_, err := call(ctx, h, func(f func(*proto.Empty, error)) any {
		return &socket.Retire{Request: r, Reply: func(err error) { f(nil, err) }}
	})
	return err
}

func (h Local) Release(ctx context.Context, r *proto.ReleaseRequest) (*proto.ReleaseReply, error) {
	return call(ctx, h, func(f func(*proto.ReleaseReply, error)) any { return &socket.Release{Request: r, Reply: f} })
}

func (h Local) Prefix(ctx context.Context, r *proto.PrefixRequest) (*proto.PrefixReply, error) {
	return call(ctx, h, func(f func(*proto.PrefixReply, error)) any { return &socket.Prefix{Request: r, Reply: f} })
}

func (h Local) Adapter(ctx context.Context, r *proto.AdapterRequest) (*proto.AdapterReply, error) {
	return call(ctx, h, func(f func(*proto.AdapterReply, error)) any { return &socket.Adapter{Request: r, Reply: f} })
}

func (h Local) Take(ctx context.Context, r *proto.TakeRequest) (*proto.TakeReply, error) {
	return call(ctx, h, func(f func(*proto.TakeReply, error)) any { return &socket.Take{Request: r, Reply: f} })
}

func (h Local) Saved(ctx context.Context, r *proto.SavedRequest) (*proto.SavedReply, error) {
	return call(ctx, h, func(f func(*proto.SavedReply, error)) any { return &socket.Saved{Request: r, Reply: f} })
}

// Lend reads rows of a cache for another socket.
func (h Local) Lend(ctx context.Context, r *proto.RowsRequest) (*proto.RowsReply, error) {
	return call(ctx, h, func(f func(*proto.RowsReply, error)) any { return &socket.Lend{Request: r, Reply: f} })
}

func (h Local) Status(ctx context.Context) (*proto.SocketStatus, error) {
	return call(ctx, h, func(f func(*proto.SocketStatus, error)) any {
		return &socket.Status{Reply: func(s *proto.SocketStatus) { f(s, nil) }}
	})
}
