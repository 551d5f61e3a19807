package rpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/asynkron/protoactor-go/eventstream"
	"github.com/asynkron/protoactor-go/remote"

	"github.com/shoal-llm/shoal/internal/security"
)

// System is one process's end of the control network: an actor system that
// others reach at Address. Its methods may be called from any goroutine.
type System struct {
	cfg     Config
	address string
	log     *slog.Logger
	actors  *actor.ActorSystem
	remote  *remote.Remote
	events  *eventstream.Subscription

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup // goroutines that this System started
	gate   sync.RWMutex   // read: sending; write: closing
	closed bool

	calls    pending
	requests atomic.Uint64
	peers    peers
	outboxes sync.Map // address -> *outbox
	boxes    sync.Map // actor name -> *box
	dialing  sync.Map // address -> *dialState
	watches  watches
	drops    drops
}

// Start listens and serves. It fails with ErrAddressTaken if another process
// has the address.
func Start(cfg Config) (*System, error) {
	cfg.ensureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := cfg.checkOwnCertificate(); err != nil {
		return nil, err
	}
	_, port, err := security.HostPort(cfg.Bind)
	if err != nil {
		return nil, err
	}
	// A free port is chosen before Proto.Actor binds it, because the address
	// that it tells peers must be known first; another process can snatch the
	// port in between, hence the tries.
	for try := 0; ; try++ {
		s, err := start(cfg)
		if err == nil || port != 0 || try == 4 || !errors.Is(err, ErrAddressTaken) {
			return s, err
		}
	}
}

func start(cfg Config) (*System, error) {
	host, port, err := probe(cfg.Bind)
	if err != nil {
		return nil, err
	}
	address, err := cfg.advertised(port)
	if err != nil {
		return nil, err
	}
	restore := &restorer{to: cfg.Logger}
	s := newSystem(cfg, restore)
	s.address = address
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	s.remote = remote.NewRemote(s.actors, remote.Configure(host, port, s.remoteOptions(address)...))
	restore.armed.Store(true)
	if err := startRemote(s.remote); err != nil {
		s.cancel()
		return nil, fmt.Errorf("%w: %s: %v", ErrAddressTaken, cfg.Bind, err)
	}
	s.events = s.actors.EventStream.Subscribe(s.onEvent)
	s.log.Debug("rpc listens", "address", address, "id", cfg.ID, "incarnation", cfg.Incarnation, "tls", cfg.ServerTLS != nil)
	return s, nil
}

func newSystem(cfg Config, restore *restorer) *System {
	s := &System{cfg: cfg, log: cfg.Logger.With("component", "rpc")}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.requests.Store(rand.Uint64() >> 1) // not from 1: replies to an earlier run should not even look right
	s.actors = actor.NewActorSystem(actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger {
		return slog.New(demote{cfg.Logger.Handler(), restore}).With("component", "proto.actor")
	}))
	return s
}

// probe finds out whether the address can be had, and which port 0 would be.
func probe(bind string) (host string, port int, err error) {
	host, _, err = security.HostPort(bind)
	if err != nil {
		return "", 0, err
	}
	l, err := net.Listen("tcp", bind)
	if errors.Is(err, syscall.EADDRINUSE) {
		return "", 0, fmt.Errorf("%w: %s: another process listens there; stop it or choose another port", ErrAddressTaken, bind)
	}
	if err != nil {
		return "", 0, fmt.Errorf("rpc: cannot listen on %s: %w", bind, err)
	}
	port = l.Addr().(*net.TCPAddr).Port
	return host, port, l.Close()
}

// startRemote turns Proto.Actor's panics into errors.
func startRemote(r *remote.Remote) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	r.Start()
	return nil
}

// Address is host:port at which peers reach this System.
func (s *System) Address() string { return s.address }

// Actors is the actor system, for local actors, timers and event streams. Do
// not send to remote PIDs through it: only Call and Send keep the promises of
// this package, and peers drop other messages.
func (s *System) Actors() *actor.ActorSystem { return s.actors }

// PID names the actor that was spawned under name at a peer's address.
func (s *System) PID(address, name string) *actor.PID { return actor.NewPID(address, name) }

// PeerGone tells the System that another source (gossip, a dropped route)
// holds a peer for gone. Calls to it fail with ErrPeerLost, its connection is
// dropped, and watches ping it back before they report it, so a false alarm
// costs a reconnect and no more.
func (s *System) PeerGone(address string) {
	s.gate.RLock()
	defer s.gate.RUnlock()
	if s.closed {
		return
	}
	s.actors.EventStream.Publish(&remote.EndpointTerminatedEvent{Address: address})
}

// onEvent runs in whatever goroutine publishes, so it must not block.
func (s *System) onEvent(event any) {
	switch e := event.(type) {
	case *remote.EndpointTerminatedEvent:
		s.peers.drop(e.Address)
		s.outboxes.Delete(e.Address)
		s.calls.fail(e.Address, fmt.Errorf("%w: the connection to %s broke; whether it acted is unknown", ErrPeerLost, e.Address))
		s.watches.kick(e.Address)
	case *remote.EndpointConnectedEvent:
		s.dial(e.Address).settle()
	}
}

// Close stops actors, connections and goroutines of the System and returns
// when they have ended. Calls in progress fail with ErrClosed. Closing twice
// is safe.
func (s *System) Close() error {
	s.gate.Lock()
	if s.closed {
		s.gate.Unlock()
		return nil
	}
	s.closed = true
	s.gate.Unlock()

	s.cancel()
	s.calls.fail("", ErrClosed)
	s.stopActors()
	s.wg.Wait()
	// Remote.Shutdown(true) tears down maps that its own goroutines still use.
	// Stopping the supervisor of the endpoints, which waits for them, and then
	// only the server, leaves nothing running and races with nothing.
	if err := s.actors.Root.StopFuture(s.actors.NewLocalPID("EndpointSupervisor")).Wait(); err != nil {
		s.log.Warn("a connection to a peer did not end", "error", err)
	}
	stopped := make(chan struct{})
	go func() {
		s.remote.Shutdown(false)
		close(stopped)
	}()
	select {
	case <-stopped:
		return nil
	case <-time.After(5 * time.Second):
		return errors.New("rpc: close: some connections did not end within 5 s")
	}
}

// begin registers work of this System, unless it is closed.
func (s *System) begin() bool {
	s.gate.RLock()
	defer s.gate.RUnlock()
	if s.closed {
		return false
	}
	s.wg.Add(1)
	return true
}
