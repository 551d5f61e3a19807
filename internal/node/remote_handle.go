package node

import (
	"context"
	"strconv"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	pb "google.golang.org/protobuf/proto"

	"github.com/shoal-llm/shoal/actors/socket"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/internal/rpc"
)

// SocketName is the name of the socket actor of a node's first model. Further ones add their number.
const SocketName = "socket"

func socketName(model int) string {
	if model == 0 {
		return SocketName
	}
	return SocketName + "-" + strconv.Itoa(model)
}

// Remote is a socket in another process. The socket fences Step, Load and Join by epoch and
// step, so a duplicate has no effect. They are nevertheless not retried: a lost one breaks the
// epoch, which is rare and safe.
type Remote struct {
	sys     *rpc.System
	pid     *actor.PID
	foreign func(error)
}

// NewRemote returns the socket of a model of the process at a control address; number 0 is the
// process's first model. foreign may be nil; else it is called when the node and this process have
// incompatible messages.
func NewRemote(sys *rpc.System, address string, model int, foreign func(error)) Remote {
	return Remote{sys: sys, pid: sys.PID(address, socketName(model)), foreign: foreign}
}

// Describe asks the node for its machine, model and newest epoch.
func (h Remote) Describe(ctx context.Context) (*proto.NodeDescription, error) {
	out := new(proto.NodeDescription)
	return out, h.call(ctx, proto.Kind_KIND_DESCRIBE, new(proto.Empty), out, rpc.Idempotent(time.Second))
}

func (h Remote) call(ctx context.Context, kind proto.Kind, in, out pb.Message, opts ...rpc.Option) error {
	err := h.sys.Call(ctx, h.pid, uint32(kind), in, out, opts...)
	if err != nil && h.foreign != nil && rpc.IsIncompatible(err) {
		h.foreign(err)
	}
	return err
}

func (h Remote) Load(ctx context.Context, r *proto.LoadRequest) (*proto.LoadReply, error) {
	out := new(proto.LoadReply)
	return out, h.call(ctx, proto.Kind_KIND_LOAD, r, out)
}

func (h Remote) Join(ctx context.Context, r *proto.JoinRequest) (*proto.JoinReply, error) {
	out := new(proto.JoinReply)
	return out, h.call(ctx, proto.Kind_KIND_JOIN, r, out)
}

func (h Remote) Step(ctx context.Context, r *proto.StepRequest) (*proto.StepReply, error) {
	out := new(proto.StepReply)
	return out, h.call(ctx, proto.Kind_KIND_STEP, r, out)
}

func (h Remote) Retire(ctx context.Context, r *proto.RetireRequest) error {
	return h.call(ctx, proto.Kind_KIND_RETIRE, r, new(proto.Empty), rpc.Idempotent(time.Second))
}

func (h Remote) Release(ctx context.Context, r *proto.ReleaseRequest) (*proto.ReleaseReply, error) {
	out := new(proto.ReleaseReply)
	return out, h.call(ctx, proto.Kind_KIND_RELEASE, r, out, rpc.Idempotent(time.Second))
}

func (h Remote) Prefix(ctx context.Context, r *proto.PrefixRequest) (*proto.PrefixReply, error) {
	out := new(proto.PrefixReply)
	return out, h.call(ctx, proto.Kind_KIND_PREFIX, r, out)
}

func (h Remote) Adapter(ctx context.Context, r *proto.AdapterRequest) (*proto.AdapterReply, error) {
	out := new(proto.AdapterReply)
	return out, h.call(ctx, proto.Kind_KIND_ADAPTER, r, out)
}

func (h Remote) Take(ctx context.Context, r *proto.TakeRequest) (*proto.TakeReply, error) {
	out := new(proto.TakeReply)
	return out, h.call(ctx, proto.Kind_KIND_TAKE, r, out)
}

func (h Remote) Saved(ctx context.Context, r *proto.SavedRequest) (*proto.SavedReply, error) {
	out := new(proto.SavedReply)
	return out, h.call(ctx, proto.Kind_KIND_SAVED, r, out)
}

// Name returns the name of the socket's actor in its process.
func (h Remote) Name() string { return h.pid.Id }

// rows returns how the sockets of this process ask sockets of other processes for rows. A lost request
// is sent again until the context ends.
func rows(sys *rpc.System) socket.Rows {
	return func(ctx context.Context, address, name string, r *proto.RowsRequest) (*proto.RowsReply, error) {
		out := new(proto.RowsReply)
		return out, sys.Call(ctx, sys.PID(address, name), uint32(proto.Kind_KIND_ROWS), r, out, rpc.Idempotent(time.Second))
	}
}

func (h Remote) Status(ctx context.Context) (*proto.SocketStatus, error) {
	out := new(proto.SocketStatus)
	return out, h.call(ctx, proto.Kind_KIND_STATUS, new(proto.Empty), out, rpc.Idempotent(time.Second))
}
