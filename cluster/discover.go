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

// discoverer turns gossip into nodes of the director. Events make it quick, a
// periodic comparison of gossip's members with what the director knows makes it
// sure: a node that was fenced and answers again is found by the latter.
type discoverer struct {
	bus      *bus
	director *actor.PID
	// known tells the incarnation under which the director knows a node, refused
	// ones included.
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
				d.met(m)
			}
		}
	}
}

// event is told what gossip saw.
func (d *discoverer) event(e gossip.Event) {
	if e.Kind == gossip.Join && e.Member.Meta.State != gossip.Ready { // else it will be refused
		if why := d.unlike(&e.Member); why != "" {
			d.log.Warn("a process of another build came, which ends by itself", "name", e.Member.Name, "role", e.Member.Meta.Role, "reason", why)
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
		d.met(e.Member)
	case gossip.Leave:
		d.gone(e.Member)
	case gossip.Failed:
		d.ask(e.Member, d.confirm)
	}
}

// confirm asks a node that gossip has lost whether it is there: on a busy
// machine a node can miss its probes and live. One that is frozen does not
// answer; a dead one refuses at once. The worse memberlist rates this process's
// own timeliness, the longer the question may take: giving up nodes that are
// only slow would make everything slower.
func (d *discoverer) confirm(m gossip.Member) {
	limit := probeLimit * time.Duration(1+d.bus.gossip.Health())
	ctx, cancel := context.WithTimeout(d.ctx, limit)
	defer cancel()
	h := remoteHandle{sys: d.bus.rpc, pid: d.bus.rpc.PID(m.Meta.RPC, socketName)}
	if _, err := h.Status(ctx); err == nil {
		d.log.Debug("gossip lost a node that answers", "node", m.Name)
		return
	}
	d.bus.rpc.PeerGone(m.Meta.RPC)
	d.gone(m)
}

func (d *discoverer) gone(m gossip.Member) {
	d.bus.rpc.Actors().Root.Send(d.director, &nodeDown{id: m.Name, incarnation: m.Meta.Incarnation})
}

// met asks a node that the director does not know to describe itself.
func (d *discoverer) met(m gossip.Member) {
	if m.Meta.Role != string(security.RoleNode) || m.Meta.State != gossip.Ready {
		return
	}
	if inc, ok := d.known(m.Name); ok && inc == m.Meta.Incarnation {
		return
	}
	if why := d.unlike(&m); why != "" {
		d.bus.rpc.Actors().Root.Send(d.director, &nodeRefused{reason: why, host: hostOf(&m), id: m.Name})
		return
	}
	d.ask(m, d.describe)
}

// unlike says why a process cannot work with this one; empty: it can.
func (d *discoverer) unlike(m *gossip.Member) string {
	mine := d.bus.gossip.Meta()
	if why := unlike("it", &m.Meta, "the cluster", &mine); why != "" {
		return why + "; " + sameBuild
	}
	return ""
}

// hostOf is what the join message of a node tells.
func hostOf(m *gossip.Member) host {
	return host{incarnation: m.Meta.Incarnation, pid: int(m.Meta.PID), address: m.Meta.RPC, build: m.Meta.Build, arithmetic: m.Meta.Arithmetic}
}

// ask runs one question to a node, one at a time for each.
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
		return // the process behind the address changed; gossip will tell
	}
	if _, err := d.bus.rpc.Watch(rpc.Peer{Address: m.Meta.RPC, ID: desc.Id, Incarnation: desc.Incarnation}, d.director); err != nil {
		return
	}
	host := hostOf(&m)
	var products topology.Products
	copy(products[:], desc.Products) // fewer are none: the rest is zero
	h.foreign = func(err error) {
		d.bus.rpc.Actors().Root.Send(d.director, &nodeForeign{id: desc.Id, incarnation: desc.Incarnation, err: err})
	}
	host.handle = h
	d.bus.rpc.Actors().Root.Send(d.director, &nodeUp{host: host, node: topology.Node{
		ID: desc.Id, Incarnation: desc.Incarnation, Share: desc.Share, Speed: desc.Speed, Read: desc.Read, Syncs: topology.Syncs{Two: desc.SyncTwo, Four: desc.SyncFour}, Products: products, Threads: topology.Threads{Most: int(desc.Threads), Fewest: int(desc.FewestThreads)}, Distance: d.bus.gossip.RoundTrip(m).Seconds() / 2, KVBudget: desc.KvBudgetBytes, ModelHash: desc.ModelHash, Epoch: desc.Epoch,
		Wire: min(uint32(m.Meta.WireMax), rpc.Version)}})
}
