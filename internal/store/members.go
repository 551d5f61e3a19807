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
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/internal/rpc"
)

// Who keeps copies of the store is the operator's choice alone, as with etcd's members: a
// process that offers to is not asked before it is named, and none takes the place of
// another by itself (docs/decisions/standby.md).

var (
	// ErrNoMember: the process is not here, offers to keep no replica, or keeps none.
	ErrNoMember = errors.New("store: no such process")
	// ErrMembers: the members cannot be changed so.
	ErrMembers = errors.New("store: the members of the store cannot be changed so")
)

// Members is who keeps replicas of a coordinator's store: it forms the replicated store,
// and changes its members when the operator says so.
type Members struct {
	store  *Store
	gossip *gossip.Node
	rpc    *rpc.System
	log    *slog.Logger
	ctx    context.Context
	names  *names

	op     sync.Mutex        // one change at a time; guards what follows
	tended bool              // the plan stands in the store
	told   map[uint64]uint32 // by incarnation: the revision of the plan that a process knows
}

// NewMembers works until ctx ends. named are the processes that are to keep replicas, once
// two of them are here; Add names more.
func NewMembers(ctx context.Context, s *Store, g *gossip.Node, r *rpc.System, named []string) *Members {
	return &Members{store: s, gossip: g, rpc: r, log: s.log, ctx: ctx, names: newNames(named), told: map[uint64]uint32{}}
}

// names are the processes that may be asked to found a replicated store.
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

// none tells that no process is named.
func (n *names) none() bool {
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
	n.kick()
}

func (n *names) kick() {
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

// opLimit bounds one change of the members, the start of a server on a slow disk included.
const opLimit = 30 * time.Second

// Add names a process that is to keep a copy of the store. While there is one copy,
// that begins when two are named; later it takes a free place at once.
func (g *Members) Add(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, opLimit)
	defer cancel()
	m, ok := g.offers(name)
	if !ok {
		return fmt.Errorf("%w: %q is not here, or has no --data-dir", ErrNoMember, name)
	}
	g.op.Lock()
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
	if err := g.tell(ctx, m, next); err != nil { // it refuses if it keeps another one
		return err
	}
	return g.change(ctx, next)
}

// Remove takes a process out of the store, be it here or lost for good. Another one
// may have its place then.
func (g *Members) Remove(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, opLimit)
	defer cancel()
	g.op.Lock()
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
		return fmt.Errorf("%w: two are left; add another one first", ErrMembers)
	}
	next := p.next()
	gone := next.Members[at]
	next.Members = slices.Delete(next.Members, at, at+1)
	for _, m := range next.Members {
		if m.Name != p.Self && !slices.Contains(bus.Peers(), m.server()) {
			return fmt.Errorf("%w: %s is away as well, and without it nothing can be written", ErrMembers, m.Name)
		}
	}
	next.Removed = append(next.Removed, gone)
	next.Removed = next.Removed[max(0, len(next.Removed)-8):]
	return g.change(ctx, next)
}

// change writes a plan into the store, which is what counts, and carries it out.
func (g *Members) change(ctx context.Context, next *plan) error {
	if err := g.store.lease.record(ctx, next); err != nil {
		return err
	}
	if err := g.store.replica.keep(ctx, next); err != nil {
		return err
	}
	g.log.Info("the members of the store change", "members", next.servers(), "revision", next.Revision)
	_, bus := g.store.replica.now()
	err := bus.RetainStoreMembers(ctx, next.servers())
	g.names.kick() // the others are told; who is away hears of it later
	return err
}

// tend brings the servers of the store in line with the plan, and tells it to everybody
// whom it concerns and who has not heard of it.
func (g *Members) tend() error {
	ctx, cancel := context.WithTimeout(g.ctx, opLimit)
	defer cancel()
	p, bus := g.store.replica.now()
	if !g.tended {
		if err := g.store.lease.record(ctx, p); err != nil { // founded just now, or by an earlier build
			return err
		}
		g.tended = true
	}
	errs := bus.RetainStoreMembers(ctx, p.servers())
	for _, m := range g.gossip.Members() {
		concerned := func(x member) bool { return x.Route == m.Meta.Store && x.Name != p.Self }
		if g.told[m.Meta.Incarnation] >= p.Revision || !slices.ContainsFunc(p.Members, concerned) && !slices.ContainsFunc(p.Removed, concerned) {
			continue
		}
		if err := g.tell(ctx, m, p); err != nil {
			errs = errors.Join(errs, err)
			continue
		}
		g.told[m.Meta.Incarnation] = p.Revision
	}
	return errs
}

// tell asks a process to keep a copy, or tells it who keeps them now.
func (g *Members) tell(ctx context.Context, m gossip.Member, p *plan) error {
	ctx, cancel := context.WithTimeout(ctx, keepLimit)
	defer cancel()
	err := g.rpc.Call(ctx, g.rpc.PID(m.Meta.RPC, actorName), uint32(proto.Kind_KIND_STORE), p.request(), new(proto.Empty), rpc.Idempotent(5*time.Second))
	if err != nil {
		return fmt.Errorf("store: %s does not follow the members of the store: %w", m.Name, err)
	}
	return nil
}

// offers finds a process that could keep a copy.
func (g *Members) offers(name string) (gossip.Member, bool) {
	for _, m := range g.gossip.Members() {
		if m.Name == name && m.Meta.Store != "" && name != g.store.replica.name {
			return m, true
		}
	}
	return gossip.Member{}, false
}
