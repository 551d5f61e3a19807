package gossip

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/shoal-llm/shoal/internal/lograte"
)

const (
	updateTimeout = time.Second     // for an update to be passed on to one other member
	leaveTimeout  = 2 * time.Second // for the farewell
	localFarewell = 300 * time.Millisecond
)

// Node is this process as a member. Its methods may be called from any
// goroutine.
type Node struct {
	cfg  Config
	log  *slog.Logger
	list *memberlist.Memberlist
	ring *memberlist.Keyring // nil: no keys
	at   string
	q    *queue
	stop chan struct{}
	done chan struct{} // closed when the reporting goroutine has ended

	mu     sync.Mutex // guards meta, which memberlist reads from its goroutines
	meta   []byte
	now    Meta
	update sync.Mutex // one UpdateMeta, Leave or Close at a time
	closed bool
}

// Start listens and is a cluster of one, until Join.
func Start(cfg Config) (*Node, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	mc, err := cfg.memberlist()
	if err != nil {
		return nil, err
	}
	meta, err := cfg.Meta.Encode()
	if err != nil {
		return nil, err
	}
	n := &Node{
		cfg: cfg, log: cfg.Logger.With("component", "gossip"), meta: meta, now: cfg.Meta,
		stop: make(chan struct{}), done: make(chan struct{}),
	}
	n.q = &queue{alive: map[string]Member{}, wake: make(chan struct{}, 1), self: cfg.Name, refused: func(name string, err error) {
		n.log.Warn("refused a member", "name", name, "error", err)
	}}
	mc.Delegate, mc.Events, mc.Alive, mc.Conflict = delegate{n}, n.q, n.q, n.q
	mc.Logger = log.New(&logWriter{log: n.log}, "", 0)
	mc.LogOutput = nil
	if mc.Transport, err = listen(mc); err != nil {
		return nil, fmt.Errorf("gossip: cannot listen on %s: %w", cfg.Bind, err)
	}
	n.list, err = memberlist.Create(mc)
	if err != nil {
		_ = mc.Transport.Shutdown()
		return nil, fmt.Errorf("gossip: cannot listen on %s: %w", cfg.Bind, err)
	}
	n.ring, n.at = mc.Keyring, n.list.LocalNode().Address()
	go n.report()
	return n, nil
}

// Address is where other members find this one: the seed to give them.
func (n *Node) Address() string { return n.at }

// SetKeys replaces the keys of Config.Keys, at least one: the first is used from now on,
// messages under any of them are read, and under others not. Members that change keys
// one after the other must first accept the new one everywhere, then use it, and only
// then drop the old one.
func (n *Node) SetKeys(keys [][]byte) error {
	if n.ring == nil || len(keys) == 0 {
		return fmt.Errorf("%w: keys cannot be added to a member without any, nor all be taken away", ErrKeySize)
	}
	for _, k := range keys {
		if err := n.ring.AddKey(k); err != nil {
			return fmt.Errorf("gossip: %w", err)
		}
	}
	if err := n.ring.UseKey(keys[0]); err != nil {
		return fmt.Errorf("gossip: %w", err)
	}
	for _, old := range slices.Clone(n.ring.GetKeys()) {
		if !slices.ContainsFunc(keys, func(k []byte) bool { return bytes.Equal(k, old) }) {
			if err := n.ring.RemoveKey(old); err != nil {
				return fmt.Errorf("gossip: %w", err)
			}
		}
	}
	return nil
}

// Name is this member's.
func (n *Node) Name() string { return n.cfg.Name }

// Health is memberlist's own doubt: 0 is well, higher numbers mean that this
// process is too starved to judge others.
func (n *Node) Health() int { return n.list.GetHealthScore() }

// Members lists the members that are not held for dead, this one included, by
// name.
func (n *Node) Members() []Member {
	out := append(n.q.members(), Member{Name: n.cfg.Name, Address: n.at, Meta: n.Meta()})
	slices.SortFunc(out, func(a, b Member) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// RoundTrip is the shortest of a few pings of a member; 0: it answered none.
func (n *Node) RoundTrip(m Member) (least time.Duration) {
	at, err := net.ResolveUDPAddr("udp", m.Address)
	if err != nil {
		return 0
	}
	for range pings {
		began := time.Now() // memberlist's own figure may be below zero
		if _, err := n.list.Ping(m.Name, at); err == nil {
			if took := time.Since(began); least == 0 || took < least {
				least = took
			}
		}
	}
	return least
}

const pings = 4

// joinQuiet is how long Join tries before it says what it waits for.
const joinQuiet = 3 * time.Second

// Join meets the cluster through any of the seeds (host:port) and waits until
// at least want members are known, this one included. It tries again until ctx
// ends: seeds may start later, and members that join one seed at the same time
// may miss each other at first. Its own address among the seeds does no harm.
func (n *Node) Join(ctx context.Context, seeds []string, want int) error {
	if len(seeds) == 0 && want > 1 {
		return fmt.Errorf("%w: no seeds given; name at least one member's gossip address", ErrJoin)
	}
	ask := append([]string(nil), seeds...)
	rand.Shuffle(len(ask), func(i, j int) { ask[i], ask[j] = ask[j], ask[i] })
	pause := 20 * time.Millisecond
	joined := len(seeds) == 0
	var last error
	began, said := time.Now(), false
	for {
		if n.stopped() {
			return ErrClosed
		}
		if !said && time.Since(began) > joinQuiet && last != nil {
			said = true
			n.log.Warn("nobody lets this process in yet; it goes on asking", "join", strings.Join(seeds, ", "), "error", last)
		}
		if !joined || n.q.count()+1 < want {
			met, err := n.list.Join(ask)
			joined = joined || met > 0
			last = explain(err)
		}
		have := n.q.count() + 1
		if joined && have >= want {
			return nil
		}
		if errors.Is(last, ErrWrongKey) && !joined {
			return last // waiting will not change a key
		}
		select {
		case <-time.After(pause + rand.N(pause)):
			pause = min(2*pause, 500*time.Millisecond)
		case <-n.stop:
			return ErrClosed
		case <-ctx.Done():
			if last == nil {
				last = ctx.Err()
			}
			return fmt.Errorf("%w: %d of %d members known after asking %s: %w", ErrJoin, have, want, strings.Join(seeds, ", "), last)
		}
	}
}

// Rejoin asks the seeds once for their view of the cluster, and gives them this
// member's: a seed that restarted knows nobody, while this member may still hold
// it for alive, so that waiting for members would not do.
func (n *Node) Rejoin(ctx context.Context, seeds []string) error {
	if n.stopped() {
		return ErrClosed
	}
	done := make(chan error, 1)
	go func() { // ends by memberlist's own TCP timeout
		met, err := n.list.Join(seeds)
		if met > 0 {
			err = nil
		}
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("%w: %w", ErrJoin, explain(err))
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %s: %w", ErrJoin, strings.Join(seeds, ", "), ctx.Err())
	}
}

func (n *Node) stopped() bool {
	select {
	case <-n.stop:
		return true
	default:
		return false
	}
}

func explain(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	for _, sign := range []string{"decrypt", "encrypt", "label"} {
		if strings.Contains(text, sign) {
			return fmt.Errorf("%w; give every process the same --cluster-key and --cluster (%s)", ErrWrongKey, flat(text))
		}
	}
	if strings.Contains(text, "EOF") {
		return fmt.Errorf("%s; it hung up, as a member does that has another --cluster name", flat(text))
	}
	return errors.New(flat(text))
}

func flat(s string) string { return strings.Join(strings.Fields(s), " ") }

// UpdateMeta announces a new Meta. It returns once another member has been
// told, or after a second: the news spreads by itself later.
func (n *Node) UpdateMeta(m Meta) error {
	b, err := m.Encode()
	if err != nil {
		return err
	}
	n.update.Lock()
	defer n.update.Unlock()
	if n.closed {
		return ErrClosed
	}
	n.announce(m, b)
	return nil
}

func (n *Node) announce(m Meta, b []byte) {
	n.mu.Lock()
	n.meta, n.now = b, m
	n.mu.Unlock()
	if err := n.list.UpdateNode(updateTimeout); err != nil {
		n.log.Debug("an update spreads slowly", "error", err)
	}
}

// Meta is what is announced now.
func (n *Node) Meta() Meta {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.now
}

// Leave announces that this member drains, says farewell and closes. Others
// get a Leave event. A member that leaves does not come back: start a new Node.
func (n *Node) Leave() error {
	n.update.Lock()
	defer n.update.Unlock()
	if n.closed {
		return nil
	}
	if m := n.Meta(); m.State != Draining {
		m.State = Draining
		if b, err := m.Encode(); err == nil { // no larger than the one before
			n.announce(m, b)
		}
	}
	limit := leaveTimeout
	if n.cfg.Profile == Local {
		// Where all members leave at once, as when a local cluster ends, the last
		// ones have nobody to hear them. Six rounds of gossip are enough otherwise.
		limit = localFarewell
	}
	err := n.list.Leave(limit)
	return errors.Join(err, n.shut())
}

// Close stops without a farewell: others will find that this member failed.
func (n *Node) Close() error {
	n.update.Lock()
	defer n.update.Unlock()
	if n.closed {
		return nil
	}
	return n.shut()
}

func (n *Node) shut() error {
	n.closed = true
	err := n.list.Shutdown()
	close(n.stop)
	<-n.done
	if err != nil {
		return fmt.Errorf("gossip: %w", err)
	}
	return nil
}

func (n *Node) report() {
	defer close(n.done)
	var v view
	for {
		select {
		case <-n.stop:
			return
		case <-n.q.wake:
		}
		for _, o := range n.q.take() {
			for _, e := range v.observe(o) {
				n.log.Debug("member", "event", e.Kind.String(), "name", e.Member.Name, "state", e.Member.Meta.State.String(), "incarnation", e.Member.Meta.Incarnation)
				if n.cfg.OnEvent != nil {
					n.cfg.OnEvent(e)
				}
			}
		}
	}
}

// delegate is the part of memberlist.Delegate that is used: the metadata.
type delegate struct{ n *Node }

func (d delegate) NodeMeta(limit int) []byte {
	d.n.mu.Lock()
	defer d.n.mu.Unlock()
	return d.n.meta
}
func (delegate) NotifyMsg([]byte)                {}
func (delegate) GetBroadcasts(_, _ int) [][]byte { return nil }
func (delegate) LocalState(bool) []byte          { return nil }
func (delegate) MergeRemoteState([]byte, bool)   {}

// logWriter makes debug lines of what memberlist logs: it complains of strangers and of slow
// probes, and this package reports who comes and goes. Anybody can send datagrams, so the
// lines of a kind are limited.
type logWriter struct {
	log  *slog.Logger
	rate lograte.Limiter
}

var _ io.Writer = (*logWriter)(nil)

func (w *logWriter) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))
	level := slog.LevelDebug - 4
	for _, prefix := range []string{"[ERR] ", "[WARN] "} {
		if rest, ok := strings.CutPrefix(text, prefix); ok {
			text, level = rest, slog.LevelDebug
		}
	}
	if ctx := context.Background(); w.log.Enabled(ctx, level) {
		if ok, leftOut, last := w.rate.Allow(lograte.Kind(text), time.Now()); ok {
			w.log.Log(ctx, level, text, lograte.Attrs(leftOut, last)...)
		}
	}
	return len(line), nil
}
