package node

import (
	"sync/atomic"

	"github.com/asynkron/protoactor-go/actor"
	pb "google.golang.org/protobuf/proto"

	"github.com/shoal-llm/shoal/actors/socket"
	"github.com/shoal-llm/shoal/internal/bus"
	"github.com/shoal-llm/shoal/internal/gossip"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/internal/rpc"
)

// Config configures a Node.
type Config struct {
	Bus    *bus.Bus
	Socket socket.Config
	// Description is what the coordinator learns of this node. The node adds the epoch of its socket.
	Description *proto.NodeDescription
	// Fetched returns the bytes of weights that came from other processes; nil: the checkpoint is local.
	Fetched func() int64
}

// Node is the actor of a node process. It turns envelopes into commands of the socket and sends the
// socket's replies.
type Node struct {
	Config
	// Contact is the coordinator's last request.
	Contact   bus.Contact
	mux       *rpc.Mux
	pid       *actor.PID
	socketPID *actor.PID
	leaving   atomic.Bool   // it has announced that it drains
	retired   chan struct{} // receives a value when, after that, the coordinator reports that it has no work left
}

// Start starts the actor and its socket. The coordinator finds the node once it announces
// gossip.Ready.
func Start(c Config) (*Node, error) {
	n := &Node{Config: c, mux: rpc.NewMux(c.Bus.RPC), retired: make(chan struct{}, 1)}
	n.register()
	var err error
	n.pid, err = c.Bus.RPC.Spawn(SocketName, actor.PropsFromProducer(func() actor.Actor { return n }))
	return n, err
}

// Stop stops the actor and its socket.
func (n *Node) Stop() { socket.Stop(n.Bus.RPC.Actors().Root, n.pid, n.Socket.Stopped) }

// Leave announces that the node leaves. If wait is set, it returns once other nodes have its work.
func (n *Node) Leave(wait bool) {
	n.leaving.Store(true)
	_ = n.Bus.SetState(gossip.Draining)
	if wait {
		n.drain()
	}
}

// Receive implements actor.Actor.
func (n *Node) Receive(c actor.Context) {
	if _, ok := c.Message().(*actor.Started); ok {
		n.socketPID = c.Spawn(actor.PropsFromProducer(func() actor.Actor { return &socket.Actor{Config: n.Socket} }))
		return
	}
	n.mux.Receive(c)
}

func (n *Node) register() {
	rpc.Handle(n.mux, uint32(proto.Kind_KIND_DESCRIBE), func(c *rpc.Ctx, _ *proto.Empty) {
		n.Contact.Note()
		// A restarted coordinator continues after the newest epoch.
		c.Actor.Send(n.socketPID, &socket.Status{Reply: func(s *proto.SocketStatus) {
			d := pb.Clone(n.Description).(*proto.NodeDescription)
			d.Epoch = s.Epoch
			respond(c, d, nil)
		}})
	})
	rpc.Handle(n.mux, uint32(proto.Kind_KIND_LOAD), func(c *rpc.Ctx, m *proto.LoadRequest) {
		c.Actor.Send(n.socketPID, &socket.Load{Request: m, Reply: func(r *proto.LoadReply, err error) { respond(c, r, err) }})
	})
	rpc.Handle(n.mux, uint32(proto.Kind_KIND_JOIN), func(c *rpc.Ctx, m *proto.JoinRequest) {
		c.Actor.Send(n.socketPID, &socket.Join{Request: m, Reply: func(r *proto.JoinReply, err error) { respond(c, r, err) }})
	})
	rpc.Handle(n.mux, uint32(proto.Kind_KIND_STEP), func(c *rpc.Ctx, m *proto.StepRequest) {
		c.Actor.Send(n.socketPID, &socket.Step{Request: m, Reply: func(r *proto.StepReply, err error) { respond(c, r, err) }})
	})
	rpc.Handle(n.mux, uint32(proto.Kind_KIND_RETIRE), func(c *rpc.Ctx, m *proto.RetireRequest) {
		c.Actor.Send(n.socketPID, &socket.Retire{Request: m, Reply: func(err error) {
			respond(c, &proto.Empty{}, err)
			if err == nil && n.leaving.Load() {
				select {
				case n.retired <- struct{}{}:
				default:
				}
			}
		}})
	})
	rpc.Handle(n.mux, uint32(proto.Kind_KIND_RELEASE), func(c *rpc.Ctx, m *proto.ReleaseRequest) {
		c.Actor.Send(n.socketPID, &socket.Release{Request: m, Reply: func(r *proto.ReleaseReply, err error) { respond(c, r, err) }})
	})
	rpc.Handle(n.mux, uint32(proto.Kind_KIND_PREFIX), func(c *rpc.Ctx, m *proto.PrefixRequest) {
		c.Actor.Send(n.socketPID, &socket.Prefix{Request: m, Reply: func(r *proto.PrefixReply, err error) { respond(c, r, err) }})
	})
	rpc.Handle(n.mux, uint32(proto.Kind_KIND_ADAPTER), func(c *rpc.Ctx, m *proto.AdapterRequest) {
		c.Actor.Send(n.socketPID, &socket.Adapter{Request: m, Reply: func(r *proto.AdapterReply, err error) { respond(c, r, err) }})
	})
	rpc.Handle(n.mux, uint32(proto.Kind_KIND_STATUS), func(c *rpc.Ctx, _ *proto.Empty) {
		n.Contact.Note()
		c.Actor.Send(n.socketPID, &socket.Status{Reply: func(s *proto.SocketStatus) {
			if n.Fetched != nil {
				s.FetchedBytes = n.Fetched()
			}
			respond(c, processFigures(s, n.Bus.NATS), nil)
		}})
	})
}
