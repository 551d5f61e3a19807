package cluster

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/shoal-llm/shoal/internal/gossip"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/internal/rpc"
	"github.com/shoal-llm/shoal/internal/security"
	"github.com/shoal-llm/shoal/topology"
)

// discoverer reports the nodes that gossip sees to the director. Gossip events make that fast. A
// periodic comparison of gossip's members with the director's makes it reliable, for example for a
// fenced node that responds again.
type discoverer struct {
	bus      *bus
	director *actor.PID
	// known returns the incarnation under which the director knows a node, including refused ones.
	known func(id string) (incarnation uint64, ok bool)
	log   *slog.Logger

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	mu     sync.Mutex
	asking map[string]bool
}

const (
	compareEvery  = 500 * time.Millisecond
	describeLimit = 5 * time.Second
)

func newDiscoverer(b *bus, director *actor.PID, known func(string) (uint64, bool), log *slog.Logger) *discoverer {
	ctx, cancel := context.WithCancel(context.Background())
	d := &discoverer{bus: b, director: director, known: known, log: log, ctx: ctx, cancel: cancel, asking: map[string]bool{}}
	d.wg.Add(1)
	go d.compare()
	return d
}

func (d *discoverer) close() {
	d.cancel()
	d.wg.Wait()
}

func (d *discoverer) compare() {
	defer d.wg.Done()
	t := time.NewTicker(compareEvery)
	defer t.Stop()
	for {
		select {
		case <-d.ctx.Done():
			return
		case <-t.C:
			for _, m := range d.bus.gossip.Members() {
				d.discovered(m)
			}
		}
	}
}

// event handles a gossip event.
func (d *discoverer) event(e gossip.Event) {
	if e.Kind == gossip.Join && e.Member.Meta.State != gossip.Ready { // with state Ready it would be refused later
		if why := d.incompatible(&e.Member); why != "" {
			d.log.Warn("a process with an incompatible build joined and will exit", "name", e.Member.Name, "role", e.Member.Meta.Role, "reason", why)
		}
	}
	if e.Member.Meta.Role != string(security.RoleNode) {
		return
	}
	switch e.Kind {
	case gossip.Join, gossip.Update:
		if e.Member.Meta.State == gossip.Draining {
			d.bus.rpc.Actors().Root.Send(d.director, &nodeDrain{id: e.Member.Name, incarnation: e.Member.Meta.Incarnation, leaves: true})
			return
		}
		d.discovered(e.Member)
	case gossip.Leave:
		d.gone(e.Member)
	case gossip.Failed:
		d.ask(e.Member, d.confirm)
	}
}

// confirm checks whether a node that gossip has lost still responds: on an overloaded machine a
// live node can miss its probes. A frozen node does not respond; a dead one refuses immediately.
// The limit grows with memberlist's health score of this process, because giving up slow nodes
// would make everything slower.
func (d *discoverer) confirm(m gossip.Member) {
	limit := probeLimit * time.Duration(1+d.bus.gossip.Health())
	ctx, cancel := context.WithTimeout(d.ctx, limit)
	defer cancel()
	h := remoteHandle{sys: d.bus.rpc, pid: d.bus.rpc.PID(m.Meta.RPC, socketName)}
	if _, err := h.Status(ctx); err == nil {
		d.log.Debug("gossip lost a node that still responds", "node", m.Name)
		return
	}
	d.bus.rpc.PeerGone(m.Meta.RPC)
	d.gone(m)
}

func (d *discoverer) gone(m gossip.Member) {
	d.bus.rpc.Actors().Root.Send(d.director, &nodeDown{id: m.Name, incarnation: m.Meta.Incarnation})
}

// discovered asks a node that the director does not know to describe itself.
func (d *discoverer) discovered(m gossip.Member) {
	if m.Meta.Role != string(security.RoleNode) || m.Meta.State != gossip.Ready {
		return
	}
	if inc, ok := d.known(m.Name); ok && inc == m.Meta.Incarnation {
		return
	}
	if why := d.incompatible(&m); why != "" {
		d.bus.rpc.Actors().Root.Send(d.director, &nodeRefused{reason: why, host: hostOf(&m), id: m.Name})
		return
	}
	d.ask(m, d.describe)
}

// incompatible returns why this process cannot work with another one, or "".
func (d *discoverer) incompatible(m *gossip.Member) string {
	mine := d.bus.gossip.Meta()
	if why := incompatible("it", &m.Meta, "the cluster", &mine); why != "" {
		return why + "; " + sameBuild
	}
	return ""
}

// hostOf returns the data in a node's join message.
func hostOf(m *gossip.Member) host {
	return host{incarnation: m.Meta.Incarnation, pid: int(m.Meta.PID), address: m.Meta.RPC, build: m.Meta.Build, arithmetic: m.Meta.Arithmetic}
}

// ask runs a question to a node in the background, one at a time per node.
func (d *discoverer) ask(m gossip.Member, question func(gossip.Member)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.asking[m.Name] || d.ctx.Err() != nil {
		return
	}
	d.asking[m.Name] = true
	d.wg.Go(func() {
		defer func() {
			d.mu.Lock()
			delete(d.asking, m.Name)
			d.mu.Unlock()
		}()
		question(m)
	})
}

func (d *discoverer) describe(m gossip.Member) {
	ctx, cancel := context.WithTimeout(d.ctx, describeLimit)
	defer cancel()
	h := remoteHandle{sys: d.bus.rpc, pid: d.bus.rpc.PID(m.Meta.RPC, socketName)}
	desc := new(proto.NodeDescription)
	if err := h.call(ctx, proto.Kind_KIND_DESCRIBE, new(proto.Empty), desc, rpc.Idempotent(time.Second)); err != nil {
		if rpc.Foreign(err) {
			d.bus.rpc.Actors().Root.Send(d.director, &nodeRefused{reason: err.Error() + "; " + sameBuild, host: hostOf(&m), id: m.Name})
			return
		}
		level := slog.LevelWarn
		if !slices.ContainsFunc(d.bus.gossip.Members(), func(x gossip.Member) bool { return x.Name == m.Name && x.Meta.Incarnation == m.Meta.Incarnation }) {
			level = slog.LevelDebug // it has died meanwhile
		}
		d.log.Log(ctx, level, "a node was seen but does not answer", "node", m.Name, "control", m.Meta.RPC, "error", err)
		return
	}
	if desc.Id != m.Name || desc.Incarnation != m.Meta.Incarnation {
		return // another process has the address now; gossip will report it
	}
	if _, err := d.bus.rpc.Watch(rpc.Peer{Address: m.Meta.RPC, ID: desc.Id, Incarnation: desc.Incarnation}, d.director); err != nil {
		return
	}
	host := hostOf(&m)
	var products topology.Products
	copy(products[:], desc.Products) // missing values stay zero
	h.foreign = func(err error) {
		d.bus.rpc.Actors().Root.Send(d.director, &nodeForeign{id: desc.Id, incarnation: desc.Incarnation, err: err})
	}
	host.handle = h
	d.bus.rpc.Actors().Root.Send(d.director, &nodeUp{host: host, node: topology.Node{
		ID: desc.Id, Incarnation: desc.Incarnation, Share: desc.Share, Speed: desc.Speed, Read: desc.Read, Syncs: topology.Syncs{Two: desc.SyncTwo, Four: desc.SyncFour}, Products: products, Threads: topology.Threads{Most: int(desc.Threads), Fewest: int(desc.FewestThreads)}, Distance: d.bus.gossip.RoundTrip(m).Seconds() / 2, KVBudget: desc.KvBudgetBytes, ModelHash: desc.ModelHash, Epoch: desc.Epoch,
		Wire: min(uint32(m.Meta.WireMax), rpc.Version)}})
}
