package natsbus

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/shoal-llm/shoal/collective"
)

// TransportConfig names the rank and the group that a transport serves. Everything but Rank must be
// the same on all ranks.
type TransportConfig struct {
	Group        string // one token; with the epoch, unique in the cluster
	Epoch        uint32
	Rank, Size   int
	Incarnations []uint32 // as in collective.Config; nil: all zero
	Digest       [32]byte // hash of the placement; hellos with another digest are refused

	// PendingBytes bounds the bytes that have arrived and were not yet delivered (default 1 GiB, 4
	// x WindowBytes). Above it the group fails; otherwise messages would be lost silently.
	PendingBytes int
}

func (c TransportConfig) validate() error {
	bad := func(format string, a ...any) error {
		return fmt.Errorf("%w: transport: %s", ErrConfig, fmt.Sprintf(format, a...))
	}
	switch {
	case !isToken(c.Group):
		return bad("Group %q: want letters, digits, - and _", c.Group)
	case c.Size < 1 || c.Size > collective.MaxRanks:
		return bad("Size %d, want 1..%d", c.Size, collective.MaxRanks)
	case c.Rank < 0 || c.Rank >= c.Size:
		return bad("Rank %d, want 0..%d", c.Rank, c.Size-1)
	case c.Incarnations != nil && len(c.Incarnations) != c.Size:
		return bad("%d Incarnations for %d ranks", len(c.Incarnations), c.Size)
	case c.PendingBytes < 0:
		return bad("PendingBytes %d", c.PendingBytes)
	}
	return nil
}

// Transport is a collective.Transport. One connection publishes to this process's own server, and
// one subscribes at the server of each other rank (see announce.go), so a message crosses one server.
// With an external NATS one connection subscribes for all.
//
// No connection does both. On a shared connection a large Publish holds the client's lock while it
// waits for the server to read. The client's reader needs that lock to answer a ping, and the
// server may be waiting for that reader. That is a deadlock across two nodes which only a write
// deadline breaks.
//
// A lost connection is never repaired: which messages were lost with it is unknown. The group
// fails, and the next epoch opens a new transport.
type Transport struct {
	cfg    TransportConfig
	names  subjects
	server *Server
	to     []string    // direct subjects by rank
	out    publisher   // publishes only
	outs   []publisher // to the own server, by destination rank; nil: out serves all
	in     *nats.Conn  // subscribes only
	forget []func()
	pool   buffers
	poller *poller // reads the links to other servers

	dialing context.Context // ends with the transport
	cancel  context.CancelFunc

	receive atomic.Pointer[func(int, []byte)]

	mu      sync.Mutex
	barrier *barrier
	peers   []peer // by rank
	refused uint64 // hellos that were not for this incarnation of the group
	changed chan struct{}
	early   []early // messages before Receive
	held    int
	onError func(error)
	err     error
	closed  bool
}

// publisher is a connection that publishes: a link or a nats.Conn.
type publisher interface {
	Publish(subject string, msg []byte) error
	Close()
}

type early struct {
	src int
	msg []byte
}

var (
	_ collective.Transport = (*Transport)(nil)
	_ collective.Notifier  = (*Transport)(nil)
	_ collective.Recycler  = (*Transport)(nil)
	_ collective.Poller    = (*Transport)(nil)
)

// Transport opens the data connections of one rank in one group and epoch. The group on it may be
// created before or after Ready.
func (s *Server) Transport(cfg TransportConfig) (*Transport, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if cfg.Incarnations == nil {
		cfg.Incarnations = make([]uint32, cfg.Size)
	}
	cfg.Incarnations = slices.Clone(cfg.Incarnations)
	cfg.PendingBytes = cmp.Or(cfg.PendingBytes, 1<<30)
	t := &Transport{
		cfg: cfg, names: newSubjects(s.cfg.Cluster, cfg.Group, cfg.Epoch, cfg.Rank), server: s,
		barrier: newBarrier(cfg.Rank, cfg.Size, cfg.Digest), peers: make([]peer, cfg.Size),
		changed: make(chan struct{}, 1),
	}
	var err error
	if t.poller, err = newPoller(); err != nil {
		return nil, fmt.Errorf("natsbus: connections cannot be polled: %w", err)
	}
	t.dialing, t.cancel = context.WithCancel(context.Background())
	for r := range cfg.Size {
		t.to = append(t.to, t.names.direct(r, cfg.Rank))
	}
	if err := t.connect(); err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// connect opens the connections to the own server, or to the external one.
func (t *Transport) connect() error {
	role := fmt.Sprintf("rank-%s-%d-%d", t.cfg.Group, t.cfg.Epoch, t.cfg.Rank)
	if t.server.ns == nil {
		out, err := t.open(role+"-out", publishPermissions(t.names))
		if err != nil {
			return err
		}
		t.out = out
	} else {
		if err := t.openPublishers(role); err != nil {
			return err
		}
	}
	var err error
	if t.in, err = t.open(role+"-in", subscribePermissions(t.names)); err != nil {
		return err
	}
	if t.server.ns != nil {
		err = t.listen(t.names.allCalls())
	} else {
		for r := range t.cfg.Size {
			if r != t.cfg.Rank && err == nil {
				err = t.listen(t.names.from(r)...)
			}
		}
	}
	if err != nil {
		return err
	}
	// One round trip: the server now has the subscriptions and spreads them.
	if err := t.in.FlushTimeout(5 * time.Second); err != nil {
		return fmt.Errorf("natsbus: subscriptions of %s: %w", t.names.prefix, err)
	}
	return nil
}

// openPublishers opens publish-only connections to this node's server: one for broadcasts and one
// for each other rank. The server reads each connection on one goroutine.
func (t *Transport) openPublishers(role string) error {
	open := func(role string) (*link, error) {
		l, forget, err := t.server.pipe(t.dialing, role, publishPermissions(t.names))
		if err != nil {
			return nil, err
		}
		t.forget = append(t.forget, forget)
		l.deliverTo(&t.pool, func(int, []byte) {}, func(err error) { t.fail(fmt.Errorf("%w: connection: %w", ErrLost, err)) })
		l.read()
		return l, nil
	}
	out, err := open(role + "-out")
	if err != nil {
		return err
	}
	t.out, t.outs = out, make([]publisher, t.cfg.Size)
	for r := range t.outs {
		if r == t.cfg.Rank {
			continue
		}
		l, err := open(fmt.Sprintf("%s-out-%d", role, r))
		if err != nil {
			return err
		}
		t.outs[r] = l
	}
	return nil
}

// listen subscribes at the own server, with one subscription per source. Own broadcasts never come
// back, and large messages of different peers are copied in parallel.
func (t *Transport) listen(subjects ...string) error {
	for _, subject := range subjects {
		sub, err := t.in.Subscribe(subject, t.arrive)
		if err == nil {
			err = sub.SetPendingLimits(-1, t.cfg.PendingBytes)
		}
		if err != nil {
			return fmt.Errorf("natsbus: subscribe %s: %w", subject, err)
		}
	}
	return nil
}

// open connects with nats.go. The loss of the connection fails the group.
func (t *Transport) open(role string, p *server.Permissions) (*nats.Conn, error) {
	nc, forget, err := t.server.connect(role, p,
		nats.NoEcho(), nats.NoReconnect(), nats.ReconnectBufSize(-1),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			t.fail(fmt.Errorf("%w: %w", ErrLost, err))
		}),
		nats.DisconnectErrHandler(func(nc *nats.Conn, err error) {
			if err == nil {
				err = nc.LastError()
			}
			if err == nil {
				err = nats.ErrConnectionClosed
			}
			t.fail(fmt.Errorf("%w: connection: %w", ErrLost, err))
		}))
	if err == nil {
		t.forget = append(t.forget, forget)
	}
	return nc, err
}

// Broadcast sends to all other ranks.
func (t *Transport) Broadcast(msg []byte) error {
	return t.publish(t.out, t.names.broadcast(t.cfg.Rank), msg)
}

// Send sends to one rank. Sends to different ranks run in parallel.
func (t *Transport) Send(dst int, msg []byte) error {
	out := t.out
	if t.outs != nil && dst != t.cfg.Rank {
		out = t.outs[dst]
	}
	return t.publish(out, t.to[dst], msg)
}

func (t *Transport) publish(out publisher, subject string, msg []byte) error {
	if err := out.Publish(subject, msg); err != nil {
		return fmt.Errorf("natsbus: publish %d bytes on %s: %w", len(msg), subject, err)
	}
	if t.server.ns != nil {
		// Let the server's writers run before the caller's next computation occupies this CPU.
		// Twice, because in one of 61 schedules Go first runs the goroutine that yielded last.
		runtime.Gosched()
		runtime.Gosched()
	}
	return nil
}

// arrive runs on the goroutine of a subscription at the own server.
func (t *Transport) arrive(m *nats.Msg) {
	src := source(m.Subject, t.cfg.Size)
	if src < 0 || src == t.cfg.Rank {
		return
	}
	if !isHello(m.Data) {
		t.deliver(src, m.Data)
		return
	}
	switch m.Subject[len(t.names.prefix)+1] {
	case 'a':
		t.announced(src, m.Data)
	default:
		t.hello(src, m.Subject[len(t.names.prefix)+1] == 'p', m.Data)
	}
}

// deliver passes a tensor to the group, or holds it until Receive.
func (t *Transport) deliver(src int, msg []byte) {
	if f := t.receive.Load(); f != nil {
		(*f)(src, msg)
		return
	}
	t.mu.Lock()
	if f := t.receive.Load(); f != nil {
		t.mu.Unlock()
		(*f)(src, msg)
		return
	}
	over := t.held+len(msg) > t.cfg.PendingBytes
	if !over {
		t.early = append(t.early, early{src, msg})
		t.held += len(msg)
	}
	t.mu.Unlock()
	if over {
		t.fail(fmt.Errorf("%w: more than %d bytes arrived before the group was made", ErrLost, t.cfg.PendingBytes))
	}
}

// Receive delivers the messages held so far, then all others as they arrive.
func (t *Transport) Receive(f func(src int, msg []byte)) {
	t.mu.Lock()
	held := t.early
	t.early, t.held = nil, 0
	t.receive.Store(&f)
	t.mu.Unlock()
	for _, m := range held {
		f(m.src, m.msg)
	}
}

// OnError sets the function to which a lost message or connection is reported. It calls the function at
// once if the transport has failed already.
func (t *Transport) OnError(f func(error)) {
	t.mu.Lock()
	t.onError = f
	err := t.err
	t.mu.Unlock()
	if err != nil {
		f(err)
	}
}

func (t *Transport) fail(err error) {
	t.mu.Lock()
	if t.closed || t.err != nil {
		t.mu.Unlock()
		return
	}
	t.err = err
	f := t.onError
	t.mu.Unlock()
	t.wake()
	if f != nil {
		f(err)
	}
}

// Close closes the connections. It does not wait for callbacks.
func (t *Transport) Close() error {
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return nil
	}
	t.closed = true
	t.early, t.held = nil, 0
	peers := slices.Clone(t.peers)
	t.mu.Unlock()
	t.cancel()
	t.wake()
	if t.out != nil {
		t.out.Close()
	}
	for _, l := range t.outs {
		if l != nil {
			l.Close()
		}
	}
	if t.in != nil {
		t.in.Close()
	}
	for _, p := range peers {
		if p.link != nil {
			p.link.Close()
		}
	}
	t.poller.close()
	for _, f := range t.forget {
		f()
	}
	return nil
}

// Polls implements collective.Poller. It is false for routes, an external NATS and connections with
// TLS, which goroutines read.
func (t *Transport) Polls() bool { return t.poller.count() == t.cfg.Size-1 }

// Poll implements collective.Poller.
func (t *Transport) Poll() { t.poller.poll() }

// Rest implements collective.Poller.
func (t *Transport) Rest() { t.poller.rest() }

// Recycle returns the buffer of a message.
func (t *Transport) Recycle(msg []byte) { t.pool.put(msg) }

func (t *Transport) wake() {
	select {
	case t.changed <- struct{}{}:
	default:
	}
}

// hello checks and answers a peer's hello.
func (t *Transport) hello(src int, direct bool, msg []byte) {
	h, payload, bad := collective.ParseMessage(msg)
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return
	}
	var out []hello
	if t.admits(src, h, bad) {
		out = t.barrier.received(src, direct, payload, nil)
	}
	over := t.barrier.remaining == 0 || t.barrier.wrong != nil
	t.mu.Unlock()
	if over {
		t.wake()
	}
	t.sendHellos(out)
}

// admits reports whether a hello belongs to a rank of this incarnation of the group. The lock is
// held.
func (t *Transport) admits(src int, h collective.Header, bad collective.Drop) bool {
	switch {
	case bad != collective.DropNone || int(h.Source) != src || h.Epoch != t.cfg.Epoch:
	case int(h.Size) != t.cfg.Size:
		t.barrier.reasons[src] = fmt.Sprintf("counts %d ranks, here %d", h.Size, t.cfg.Size)
	case h.Incarnation != t.cfg.Incarnations[src]:
		t.barrier.reasons[src] = fmt.Sprintf("incarnation %d, expected %d", h.Incarnation, t.cfg.Incarnations[src])
	default:
		return true
	}
	t.refused++
	return false
}

// helloMessage returns a hello with these flags, followed by more.
func (t *Transport) helloMessage(flags byte, more string) []byte {
	n := helloBytes + len(more)
	msg := make([]byte, collective.MessageBytes(n))
	t.barrier.payload(msg[collective.HeaderBytes:], flags)
	copy(msg[collective.HeaderBytes+helloBytes:], more)
	collective.PutMessage(msg, collective.Header{
		Kind: collective.KindHello, Source: uint16(t.cfg.Rank), Size: uint16(t.cfg.Size), Epoch: t.cfg.Epoch,
		Chunks: 1, Length: uint32(n), Incarnation: t.cfg.Incarnations[t.cfg.Rank],
	})
	return msg
}

func (t *Transport) sendHellos(out []hello) {
	for _, g := range out {
		msg := t.helloMessage(g.flags, "")
		var err error
		if g.dst < 0 {
			err = t.Broadcast(msg)
		} else {
			err = t.Send(g.dst, msg)
		}
		if err != nil {
			t.fail(fmt.Errorf("%w: hello: %w", ErrLost, err))
			return
		}
	}
}

const (
	helloFirst = 10 * time.Millisecond
	helloMost  = 200 * time.Millisecond
)

// Ready returns when this rank and every other one receive each other on both subjects. Nothing sent
// from then on is lost because of a missing subscription. The error (NotReadyError) names the ranks
// that are missing when ctx ends.
func (t *Transport) Ready(ctx context.Context) error {
	wait := helloFirst
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		t.mu.Lock()
		left, wrong, err, closed := t.barrier.remaining, t.barrier.wrong, t.err, t.closed
		ranks, why := t.barrier.missing()
		t.mu.Unlock()
		switch {
		case closed:
			return fmt.Errorf("%w: transport of rank %d", ErrClosed, t.cfg.Rank)
		case err != nil:
			return err
		case wrong != nil:
			return &NotReadyError{Ranks: ranks, Why: why, Cause: wrong}
		case left == 0:
			return nil
		}
		select {
		case <-ctx.Done():
			return &NotReadyError{Ranks: ranks, Why: why, Cause: context.Cause(ctx)}
		case <-t.changed:
		case <-timer.C:
			t.mu.Lock()
			out := t.barrier.tick(nil)
			t.mu.Unlock()
			t.announce(ranks)
			t.sendHellos(out)
			timer.Reset(wait)
			wait = min(2*wait, helloMost)
		}
	}
}
