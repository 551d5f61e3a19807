package rpc

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/asynkron/protoactor-go/remote"
	pb "google.golang.org/protobuf/proto"

	"shoal/proto"
	"shoal/security"
)

// Network connects Systems of one process without sockets, for tests of whole
// clusters under the race detector (see the package comment for why sockets
// will not do there). Messages are encoded, checked and delivered as on the
// wire; a Cut or a Kill is noticed as a broken connection is.
type Network struct {
	mu      sync.Mutex
	next    int
	members map[string]*member
	cuts    map[[2]string]bool
}

type member struct {
	s    *System
	gone chan struct{} // closed when it leaves the network
}

// NewNetwork makes an empty network.
func NewNetwork() *Network {
	return &Network{members: map[string]*member{}, cuts: map[[2]string]bool{}}
}

// attach gives s the address of its Bind, or a fresh one for port 0.
func (n *Network) attach(s *System) error {
	host, port, err := security.HostPort(s.cfg.Bind)
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if port == 0 {
		n.next++
		port = n.next
	}
	s.address = net.JoinHostPort(host, strconv.Itoa(port))
	if n.members[s.address] != nil {
		return fmt.Errorf("%w: %s on the memory network", ErrAddressTaken, s.address)
	}
	s.actors.ProcessRegistry.Address = s.address // before anyone can find it
	n.members[s.address] = &member{s: s, gone: make(chan struct{})}
	return nil
}

// Kill takes a System off the network as kill -9 would: the others see its
// connections break, and its address is free again. The System itself goes on,
// unheard, until it is closed.
func (n *Network) Kill(address string) {
	n.mu.Lock()
	m := n.members[address]
	delete(n.members, address)
	var others []*System
	for _, o := range n.members {
		others = append(others, o.s)
	}
	n.mu.Unlock()
	if m == nil {
		return
	}
	close(m.gone)
	for _, o := range others {
		o.actors.EventStream.Publish(&remote.EndpointTerminatedEvent{Address: address})
	}
}

// detach is Kill for a System that closes; another may have the address by now.
func (n *Network) detach(s *System) {
	n.mu.Lock()
	m := n.members[s.address]
	n.mu.Unlock()
	if m != nil && m.s == s {
		n.Kill(s.address)
	}
}

// Cut loses every message between two addresses, in both directions, until
// Mend. Like a black hole, it tells neither side.
func (n *Network) Cut(a, b string) { n.cut(a, b, true) }

// Mend ends a Cut.
func (n *Network) Mend(a, b string) { n.cut(a, b, false) }

func (n *Network) cut(a, b string, on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, pair := range [][2]string{{a, b}, {b, a}} {
		if on {
			n.cuts[pair] = true
		} else {
			delete(n.cuts, pair)
		}
	}
}

// find returns who listens at to, nil if nobody does, and whether from and to
// can hear each other.
func (n *Network) find(from *System, to string) (m *member, heard bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	self := n.members[from.address]
	if self == nil || self.s != from { // killed: nothing gets out
		return nil, false
	}
	return n.members[to], !n.cuts[[2]string{from.address, to}]
}

func (n *Network) send(from *System, to *actor.PID, e *proto.Envelope, sender *actor.PID) error {
	m, heard := n.find(from, to.Address)
	if m == nil || !heard {
		return nil // lost, silently, as on a wire
	}
	data, err := pb.Marshal(e)
	if err != nil {
		return fmt.Errorf("rpc: kind %d: %w", e.Kind, err)
	}
	if err := m.s.accept(to.Id, data, sender, ""); err != nil {
		m.s.drops.hostile.Add(1)
	}
	return nil
}

func (n *Network) hello(ctx context.Context, from *System, address string) (Peer, *member, error) {
	m, heard := n.find(from, address)
	if !heard && m != nil {
		<-ctx.Done()
		return Peer{}, nil, fmt.Errorf("%w: %s: %w", ErrUnreachable, address, ctx.Err())
	}
	if m == nil {
		return Peer{}, nil, fmt.Errorf("%w: %s: nobody listens", ErrUnreachable, address)
	}
	if _, err := meetHello(from.hello(), ""); err != nil {
		return Peer{}, nil, err
	}
	p, err := meetHello(m.s.hello(), "")
	p.Address = address
	return p, m, err
}

// stayWith is System.stayWith on this network.
func (n *Network) stayWith(ctx context.Context, from *System, address string, known *Peer, w *watch) (Peer, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	greeting, stop := context.WithTimeout(ctx, from.patience(w))
	p, m, err := n.hello(greeting, from, address)
	stop()
	if err != nil {
		return Peer{}, err
	}
	if !w.meet(known, p) {
		return p, nil
	}
	select {
	case <-m.gone:
		return p, fmt.Errorf("its connection broke")
	case <-w.alarm:
		return p, errReported
	case <-ctx.Done():
		return p, ctx.Err()
	}
}
