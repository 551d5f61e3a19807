package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"shoal/api"
	"shoal/cluster/gossip"
	"shoal/cluster/rpc"
	"shoal/proto"
)

// Who keeps copies of the store is the operator's choice alone, as with etcd's members: a
// process that offers to is not asked before it is named, and none takes the place of
// another by itself (docs/decisions/standby.md).

var (
	errNoMember = errors.New("cluster: no such process")
	errMembers  = errors.New("cluster: the members of the store cannot be changed so")
)

// storeNames are the processes that may be asked to found a replicated store.
type storeNames struct {
	mu      sync.Mutex
	names   map[string]bool
	changed chan struct{}
}

func newStoreNames(names []string) *storeNames {
	n := &storeNames{names: map[string]bool{}, changed: make(chan struct{}, 1)}
	for _, name := range names {
		n.names[name] = true
	}
	return n
}

func (n *storeNames) has(name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.names[name]
}

func (n *storeNames) set(name string, is bool) {
	n.mu.Lock()
	if is {
		n.names[name] = true
	} else {
		delete(n.names, name)
	}
	n.mu.Unlock()
	n.kick()
}

func (n *storeNames) kick() {
	select {
	case n.changed <- struct{}{}:
	default:
	}
}

func (n *storeNames) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.names) == 0 {
		return "nobody"
	}
	return strings.Join(slices.Sorted(maps.Keys(n.names)), ", ")
}

// opLimit bounds one change of the members, the start of a server on a slow disk included.
const opLimit = 30 * time.Second

// AddStoreMember names a process that is to keep a copy of the store. While there is one copy,
// that begins when two are named; later it takes a free place at once.
func (c *Coordinator) AddStoreMember(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, opLimit)
	defer cancel()
	m, ok := c.offers(name)
	if !ok {
		return fmt.Errorf("%w: %q is not here, or has no --data-dir", errNoMember, name)
	}
	c.storeOp.Lock()
	defer c.storeOp.Unlock()
	if c.dataStore.alone != nil {
		c.names.set(name, true)
		return nil
	}
	p, _ := c.dataStore.keeper.now()
	switch {
	case p.member(name) >= 0:
		return nil
	case len(p.Members) >= keepers:
		return fmt.Errorf("%w: there are %d already (%s): remove one first", errMembers, keepers, strings.Join(p.servers(), ", "))
	}
	next := p.next()
	next.Members = append(next.Members, planMember{name, m.Meta.Store, fmt.Sprintf("%s-%d", name, next.Revision)})
	if err := c.tellMember(ctx, m, next); err != nil { // it refuses if it keeps another one
		return err
	}
	return c.change(ctx, next)
}

// RemoveStoreMember takes a process out of the store, be it here or lost for good. Another one
// may have its place then.
func (c *Coordinator) RemoveStoreMember(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, opLimit)
	defer cancel()
	c.storeOp.Lock()
	defer c.storeOp.Unlock()
	if c.dataStore.alone != nil {
		if !c.names.has(name) {
			return fmt.Errorf("%w: %q was not named", errNoMember, name)
		}
		c.names.set(name, false)
		return nil
	}
	p, bus := c.dataStore.keeper.now()
	at := p.member(name)
	switch {
	case at < 0:
		return fmt.Errorf("%w: %q keeps no copy", errNoMember, name)
	case name == p.Self:
		return fmt.Errorf("%w: %s coordinates; let a standby take over first", errMembers, name)
	case len(p.Members) < keepers:
		return fmt.Errorf("%w: two are left; add another one first", errMembers)
	}
	next := p.next()
	gone := next.Members[at]
	next.Members = slices.Delete(next.Members, at, at+1)
	for _, m := range next.Members {
		if m.Name != p.Self && !slices.Contains(bus.Peers(), m.server()) {
			return fmt.Errorf("%w: %s is away as well, and without it nothing can be written", errMembers, m.Name)
		}
	}
	next.Removed = append(next.Removed, gone)
	next.Removed = next.Removed[max(0, len(next.Removed)-8):]
	return c.change(ctx, next)
}

// next is a copy to change.
func (p *plan) next() *plan {
	return &plan{ID: p.ID, Revision: p.Revision + 1, Self: p.Self, Members: slices.Clone(p.Members), Removed: slices.Clone(p.Removed)}
}

// change writes a plan into the store, which is what counts, and carries it out.
func (c *Coordinator) change(ctx context.Context, next *plan) error {
	if err := c.dataStore.lease.record(ctx, next); err != nil {
		return err
	}
	if err := c.dataStore.keeper.keep(next); err != nil {
		return err
	}
	c.log.Info("the members of the store change", "members", next.servers(), "revision", next.Revision)
	_, bus := c.dataStore.keeper.now()
	err := bus.RetainStoreMembers(ctx, next.servers())
	c.names.kick() // the others are told; who is away hears of it later
	return err
}

// tend brings the servers of the store in line with the plan, and tells it to everybody
// whom it concerns and who has not heard of it.
func (c *Coordinator) tend() error {
	ctx, cancel := context.WithTimeout(c.ctx, opLimit)
	defer cancel()
	p, bus := c.dataStore.keeper.now()
	if !c.tended {
		if err := c.dataStore.lease.record(ctx, p); err != nil { // founded just now, or by an earlier build
			return err
		}
		c.tended = true
	}
	errs := bus.RetainStoreMembers(ctx, p.servers())
	for _, m := range c.bus.gossip.Members() {
		concerned := func(x planMember) bool { return x.Route == m.Meta.Store && x.Name != p.Self }
		if c.toldStore[m.Meta.Incarnation] >= p.Revision || !slices.ContainsFunc(p.Members, concerned) && !slices.ContainsFunc(p.Removed, concerned) {
			continue
		}
		if err := c.tellMember(ctx, m, p); err != nil {
			errs = errors.Join(errs, err)
			continue
		}
		c.toldStore[m.Meta.Incarnation] = p.Revision
	}
	return errs
}

// tellMember asks a process to keep a copy, or tells it who keeps them now.
func (c *Coordinator) tellMember(ctx context.Context, m gossip.Member, p *plan) error {
	ctx, cancel := context.WithTimeout(ctx, keepLimit)
	defer cancel()
	err := c.bus.rpc.Call(ctx, c.bus.rpc.PID(m.Meta.RPC, keeperName), uint32(proto.Kind_KIND_KEEP), p.request(), new(proto.Empty), rpc.Idempotent(5*time.Second))
	if err != nil {
		return fmt.Errorf("cluster: %s does not follow the members of the store: %w", m.Name, err)
	}
	return nil
}

// offers finds a process that could keep a copy.
func (c *Coordinator) offers(name string) (gossip.Member, bool) {
	for _, m := range c.bus.gossip.Members() {
		if m.Name == name && m.Meta.Store != "" && name != c.bus.nats.Name() {
			return m, true
		}
	}
	return gossip.Member{}, false
}

// storeState is the store as /v1/cluster shows it.
func (c *Coordinator) storeState() *api.StoreState {
	kind, n := c.dataStore.durability()
	claim, _, _ := c.election.claim()
	s := &api.StoreState{Durability: kind, Replicas: n, Wanted: keepers, Coordinator: claim.Holder, Term: claim.Term}
	p, bus := c.dataStore.keeper.now()
	if p == nil || kind != "replicated" {
		return s
	}
	up := bus.Peers()
	for _, m := range p.Members {
		state := "away"
		if m.Name == p.Self || slices.Contains(up, m.server()) {
			state = "here"
		}
		s.Members = append(s.Members, api.StoreMember{ID: m.Name, Route: m.Route, State: state})
	}
	return s
}

// Health implements api.Engine. Without a majority of its replicas the store takes no
// placement: what runs goes on (storeTrouble tells), and what does not is told why.
func (c *Coordinator) Health() error {
	err := c.core.Health()
	if why := c.storeless(); why != "" && !errors.As(err, new(api.ErrDegraded)) {
		return api.ErrNotReady{Reason: why}
	}
	return err
}

// Ready implements api.Engine.
func (c *Coordinator) Ready() error {
	err := c.core.Ready()
	if why := c.storeless(); err != nil && why != "" {
		return api.ErrNotReady{Reason: why, RetryAfter: time.Second}
	}
	return err
}

// storeless says which keepers the store lacks; empty: it works.
func (c *Coordinator) storeless() string {
	if c.dataStore == nil {
		return ""
	}
	if kind, _ := c.dataStore.durability(); kind == "replicated" {
		if p, bus := c.dataStore.keeper.now(); !p.majority(bus.Peers()) {
			return c.dataStore.lacks(p, bus)
		}
	}
	return ""
}

// majority tells that enough members are up, beside this one.
func (p *plan) majority(up []string) bool {
	n := 0
	for _, m := range p.Members {
		if m.Name == p.Self || slices.Contains(up, m.server()) {
			n++
		}
	}
	return n > len(p.Members)/2
}
