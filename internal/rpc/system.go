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

// System is this process's endpoint of the control network: an actor system that peers reach at
// Address. Its methods may be called from any goroutine.
type System struct {
	cfg     Config
	address string
	log     *slog.Logger
	actors  *actor.ActorSystem
	remote  *remote.Remote
	events  *eventstream.Subscription

	ctx    context.Context // ends at Close
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

// Start listens and serves. It returns ErrAddressTaken if another process uses the address.
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
	// A free port is chosen before Proto.Actor binds it, because the advertised address must be
	// known first. Another process may take the port in between, hence the retries.
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
	s.requests.Store(rand.Uint64() >> 1) // random start, so that replies to an earlier run do not match
	s.actors = actor.NewActorSystem(actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger {
		return slog.New(demote{cfg.Logger.Handler(), restore}).With("component", "proto.actor")
	}))
	return s
}

// probe checks whether the address is free, and chooses the port if it is 0.
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

// startRemote converts Proto.Actor's panics into errors.
func startRemote(r *remote.Remote) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	r.Start()
	return nil
}

// Address returns the host:port at which peers reach this System.
func (s *System) Address() string { return s.address }

// Actors returns the actor system, for local actors, timers and event streams. Do not send to
// remote PIDs through it: only Call and Send give this package's guarantees, and peers drop other
// messages.
func (s *System) Actors() *actor.ActorSystem { return s.actors }

// PID returns the PID of the actor with this name at a peer's address.
func (s *System) PID(address, name string) *actor.PID { return actor.NewPID(address, name) }

// PeerLost reports that another source (gossip, a dropped route) considers a peer dead. Calls to it
// fail with ErrPeerLost and its connection is dropped. Watches ping it before they report it, so a
// false alarm costs only a reconnect.
func (s *System) PeerLost(address string) {
	s.gate.RLock()
	defer s.gate.RUnlock()
	if s.closed {
		return
	}
	s.actors.EventStream.Publish(&remote.EndpointTerminatedEvent{Address: address})
}

// onEvent runs in the publishing goroutine, so it must not block.
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

// Close stops the actors, connections and goroutines of the System and waits for them. Calls in
// progress fail with ErrClosed. Closing twice is safe.
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
	// Remote.Shutdown(true) deletes maps that its goroutines still use. Stopping the supervisor of
	// the endpoints first, which waits for them, and then only the server, avoids both leaks and
	// races.
	if err := s.actors.Root.StopFuture(s.actors.NewLocalPID("EndpointSupervisor")).Wait(); err != nil {
		s.log.Warn("a connection to a peer did not close", "error", err)
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
		return errors.New("rpc: close: some connections did not close within 5 s")
	}
}

// begin registers a goroutine of this System, unless the System is closed.
func (s *System) begin() bool {
	s.gate.RLock()
	defer s.gate.RUnlock()
	if s.closed {
		return false
	}
	s.wg.Add(1)
	return true
}
