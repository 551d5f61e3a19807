package natsbus

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/shoal-llm/shoal/internal/lograte"
)

// startLimit bounds the time in which the listeners must come up.
const startLimit = 10 * time.Second

// Server is this process's part of the bus.
type Server struct {
	cfg    Config
	users  *users
	ns     *server.Server // nil: external NATS
	stop   chan struct{}  // of the guard
	wait   func()         // until the guard has ended
	fatal  atomic.Pointer[string]
	broken atomic.Pointer[string] // see Broken

	mu     sync.Mutex
	seeds  []string
	conns  map[*nats.Conn]struct{} // open, or closed since the last sweep
	closed bool
}

// Start starts the embedded server and its listeners. It does not wait for other servers;
// [Transport.Ready] does.
func Start(cfg Config) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.ensureDefaults()
	s := &Server{cfg: cfg, seeds: slices.Clone(cfg.Seeds), conns: map[*nats.Conn]struct{}{}, stop: make(chan struct{}), wait: func() {}}
	if cfg.URL != "" {
		if err := s.checkExternal(); err != nil {
			return nil, err
		}
		return s, nil
	}
	s.users = newUsers(cfg.Cluster, cfg.secrets, nil)
	if cfg.StoreDir == "" { // servers of a store have no ranks
		s.users.addr = s.announcedAddr
	}
	ns, err := server.NewServer(s.options(s.seeds))
	if err != nil {
		return nil, fmt.Errorf("natsbus: server %s: %w", cfg.Name, err)
	}
	s.ns = ns
	ns.SetLoggerV2(serverLog{cfg.Log, new(lograte.Limiter), &s.fatal, &s.broken}, false, false, false)
	ns.Start()
	for end := time.Now().Add(startLimit); !ns.ReadyForConnections(100 * time.Millisecond); {
		if why := s.fatal.Load(); why != nil {
			s.Shutdown()
			return nil, fmt.Errorf("natsbus: server %s: %s", cfg.Name, *why)
		}
		if time.Now().After(end) {
			s.Shutdown()
			return nil, fmt.Errorf("natsbus: server %s: listeners for %s not up after %v", cfg.Name, cfg.Listen, startLimit)
		}
	}
	if s.wait, err = guard(ns, s.stop); err != nil {
		s.wait = func() {}
		s.Shutdown()
		return nil, fmt.Errorf("natsbus: server %s: its connections cannot be watched: %w", cfg.Name, err)
	}
	return s, nil
}

// Name returns the server's name, the node's id.
func (s *Server) Name() string { return s.cfg.Name }

// RouteAddr returns the address to which other servers connect. Config.Advertise sets it. It is empty with an external
// NATS. A wildcard host is returned unchanged.
func (s *Server) RouteAddr() string {
	if s.ns == nil || s.cfg.Alone {
		return ""
	}
	addr := s.ns.ClusterAddr()
	if addr == nil { // shut down
		return ""
	}
	host, port, _ := splitAddress(s.cfg.Advertise) // Validate has split it
	switch {
	case host == "":
		return addr.String()
	case port == 0:
		port = addr.Port
	}
	return net.JoinHostPort(host, strconv.Itoa(port))
}

// Addr returns the client listener, where ranks of other processes subscribe to this process's ranks.
func (s *Server) Addr() net.Addr {
	if s.ns == nil {
		return nil
	}
	return s.ns.Addr()
}

// announcedAddr returns the address at which other processes can subscribe to this one's messages. It is
// empty if they cannot; routes then carry the messages. An advertised port is that of the routes only.
func (s *Server) announcedAddr() string {
	host, port, _ := splitAddress(s.cfg.Advertise)
	if s.ns == nil || s.cfg.Alone || port != 0 {
		return ""
	}
	addr, ok := s.ns.Addr().(*net.TCPAddr) // nil once the server is shutting down
	switch {
	case !ok:
		return ""
	case host != "":
		return net.JoinHostPort(host, strconv.Itoa(addr.Port))
	case addr.IP.IsUnspecified():
		return ""
	}
	return addr.String()
}

// AddRoute connects to one more server, at host:port, and retries for ever.
func (s *Server) AddRoute(addr string) error {
	if s.ns == nil || s.cfg.Alone {
		return fmt.Errorf("%w: AddRoute(%q) without a mesh (URL or Alone is set)", ErrConfig, addr)
	}
	if _, port, err := splitAddress(addr); err != nil || port == 0 {
		return fmt.Errorf("%w: AddRoute(%q): want host:port", ErrConfig, addr)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("%w: AddRoute(%q)", ErrClosed, addr)
	}
	if slices.Contains(s.seeds, addr) || addr == s.RouteAddr() {
		return nil
	}
	seeds := append(slices.Clone(s.seeds), addr)
	if err := s.ns.ReloadOptions(s.options(seeds)); err != nil {
		return fmt.Errorf("natsbus: add route %s: %w", addr, err)
	}
	s.seeds = seeds
	return nil
}

// Peers lists the servers that this one has a route to, by name, sorted.
func (s *Server) Peers() []string {
	if s.ns == nil {
		return nil
	}
	names := make([]string, 0, 16)
	for n := range routes(s.ns) {
		names = append(names, n)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// routes maps the names of connected servers to the ids of their incarnations.
func routes(ns *server.Server) map[string]string {
	z, err := ns.Routez(nil)
	if err != nil {
		return nil
	}
	m := make(map[string]string, len(z.Routes))
	for _, r := range z.Routes {
		m[r.RemoteName] = r.RemoteID
	}
	return m
}

// Connect opens a connection for everything except tensors (jobs, control, JetStream). It
// reconnects for ever and buffers nothing: during an outage a publish fails at once.
func (s *Server) Connect(role string, opts ...nats.Option) (*nats.Conn, error) {
	all := append([]nats.Option{nats.MaxReconnects(-1), nats.ReconnectBufSize(-1), nats.ReconnectWait(100 * time.Millisecond)}, opts...)
	nc, _, err := s.connect(role, controlPermissions(), all...)
	return nc, err
}

// connect opens a connection. forget revokes its login.
func (s *Server) connect(role string, p *server.Permissions, opts ...nats.Option) (nc *nats.Conn, forget func(), err error) {
	return s.connectAs(role, &server.User{Permissions: p}, opts...)
}

func (s *Server) connectAs(role string, as *server.User, opts ...nats.Option) (nc *nats.Conn, forget func(), err error) {
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return nil, nil, fmt.Errorf("%w: connect as %s", ErrClosed, role)
	}
	all := []nats.Option{nats.Name(s.cfg.Name + "/" + role), nats.Timeout(5 * time.Second)}
	url, forget := s.cfg.URL, func() {}
	if s.ns != nil {
		token := s.users.mint(as)
		url, forget = "", func() { s.users.drop(token) }
		all = append(all, nats.InProcessServer(s.ns), nats.Token(token))
	}
	nc, err = nats.Connect(url, append(all, opts...)...)
	if err != nil {
		forget()
		return nil, nil, fmt.Errorf("natsbus: connect as %s%s: %w", role, s.to(), err)
	}
	s.mu.Lock()
	s.sweep()
	s.conns[nc] = struct{}{}
	s.mu.Unlock()
	return nc, forget, nil
}

// to returns where connections go, for error texts, if that is an external NATS.
func (s *Server) to() string {
	if s.ns != nil {
		return ""
	}
	return " to " + redacted(s.cfg.URL)
}

// sweep removes closed connections. The lock is held.
func (s *Server) sweep() {
	for nc := range s.conns {
		if nc.IsClosed() {
			delete(s.conns, nc)
		}
	}
}

// Subscriptions counts subscriptions, for tests that look for leaks. With an embedded server it
// counts those of its connections and routes; with an external NATS, those of this process's
// connections.
func (s *Server) Subscriptions() int {
	if s.ns != nil {
		return int(s.ns.NumSubscriptions())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep()
	n := 0
	for nc := range s.conns {
		n += nc.NumSubscriptions()
	}
	return n
}

// Shutdown stops the server and everything connected to it, and waits.
func (s *Server) Shutdown() {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.closed = true
	s.mu.Unlock()
	close(s.stop)
	s.wait()
	if s.ns != nil {
		s.ns.Shutdown()
		s.ns.WaitForShutdown()
	}
}
