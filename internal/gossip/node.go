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
	"github.com/shoal-llm/shoal/internal/options"
)

const (
	updateTimeout = time.Second     // for sending an update to one other member
	leaveTimeout  = 2 * time.Second // for announcing the leave
	localFarewell = 300 * time.Millisecond
)

// Node is this process as a member of the cluster. Its methods may be called from any goroutine.
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
	update sync.Mutex // serialises UpdateMeta, Leave and Close
	closed bool
}

// Start listens and forms a cluster of one member, until Join.
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
	refused := &refusals{}
	n.q = &queue{alive: map[string]Member{}, wake: make(chan struct{}, 1), self: cfg.Name, refused: func(name string, err error) {
		if refused.isNew(name, err, time.Now()) {
			n.log.Warn("refused a member", "name", name, "error", err)
		}
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

// Address returns the address of this member, to be used as a seed by others.
func (n *Node) Address() string { return n.at }

// SetKeys replaces Config.Keys by at least one key. The first encrypts, all decrypt. To rotate a
// key, every member must first accept the new one, then use it, and only then drop the old one.
func (n *Node) SetKeys(keys [][]byte) error {
	if n.ring == nil || len(keys) == 0 {
		return fmt.Errorf("%w: a member started without keys cannot get any, and one started with keys needs at least one", ErrKeySize)
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

// Name returns this member's name.
func (n *Node) Name() string { return n.cfg.Name }

// Health returns memberlist's health score: 0 is healthy. Higher numbers mean that this process is
// too slow to judge others.
func (n *Node) Health() int { return n.list.GetHealthScore() }

// Members returns the members that are not considered dead, including this one, sorted by name.
func (n *Node) Members() []Member {
	out := append(n.q.members(), Member{Name: n.cfg.Name, Address: n.at, Meta: n.Meta()})
	slices.SortFunc(out, func(a, b Member) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// RoundTrip returns the shortest of a few pings of a member, or 0 if it answered none.
func (n *Node) RoundTrip(m Member) (least time.Duration) {
	at, err := net.ResolveUDPAddr("udp", m.Address)
	if err != nil {
		return 0
	}
	for range pings {
		began := time.Now() // memberlist's own value may be negative
		if _, err := n.list.Ping(m.Name, at); err == nil {
			if took := time.Since(began); least == 0 || took < least {
				least = took
			}
		}
	}
	return least
}

const pings = 4

// joinQuiet is the time after which Join logs that no seed has answered.
const joinQuiet = 3 * time.Second

// Join joins the cluster through any of the seeds (host:port) and waits until at least want members
// are known, including this one. It retries until ctx ends, since seeds may start later, and
// members that join a seed at the same time may miss each other at first. The seeds may include its
// own address.
func (n *Node) Join(ctx context.Context, seeds []string, want int) error {
	if len(seeds) == 0 && want > 1 {
		return fmt.Errorf("%w: no seeds given; name at least one member's gossip address", ErrJoin)
	}
	ask := append([]string(nil), seeds...)
	rand.Shuffle(len(ask), func(i, j int) { ask[i], ask[j] = ask[j], ask[i] })
	pause := 20 * time.Millisecond
	joined := len(seeds) == 0
	var last error
	began, logged := time.Now(), false
	for {
		if n.stopped() {
			return ErrClosed
		}
		if !logged && time.Since(began) > joinQuiet && last != nil {
			logged = true
			n.log.Warn("joining the cluster fails, retrying", "join", strings.Join(seeds, ", "), "error", last)
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
			return last // a wrong key stays wrong
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

// Rejoin exchanges views with the seeds once. A restarted seed has an empty member list, while this member
// may still consider it alive. Waiting for a number of members would not reconnect them.
func (n *Node) Rejoin(ctx context.Context, seeds []string) error {
	if n.stopped() {
		return ErrClosed
	}
	done := make(chan error, 1)
	go func() { // ends with memberlist's own TCP timeout
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
			return fmt.Errorf("%w; give every process the same "+options.Name("cluster-key")+" and "+options.Name("cluster")+" (%s)",
				ErrWrongKey, singleLine(text))
		}
	}
	if strings.Contains(text, "EOF") {
		return fmt.Errorf("%s; the member closed the connection, perhaps because it has another "+
			options.Name("cluster")+" name", singleLine(text))
	}
	return errors.New(singleLine(text))
}

func singleLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// UpdateMeta announces a new Meta. It returns when another member has it, or after a second. It
// then spreads in the background.
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
		n.log.Debug("spreading an update takes long", "error", err)
	}
}

// Meta returns the currently announced metadata.
func (n *Node) Meta() Meta {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.now
}

// Leave announces that this member drains, leaves and closes. Others get a Leave event. A member
// cannot return after leaving: start a new Node.
func (n *Node) Leave() error {
	n.update.Lock()
	defer n.update.Unlock()
	if n.closed {
		return nil
	}
	if m := n.Meta(); m.State != Draining {
		m.State = Draining
		if b, err := m.Encode(); err == nil { // never larger than the previous one
			n.announce(m, b)
		}
	}
	limit := leaveTimeout
	if n.cfg.Profile == Local {
		// If all members leave at once, as when a local cluster stops, the last ones have no member
		// left to acknowledge. Otherwise six rounds of gossip suffice.
		limit = localFarewell
	}
	err := n.list.Leave(limit)
	return errors.Join(err, n.shutdown())
}

// Close stops without announcing it: others will report this member as Failed.
func (n *Node) Close() error {
	n.update.Lock()
	defer n.update.Unlock()
	if n.closed {
		return nil
	}
	return n.shutdown()
}

func (n *Node) shutdown() error {
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
				n.log.Debug("member", "event", e.Kind.String(), "name", e.Member.Name, "state", e.Member.Meta.State.String(),
					"incarnation", e.Member.Meta.Incarnation)
				if n.cfg.OnEvent != nil {
					n.cfg.OnEvent(e)
				}
			}
		}
	}
}

// delegate implements the part of memberlist.Delegate that is used: the metadata.
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

// logWriter turns memberlist's log into debug lines. memberlist reports unknown senders and slow
// probes, while this package reports joins and leaves. Since any machine can send datagrams, lines of a
// kind are rate limited.
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
