package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/shoal-llm/shoal/internal/gossip"
	"github.com/shoal-llm/shoal/internal/options"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/internal/rpc"
)

// The operator alone decides which processes keep copies of the store, as with etcd's members. A
// process that offers to keep one is not used before it is named. No process replaces another
// automatically (docs/decisions/standby.md).

var (
	// ErrNoMember: the process is not connected, does not offer to keep a replica, or keeps none.
	ErrNoMember = errors.New("store: no such process")
	// ErrMembers: this change of the members is not possible.
	ErrMembers = errors.New("store: this change of the store's members is not possible")
)

// Members manages the processes that keep replicas of a coordinator's store. It forms the
// replicated store and changes its members on the operator's command.
type Members struct {
	store  *Store
	gossip *gossip.Node
	rpc    *rpc.System
	log    *slog.Logger
	ctx    context.Context
	names  *names
	open   func() error // opens the jobs of the store, and runs them

	op     sync.Mutex        // held during one change; guards the fields below
	tended bool              // the plan is recorded in the store
	sent   map[uint64]uint32 // by incarnation: the newest plan revision that the process has received
}

// NewMembers works until ctx ends. named lists the processes that keep replicas once two of them
// are connected. Add names further ones.
func NewMembers(ctx context.Context, s *Store, g *gossip.Node, r *rpc.System, named []string) *Members {
	return &Members{store: s, gossip: g, rpc: r, log: s.log, ctx: ctx, names: newNames(named), sent: map[uint64]uint32{},
		open: s.reopenJobs}
}

// names holds the processes that may be asked to found a replicated store.
type names struct {
	mu      sync.Mutex
	names   map[string]bool
	changed chan struct{}
}

func newNames(named []string) *names {
	n := &names{names: map[string]bool{}, changed: make(chan struct{}, 1)}
	for _, name := range named {
		n.names[name] = true
	}
	return n
}

func (n *names) has(name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.names[name]
}

// empty reports whether no process is named.
func (n *names) empty() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.names) == 0
}

func (n *names) set(name string, is bool) {
	n.mu.Lock()
	if is {
		n.names[name] = true
	} else {
		delete(n.names, name)
	}
	n.mu.Unlock()
	n.wake()
}

func (n *names) wake() {
	select {
	case n.changed <- struct{}{}:
	default:
	}
}

func (n *names) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.names) == 0 {
		return "nobody"
	}
	return strings.Join(slices.Sorted(maps.Keys(n.names)), ", ")
}

// opLimit is the deadline of one membership change, including the start of a server on a slow disk.
const (
	opLimit = 30 * time.Second
	opTry   = 20 * time.Millisecond
)

// Add names a process that shall keep a copy of the store. A single-copy store becomes replicated
// once two are named. A replicated store gives the process a free place at once.
func (g *Members) Add(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, opLimit)
	defer cancel()
	m, ok := g.offers(name)
	if !ok {
		return fmt.Errorf("%w: %q is not connected, or has no "+options.Name("data-dir"), ErrNoMember, name)
	}
	if err := g.begin(ctx); err != nil {
		return err
	}
	defer g.op.Unlock()
	if g.store.alone != nil {
		g.names.set(name, true)
		return nil
	}
	p, _ := g.store.replica.now()
	switch {
	case p.member(name) >= 0:
		return nil
	case len(p.Members) >= wanted:
		return fmt.Errorf("%w: there are %d already (%s): remove one first", ErrMembers, wanted, strings.Join(p.servers(), ", "))
	}
	next := p.next()
	next.Members = append(next.Members, member{name, m.Meta.Store, fmt.Sprintf("%s-%d", name, next.Revision)})
	if err := g.send(ctx, m, next); err != nil { // fails if the process keeps another store
		return err
	}
	return g.change(ctx, next)
}

// Remove removes a member, whether it is running or permanently lost. A replacement can then be
// added.
func (g *Members) Remove(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, opLimit)
	defer cancel()
	if err := g.begin(ctx); err != nil {
		return err
	}
	defer g.op.Unlock()
	if g.store.alone != nil {
		if !g.names.has(name) {
			return fmt.Errorf("%w: %q was not named", ErrNoMember, name)
		}
		g.names.set(name, false)
		return nil
	}
	p, bus := g.store.replica.now()
	at := p.member(name)
	switch {
	case at < 0:
		return fmt.Errorf("%w: %q keeps no copy", ErrNoMember, name)
	case name == p.Self:
		return fmt.Errorf("%w: %s coordinates; let a standby take over first", ErrMembers, name)
	case len(p.Members) < wanted:
		return fmt.Errorf("%w: only two members are left; add another one first", ErrMembers)
	}
	next := p.next()
	removed := next.Members[at]
	next.Members = slices.Delete(next.Members, at, at+1)
	for _, m := range next.Members {
		if m.Name != p.Self && !slices.Contains(bus.Peers(), m.server()) {
			return fmt.Errorf("%w: %s is down too, and the store has no majority without it", ErrMembers, m.Name)
		}
	}
	next.Removed = append(next.Removed, removed)
	next.Removed = next.Removed[max(0, len(next.Removed)-8):]
	return g.change(ctx, next)
}

// begin waits until no other change is under way, and locks op.
func (g *Members) begin(ctx context.Context) error {
	for !g.op.TryLock() {
		select {
		case <-time.After(opTry):
		case <-ctx.Done():
			return fmt.Errorf("%w now: another change is under way; retry later", ErrMembers)
		}
	}
	return nil
}

// change records a plan in the store, which makes it valid, and then carries it out.
func (g *Members) change(ctx context.Context, next *plan) error {
	if err := g.store.lease.record(ctx, next); err != nil {
		return err
	}
	if err := g.store.replica.keep(ctx, next); err != nil {
		return err
	}
	g.log.Info("changing the members of the store", "members", next.servers(), "revision", next.Revision)
	_, bus := g.store.replica.now()
	err := bus.RetainStoreMembers(ctx, next.servers())
	g.names.wake() // notify the others; absent ones are notified when they return
	return err
}

// tend makes the store's servers match the plan and sends the plan to every member that does not
// have it yet.
func (g *Members) tend() error {
	ctx, cancel := context.WithTimeout(g.ctx, opLimit)
	defer cancel()
	p, bus := g.store.replica.now()
	if !g.tended {
		if err := g.store.lease.record(ctx, p); err != nil { // just founded, or founded by an earlier build
			return err
		}
		g.tended = true
	}
	errs := bus.RetainStoreMembers(ctx, p.servers())
	for _, m := range g.gossip.Members() {
		concerned := func(x member) bool { return x.Route == m.Meta.Store && x.Name != p.Self }
		if g.sent[m.Meta.Incarnation] >= p.Revision || !slices.ContainsFunc(p.Members, concerned) && !slices.ContainsFunc(p.Removed, concerned) {
			continue
		}
		if err := g.send(ctx, m, p); err != nil {
			errs = errors.Join(errs, err)
			continue
		}
		g.sent[m.Meta.Incarnation] = p.Revision
	}
	return errs
}

// send sends a plan to a process. It starts a copy there, or updates the list of members.
func (g *Members) send(ctx context.Context, m gossip.Member, p *plan) error {
	ctx, cancel := context.WithTimeout(ctx, keepLimit)
	defer cancel()
	err := g.rpc.Call(ctx, g.rpc.PID(m.Meta.RPC, actorName), uint32(proto.Kind_KIND_STORE), p.request(),
		new(proto.Empty), rpc.Idempotent(5*time.Second))
	if err != nil {
		return fmt.Errorf("store: %s did not accept the new members of the store: %w", m.Name, err)
	}
	return nil
}

// offers returns the process with this name if it could keep a copy.
func (g *Members) offers(name string) (gossip.Member, bool) {
	for _, m := range g.gossip.Members() {
		if m.Name == name && m.Meta.Store != "" && name != g.store.replica.name {
			return m, true
		}
	}
	return gossip.Member{}, false
}
