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
	Bus *bus.Bus
	// Models are the models that the node holds a part of, at least one.
	Models []Model
	// Description describes this node to the coordinator. The node adds the newest epoch of its
	// sockets.
	Description *proto.NodeDescription
}

// Model is one model of a node: its socket.
type Model struct {
	Socket socket.Config
	// Fetched returns the bytes of weights that came from other processes; nil: the checkpoint is local.
	Fetched func() int64
	// DeviceUsed returns the memory of a graphics card that this process uses; nil: it uses none.
	DeviceUsed func() int64
}

// Node is a node process: one socket for each of its models, and an actor for each socket. That actor
// turns envelopes into commands of the socket and sends the socket's replies.
type Node struct {
	Config
	// Contact is the coordinator's last request.
	Contact bus.Contact
	hosts   []*host
	leaving atomic.Bool   // it has announced that it drains
	retired chan struct{} // receives a value when, after that, the coordinator reports that it has no work left
}

// host is the actor of one socket.
type host struct {
	*Node
	model  *Model
	mux    *rpc.Mux
	pid    *actor.PID
	socket atomic.Pointer[actor.PID] // nil: it has not started
}

// Start starts the actors and their sockets. The coordinator finds the node once it announces
// gossip.Ready.
func Start(c Config) (*Node, error) {
	n := &Node{Config: c, retired: make(chan struct{}, 1)}
	for i := range c.Models {
		c.Models[i].Socket.Rows = rows(c.Bus.RPC)
		h := &host{Node: n, model: &c.Models[i], mux: rpc.NewMux(c.Bus.RPC)}
		h.register()
		n.hosts = append(n.hosts, h)
	}
	for i, h := range n.hosts { // one may ask for the others at once
		var err error
		if h.pid, err = c.Bus.RPC.Spawn(socketName(i), actor.PropsFromProducer(func() actor.Actor { return h })); err != nil {
			n.Stop()
			return nil, err
		}
	}
	return n, nil
}

// Stop stops the actors and their sockets.
func (n *Node) Stop() {
	for _, h := range n.hosts {
		if h.pid == nil {
			continue // Start failed before
		}
		socket.Stop(n.Bus.RPC.Actors().Root, h.pid, h.model.Socket.Stopped)
	}
}

// Leave announces that the node leaves. If wait is set, it returns once other nodes have its work.
func (n *Node) Leave(wait bool) {
	n.leaving.Store(true)
	_ = n.Bus.SetState(gossip.Draining)
	if wait {
		n.drain()
	}
}

// newestEpoch calls done with the newest epoch that a socket from number i on has seen, or most.
func (n *Node) newestEpoch(i int, most uint32, done func(uint32)) {
	if i == len(n.hosts) {
		done(most)
		return
	}
	pid := n.hosts[i].socket.Load()
	if pid == nil {
		n.newestEpoch(i+1, most, done)
		return
	}
	n.Bus.RPC.Actors().Root.Send(pid, &socket.Status{Reply: func(s *proto.SocketStatus) { n.newestEpoch(i+1, max(most, s.Epoch), done) }})
}

// Receive implements actor.Actor.
func (h *host) Receive(c actor.Context) {
	if _, ok := c.Message().(*actor.Started); ok {
		h.socket.Store(c.Spawn(actor.PropsFromProducer(func() actor.Actor { return &socket.Actor{Config: h.model.Socket} })))
		return
	}
	h.mux.Receive(c)
}

func (h *host) register() {
	rpc.Handle(h.mux, uint32(proto.Kind_KIND_DESCRIBE), func(c *rpc.Ctx, _ *proto.Empty) {
		h.Contact.Renew()
		// A restarted coordinator continues after the newest epoch.
		h.newestEpoch(0, 0, func(epoch uint32) {
			d := pb.Clone(h.Description).(*proto.NodeDescription)
			d.Epoch = epoch
			respond(c, d, nil)
		})
	})
	rpc.Handle(h.mux, uint32(proto.Kind_KIND_LOAD), func(c *rpc.Ctx, m *proto.LoadRequest) {
		c.Actor.Send(h.socket.Load(), &socket.Load{Request: m, Reply: func(r *proto.LoadReply, err error) { respond(c, r, err) }})
	})
	rpc.Handle(h.mux, uint32(proto.Kind_KIND_JOIN), func(c *rpc.Ctx, m *proto.JoinRequest) {
		c.Actor.Send(h.socket.Load(), &socket.Join{Request: m, Reply: func(r *proto.JoinReply, err error) { respond(c, r, err) }})
	})
	rpc.Handle(h.mux, uint32(proto.Kind_KIND_STEP), func(c *rpc.Ctx, m *proto.StepRequest) {
		c.Actor.Send(h.socket.Load(), &socket.Step{Request: m, Reply: func(r *proto.StepReply, err error) { respond(c, r, err) }})
	})
	rpc.Handle(h.mux, uint32(proto.Kind_KIND_RETIRE), func(c *rpc.Ctx, m *proto.RetireRequest) {
		c.Actor.Send(h.socket.Load(), &socket.Retire{Request: m, Reply: func(err error) {
			respond(c, &proto.Empty{}, err)
			if err == nil && h.leaving.Load() {
				select {
				case h.retired <- struct{}{}:
				default:
				}
			}
		}})
	})
	rpc.Handle(h.mux, uint32(proto.Kind_KIND_RELEASE), func(c *rpc.Ctx, m *proto.ReleaseRequest) {
		c.Actor.Send(h.socket.Load(), &socket.Release{Request: m, Reply: func(r *proto.ReleaseReply, err error) { respond(c, r, err) }})
	})
	rpc.Handle(h.mux, uint32(proto.Kind_KIND_PREFIX), func(c *rpc.Ctx, m *proto.PrefixRequest) {
		c.Actor.Send(h.socket.Load(), &socket.Prefix{Request: m, Reply: func(r *proto.PrefixReply, err error) { respond(c, r, err) }})
	})
	rpc.Handle(h.mux, uint32(proto.Kind_KIND_ADAPTER), func(c *rpc.Ctx, m *proto.AdapterRequest) {
		c.Actor.Send(h.socket.Load(), &socket.Adapter{Request: m, Reply: func(r *proto.AdapterReply, err error) { respond(c, r, err) }})
	})
	rpc.Handle(h.mux, uint32(proto.Kind_KIND_TAKE), func(c *rpc.Ctx, m *proto.TakeRequest) {
		c.Actor.Send(h.socket.Load(), &socket.Take{Request: m, Reply: func(r *proto.TakeReply, err error) { respond(c, r, err) }})
	})
	rpc.Handle(h.mux, uint32(proto.Kind_KIND_SAVED), func(c *rpc.Ctx, m *proto.SavedRequest) {
		c.Actor.Send(h.socket.Load(), &socket.Saved{Request: m, Reply: func(r *proto.SavedReply, err error) { respond(c, r, err) }})
	})
	rpc.Handle(h.mux, uint32(proto.Kind_KIND_ROWS), func(c *rpc.Ctx, m *proto.RowsRequest) {
		c.Actor.Send(h.socket.Load(), &socket.Lend{Request: m, Reply: func(r *proto.RowsReply, err error) { respond(c, r, err) }})
	})
	rpc.Handle(h.mux, uint32(proto.Kind_KIND_STATUS), func(c *rpc.Ctx, _ *proto.Empty) {
		h.Contact.Renew()
		c.Actor.Send(h.socket.Load(), &socket.Status{Reply: func(s *proto.SocketStatus) {
			if h.model.Fetched != nil {
				s.FetchedBytes = h.model.Fetched()
			}
			if h.model.DeviceUsed != nil {
				s.DeviceUsedBytes = h.model.DeviceUsed()
			}
			respond(c, processFigures(s, h.Bus.NATS), nil)
		}})
	})
}
