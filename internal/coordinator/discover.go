package coordinator

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/shoal-llm/shoal/internal/bus"
	"github.com/shoal-llm/shoal/internal/gossip"
	"github.com/shoal-llm/shoal/internal/node"
	"github.com/shoal-llm/shoal/internal/options"
	"github.com/shoal-llm/shoal/internal/rpc"
	"github.com/shoal-llm/shoal/internal/security"
	"github.com/shoal-llm/shoal/topology"
)

// Discoverer reports the members of the gossip list to the director. Gossip events make that fast. A periodic
// comparison of gossip's members with the director's makes it reliable, for example for a fenced node that
// responds again.
type Discoverer struct {
	bus      *bus.Bus
	director *Director
	log      *slog.Logger

	ctx      context.Context
	cancel   context.CancelFunc
	wg       sync.WaitGroup
	mu       sync.Mutex
	querying map[queryKey]bool
	leaving  map[string]uint64 // incarnations whose wish to leave the director has
}

// queryKey names a query in flight. A member that is lost while it describes itself is still confirmed.
type queryKey struct {
	name    string
	confirm bool
}

const (
	compareEvery  = 500 * time.Millisecond
	describeLimit = 5 * time.Second
)

// Discover starts to look for nodes.
func Discover(b *bus.Bus, d *Director, log *slog.Logger) *Discoverer {
	ctx, cancel := context.WithCancel(context.Background())
	x := &Discoverer{bus: b, director: d, log: log, ctx: ctx, cancel: cancel, querying: map[queryKey]bool{}, leaving: map[string]uint64{}}
	x.wg.Go(x.compare)
	return x
}

// Close ends the search and waits for the questions in flight.
func (d *Discoverer) Close() {
	d.cancel()
	d.wg.Wait()
}

func (d *Discoverer) compare() {
	t := time.NewTicker(compareEvery)
	defer t.Stop()
	for {
		select {
		case <-d.ctx.Done():
			return
		case <-t.C:
			for _, m := range d.bus.Gossip.Members() {
				d.discovered(m)
				d.leaves(m)
			}
		}
	}
}

// Event handles a gossip event.
func (d *Discoverer) Event(e gossip.Event) {
	if e.Kind == gossip.Join && e.Member.Meta.State != gossip.Ready { // with state Ready it would be refused later
		if why := d.bus.Incompatible(&e.Member); why != "" {
			d.log.Warn("a process with an incompatible build joined and will exit", "name", e.Member.Name, "role", e.Member.Meta.Role, "reason", why)
		}
	}
	if e.Member.Meta.Role != string(security.RoleNode) {
		return
	}
	switch e.Kind {
	case gossip.Join, gossip.Update:
		d.discovered(e.Member)
		d.leaves(e.Member)
	case gossip.Leave:
		d.nodeLost(e.Member)
	case gossip.Failed:
		d.query(e.Member, queryKey{e.Member.Name, true}, d.confirm)
	}
}

// confirm checks whether a node that gossip has lost still responds: on an overloaded machine a
// live node can miss its probes. A frozen node does not respond; a dead one refuses immediately.
// Another process at its address does not count.
// The limit grows with memberlist's health score of this process, because giving up slow nodes
// would make everything slower.
func (d *Discoverer) confirm(m gossip.Member) {
	limit := probeLimit * time.Duration(1+d.bus.Gossip.Health())
	ctx, cancel := context.WithTimeout(d.ctx, limit)
	defer cancel()
	switch a, _ := question(ctx, d.bus.RPC, &m); a {
	case alive:
		d.log.Debug("gossip lost a node that still responds", "node", m.Name)
		return
	case silent:
		d.bus.RPC.PeerLost(m.Meta.RPC)
	case replaced: // the connection is that of its successor
	}
	d.nodeLost(m)
}

func (d *Discoverer) nodeLost(m gossip.Member) {
	d.director.send(&nodeDown{id: m.Name, incarnation: m.Meta.Incarnation})
}

// leaves reports once that a node wants to leave. A node that the director does not know yet, because it is
// still being described, is reported by a later comparison.
func (d *Discoverer) leaves(m gossip.Member) {
	if m.Meta.Role != string(security.RoleNode) || m.Meta.State != gossip.Draining {
		return
	}
	if inc, ok := d.director.Known(m.Name); !ok || inc != m.Meta.Incarnation {
		return
	}
	d.mu.Lock()
	reported := d.leaving[m.Name] == m.Meta.Incarnation
	d.leaving[m.Name] = m.Meta.Incarnation
	d.mu.Unlock()
	if !reported {
		d.director.send(&nodeDrain{id: m.Name, incarnation: m.Meta.Incarnation, leaves: true})
	}
}

// discovered requests the description of a node that is new to the director.
func (d *Discoverer) discovered(m gossip.Member) {
	if m.Meta.Role != string(security.RoleNode) || m.Meta.State != gossip.Ready {
		return
	}
	if inc, ok := d.director.Known(m.Name); ok && inc == m.Meta.Incarnation {
		return
	}
	if why := d.bus.Incompatible(&m); why != "" {
		d.director.send(&nodeRefused{reason: why, host: hostOf(&m), id: m.Name})
		return
	}
	d.query(m, queryKey{m.Name, false}, d.describe)
}

// hostOf returns the data in a node's join message.
func hostOf(m *gossip.Member) Host {
	return Host{Incarnation: m.Meta.Incarnation, PID: int(m.Meta.PID), Address: m.Meta.RPC, Build: m.Meta.Build, Arithmetic: m.Meta.Arithmetic}
}

// query runs f for a node in the background. At most one query of each kind runs per node.
func (d *Discoverer) query(m gossip.Member, key queryKey, f func(gossip.Member)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.querying[key] || d.ctx.Err() != nil {
		return
	}
	d.querying[key] = true
	d.wg.Go(func() {
		defer func() {
			d.mu.Lock()
			delete(d.querying, key)
			d.mu.Unlock()
		}()
		f(m)
	})
}

func (d *Discoverer) describe(m gossip.Member) {
	ctx, cancel := context.WithTimeout(d.ctx, describeLimit)
	defer cancel()
	h := node.NewRemote(d.bus.RPC, m.Meta.RPC, 0, nil)
	desc, err := h.Describe(ctx)
	if err != nil {
		if rpc.IsIncompatible(err) {
			d.director.send(&nodeRefused{reason: err.Error() + "; " + bus.SameBuild, host: hostOf(&m), id: m.Name})
			return
		}
		level := slog.LevelWarn
		if !slices.ContainsFunc(d.bus.Gossip.Members(),
			func(x gossip.Member) bool { return x.Name == m.Name && x.Meta.Incarnation == m.Meta.Incarnation }) {
			level = slog.LevelDebug // it has died meanwhile
		}
		d.log.Log(ctx, level, "a node was seen but does not answer", "node", m.Name, "control", m.Meta.RPC, "error", err,
			"do", "if it runs, give it an address that this machine can reach with "+options.Name("bind")+", and open its ports ("+
				options.Name("ports")+"); address translation is not supported")
		return
	}
	if desc.Id != m.Name || desc.Incarnation != m.Meta.Incarnation {
		return // another process has the address now; gossip will report it
	}
	if _, err := d.bus.RPC.Watch(rpc.Peer{Address: m.Meta.RPC, ID: desc.Id, Incarnation: desc.Incarnation}, d.director.pid); err != nil {
		return
	}
	host := hostOf(&m)
	var products topology.Products
	copy(products[:], desc.Products) // missing values stay zero
	for _, r := range d.director.cfg.Authority.Models() {
		if i := slices.Index(append([]string{desc.ModelHash}, desc.OtherHashes...), r.ModelHash); i >= 0 { // else the authority refuses the node
			h := node.NewRemote(d.bus.RPC, m.Meta.RPC, i, func(err error) { d.director.Incompatible(desc.Id, desc.Incarnation, err) })
			host.Handles, host.Sockets = append(host.Handles, h), append(host.Sockets, h.Name())
		}
	}
	role, err := topology.ParseRole(desc.Role)
	if err != nil {
		d.director.send(&nodeRefused{reason: err.Error(), host: host, id: m.Name})
		return
	}
	d.director.Up(topology.Node{
		ID: desc.Id, Incarnation: desc.Incarnation, Share: desc.Share, Speed: desc.Speed, Read: desc.Read,
		Syncs: topology.Syncs{Two: desc.SyncTwo, Four: desc.SyncFour}, Products: products,
		Threads: topology.Threads{Max: int(desc.Threads), Min: int(desc.FewestThreads)}, Distance: d.bus.Gossip.RoundTrip(m).Seconds() / 2,
		KVBudget: desc.KvBudgetBytes, Device: desc.Device, DeviceMemory: desc.DeviceMemoryBytes,
		DeviceStep: int(desc.DeviceStepTokens), Role: role, ModelHash: desc.ModelHash,
		OtherHashes: desc.OtherHashes, Epoch: desc.Epoch,
		Wire: min(uint32(m.Meta.WireMax), rpc.Version)}, host)
}
