package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/shoal-llm/shoal/actors/socket"
	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/internal/bus"
	"github.com/shoal-llm/shoal/internal/node"
	"github.com/shoal-llm/shoal/internal/options"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/internal/rpc"
	"github.com/shoal-llm/shoal/topology"
)

// Config configures a Director, except for the authority's rules.
type Config struct {
	Authority topology.AuthorityConfig
	Models    []Model       // those of Authority.Models, in their order
	GroupName string        // of the first model's groups; those of further ones add their number, and prefill groups a suffix
	Deadline  time.Duration // deadline of one collective
	LoadStall time.Duration // how long a node may make no progress in a load while others do
	Logger    *slog.Logger
	// Record requests that a placement be recorded under the lease. placementRecorded is the reply.
	// nil: there is no store, and the first epoch follows the highest one that nodes report.
	Record func(p topology.Placement, incarnations []uint64)
	// Drained requests that the drained nodes be recorded. drainedRecorded is the reply. nil: there is no store.
	Drained func(nodes map[string]uint64)
	// OnServe and OnWithdraw notify the batchers. They must not block. OnServe gets the decode group of
	// each model, and then the prefill group of each if nodes have roles.
	OnServe    func([]*Group)
	OnWithdraw func(topology.Withdraw)
	// OnEvent receives other events of nodes, with the kinds of wire.ClusterEvent.
	OnEvent func(kind, node, reason string)
}

// Model is the part of the messages to nodes that depends on the model.
type Model struct {
	Load *proto.LoadRequest // template: model, types, step size
	// CardSteps means that a group of cards chooses the step size, instead of Load.
	CardSteps bool
	// Memory returns the model's part of a node's memory; nil: there is one model, which has all.
	Memory func(n topology.Node) *proto.Memory
}

// Director is the actor around topology.Authority. It turns effects into calls to nodes, and their
// replies into messages.
type Director struct {
	cfg          Config
	authority    *topology.Authority
	hosts        map[string]Host
	incarnations sync.Map          // id -> incarnation of nodes that are up or refused
	fences       map[string]uint64 // by kind, since the start
	began        time.Time
	ctx          context.Context
	cancel       context.CancelFunc
	calls        sync.WaitGroup
	endLoad      context.CancelCauseFunc  // ends the calls of the newest load
	loads        time.Time                // start of the newest load
	serving      atomic.Pointer[[]*Group] // decode groups by model, then prefill groups
	served       bool                     // a placement has served since the start
	unrecorded   []unrecordedDrain
	root         *actor.RootContext
	pid          *actor.PID
}

const (
	loadTimeout = 15 * time.Minute // without progress of any node
	loadLongest = 24 * time.Hour
	joinTimeout = 20 * time.Second
	// CallTimeout is the time limit of calls that a node answers at once.
	CallTimeout = 5 * time.Second
	tickEvery   = 100 * time.Millisecond
)

// New returns a director that has not started.
func New(cfg Config) *Director {
	ctx, cancel := context.WithCancel(context.Background())
	return &Director{cfg: cfg, authority: topology.NewAuthority(cfg.Authority), hosts: map[string]Host{},
		fences: map[string]uint64{"hung": 0, "slow": 0, "broke": 0},
		began:  time.Now(), ctx: ctx, cancel: cancel, endLoad: func(error) {}}
}

// Start starts the director's actor.
func (d *Director) Start(root *actor.RootContext) {
	d.root = root
	d.pid = root.Spawn(actor.PropsFromProducer(func() actor.Actor { return d }))
}

// Stop stops the actor and waits for the calls to nodes that are in flight.
func (d *Director) Stop() error {
	err := d.root.StopFuture(d.pid).Wait()
	d.calls.Wait()
	return err
}

// Serving returns the decode group of a model that serves; nil: none does.
func (d *Director) Serving(model int) *Group {
	if all := d.serving.Load(); all != nil {
		return (*all)[model]
	}
	return nil
}

// ServingPrefill returns the prefill group of a model that serves; nil: none does.
func (d *Director) ServingPrefill(model int) *Group {
	if all := d.serving.Load(); all != nil && len(d.cfg.Models)+model < len(*all) {
		return (*all)[len(d.cfg.Models)+model]
	}
	return nil
}

// Receive implements actor.Actor.
func (d *Director) Receive(c actor.Context) {
	switch m := c.Message().(type) {
	case *actor.Started:
		self, root := c.Self(), c.ActorSystem().Root
		d.calls.Go(func() {
			t := time.NewTicker(tickEvery)
			defer t.Stop()
			for {
				select {
				case <-t.C:
					root.Send(self, &clockTick{})
				case <-d.ctx.Done():
					return
				}
			}
		})
	case *actor.Stopping:
		d.cancel()
	case *nodeUp:
		if was, ok := d.Known(m.node.ID); !ok || was != m.node.Incarnation {
			d.cfg.OnEvent(wire.EventNodeUp, m.node.ID, "")
		}
		d.register(m.node.ID, m.host)
		d.run(c, d.authority.Up(m.node))
		d.reportRefused(m.node.ID)
	case *nodeRefused:
		d.register(m.id, m.host)
		d.run(c, d.authority.Refuse(m.id, m.host.Incarnation, m.reason))
		d.reportRefused(m.id)
	case *nodeForeign:
		d.refuseForeign(c, m)
	case *nodeFault:
		d.reportFault(c, m)
	case *nodeDown:
		d.down(c, m.id, m.incarnation)
	case *rpc.PeerDown:
		d.down(c, m.Peer.ID, m.Peer.Incarnation)
	case *nodeAnswered:
		if m.err != nil && !errors.Is(m.err, errNewer) { // a newer placement cancels the calls of a load
			d.cfg.Logger.Warn("a node failed a call", "node", m.id, "epoch", m.epoch, "error", m.err)
		}
		if m.loaded != nil && m.epoch == d.authority.Epoch() { // a late reply lists outdated caches
			if h, here := d.hosts[m.id]; here {
				h.loaded = m.loaded
				d.hosts[m.id] = h
			}
		}
		if answer, ok := errors.AsType[*rpc.RemoteError](m.err); ok && d.loadingOf(m.epoch) && ownFault(answer) {
			d.reportFault(c, &nodeFault{epoch: m.epoch, id: m.id, fault: m.err.Error(), alone: true})
		}
		d.run(c, d.authority.Answered(m.epoch, m.id, m.err))
	case *epochBroken:
		d.run(c, d.authority.Broken(m.epoch, m.reason))
	case *nodeDrain:
		d.drain(c, m)
	case *nodeUndrain:
		d.undrain(m)
	case *nodeFence:
		d.fence(c, m)
	case *nodeWorks:
		d.cfg.Logger.Info("a fenced node responds again", "node", m.id)
		d.cfg.OnEvent(wire.EventWorks, m.id, "")
		d.authority.Responds(m.id, m.incarnation)
	case *placementRecorded:
		d.run(c, d.authority.Recorded(m.epoch))
	case *drainedRecorded:
		d.answerDrains(m.nodes)
	case *leaseLost:
		d.run(c, d.authority.Depose(m.reason))
		d.refuseDrains(time.Time{}, errors.New("cluster: "+m.reason))
	case *clockTick:
		d.refuseDrains(time.Now(), ErrDrainUnrecorded)
		d.run(c, d.authority.Tick(time.Since(d.began)))
	case *viewRequest:
		phase, reason := d.authority.Phase()
		p, nodes := d.authority.Placement()
		v := View{Phase: phase, Reason: reason, Epoch: d.authority.Epoch(), Placement: p, Nodes: nodes, Known: d.authority.Known(),
			Refused: d.authority.Refused(), Drained: maps.Clone(d.authority.Drained()),
			Quarantined: d.authority.Quarantined(), Hosts: maps.Clone(d.hosts),
			Fenced: d.authority.Fenced(), Fences: maps.Clone(d.fences)}
		if phase == topology.Loading {
			v.Loading = time.Since(d.loads)
		}
		m.reply <- v
	}
}

// register records which process has a node name now.
func (d *Director) register(id string, h Host) {
	d.hosts[id] = h
	d.incarnations.Store(id, h.Incarnation)
}

func (d *Director) reportRefused(id string) {
	if why, refused := d.authority.Refused()[id]; refused {
		d.cfg.Logger.Warn("node refused", "node", id, "reason", why)
		d.cfg.OnEvent(wire.EventRefused, id, why)
	}
}

// fence leaves out a node that delays the others.
func (d *Director) fence(c actor.Context, m *nodeFence) {
	effects := d.authority.Fence(m.id, m.incarnation, m.reason, m.hung)
	f, fenced := d.authority.Fenced()[m.id]
	if fenced && effects == nil {
		return // another step has fenced it
	}
	if !fenced {
		d.cfg.Logger.Warn("a node delays the others but cannot be left out", "node", m.id, "reason", m.reason)
		return
	}
	kind := "slow"
	if m.hung {
		kind = "hung"
	}
	d.fenced(c, m.id, kind, f, effects)
}

func (d *Director) fenced(c actor.Context, id, kind string, f topology.Fence, effects []topology.Effect) {
	d.fences[kind]++
	d.cfg.Logger.Warn("node fenced", "node", id, "reason", f.Reason, "times", f.Times)
	d.report(topology.KindFenced, id, f.Reason, effects)
	d.run(c, effects)
}

// reportFault counts a broken epoch against a node, and leaves it out after several in a row.
func (d *Director) reportFault(c actor.Context, m *nodeFault) {
	if effects := d.authority.CountFault(m.epoch, m.id, m.fault, m.alone); effects != nil {
		d.fenced(c, m.id, "broke", d.authority.Fenced()[m.id], effects)
	}
}

// refuseForeign refuses a node with incompatible messages. It stays refused until another process has its
// name.
func (d *Director) refuseForeign(c actor.Context, m *nodeForeign) {
	h, known := d.hosts[m.id]
	if inc, up := d.Known(m.id); !known || !up || inc != m.incarnation {
		return
	}
	if _, refused := d.authority.Refused()[m.id]; refused {
		return
	}
	why := fmt.Sprintf("it (build %s) and the coordinator have incompatible messages: %v; %s", h.Build, m.err, bus.SameBuild)
	effects := d.authority.Refuse(m.id, m.incarnation, why)
	d.cfg.Logger.Warn("node refused", "node", m.id, "reason", why)
	d.report(topology.KindRefused, m.id, why, effects)
	d.run(c, effects)
	d.retire(h, d.authority.Epoch()) // its loaded slices are useless
}

// retire asks all sockets of a node to free an epoch. It does not wait.
func (d *Director) retire(h Host, epoch uint32) {
	for _, s := range h.Handles {
		d.call(CallTimeout, func(ctx context.Context) { _ = s.Retire(ctx, &proto.RetireRequest{Epoch: epoch}) })
	}
}

// loadingOf reports whether the load of an epoch is running.
func (d *Director) loadingOf(epoch uint32) bool {
	phase, _ := d.authority.Phase()
	return phase == topology.Loading && epoch == d.authority.Epoch()
}

// probe checks whether the executors of a fenced node respond.
func (d *Director) probe(c actor.Context, n topology.Node) {
	self, root, handles := c.Self(), c.ActorSystem().Root, d.hosts[n.ID].Handles
	d.call(probeLimit, func(ctx context.Context) {
		if s := hostProgress(ctx, handles); s != nil && !s.Busy {
			root.Send(self, &nodeWorks{n.ID, n.Incarnation})
		}
	})
}

// down removes a node, unless another process has taken its name.
func (d *Director) down(c actor.Context, id string, incarnation uint64) {
	inc, ok := d.Known(id)
	effects := d.authority.Down(id, incarnation)
	if ok && inc == incarnation {
		d.incarnations.Delete(id)
		delete(d.hosts, id) // a node without a fixed name has another one after a restart
		d.report(topology.KindLost, id, "node "+id+" is gone", effects)
	}
	d.run(c, effects)
}

// report emits an event of a node, unless the end of its placement emits one.
func (d *Director) report(kind, id, reason string, effects []topology.Effect) {
	if !slices.ContainsFunc(effects, func(e topology.Effect) bool { _, ends := e.(topology.Withdraw); return ends }) {
		d.cfg.OnEvent(kind, id, reason)
	}
}

// Known returns the incarnation of a node that is up or refused. It may be called from any
// goroutine.
func (d *Director) Known(id string) (uint64, bool) {
	v, ok := d.incarnations.Load(id)
	if !ok {
		return 0, false
	}
	return v.(uint64), true
}

func (d *Director) run(c actor.Context, effects []topology.Effect) {
	for _, e := range effects {
		switch e := e.(type) {
		case topology.Withdraw:
			d.serving.Store(nil)
			d.endLoad(errNewer)
			d.cfg.Logger.Warn("placement withdrawn", "reason", e.Reason)
			d.cfg.OnWithdraw(e)
		case topology.Record:
			if d.cfg.Record == nil {
				d.run(c, d.authority.Recorded(e.Placement.Epoch))
				continue
			}
			d.cfg.Record(e.Placement, incarnations(e.Nodes))
		case topology.LoadSlices:
			d.cfg.Logger.Debug("loading", "epoch", e.Placement.Epoch, "sockets", len(e.Nodes), "mapping", e.Placement.Mapping)
			d.load(c, e)
		case topology.FormGroup:
			d.join(c, e)
		case topology.Serve:
			groups := d.groups(e)
			d.serving.Store(&groups)
			level := slog.LevelInfo
			if !d.served { // /ready reports the first placement
				level, d.served = slog.LevelDebug, true
			}
			d.cfg.Logger.Log(context.Background(), level, "serving", "epoch", e.Placement.Epoch, "sockets", len(e.Nodes))
			for id, why := range d.authority.Capped() {
				d.cfg.Logger.Warn("a node gets less work than its own share: to override, set "+options.Name("shares")+
					" on the coordinator", "node", id, "share", why)
			}
			d.cfg.OnServe(groups)
		case topology.Probe:
			d.probe(c, e.Node)
		case topology.RetireNode:
			d.retire(d.hosts[e.Node.ID], e.Epoch)
		}
	}
}

func (d *Director) load(c actor.Context, e topology.LoadSlices) {
	d.endLoad(errNewer)
	ctx, cancel := context.WithCancelCause(d.ctx)
	d.endLoad, d.loads = cancel, time.Now()
	for _, part := range parts(&e.Placement, e.Nodes) {
		d.loadPart(ctx, c, e.Placement.Epoch, part)
	}
	d.watchLoad(ctx, c, e)
}

// loadPart asks the nodes of one group to load their slices of all models.
func (d *Director) loadPart(ctx context.Context, c actor.Context, epoch uint32, part part) {
	var places []*proto.Placement // by model
	for model := range d.cfg.Models {
		places = append(places, socket.PlacementMessage(part.of(model), incarnations(part.nodes)))
	}
	for rank, n := range part.nodes {
		handles := d.hosts[n.ID].Handles
		requests := make([]*proto.LoadRequest, len(handles))
		for model, m := range d.cfg.Models {
			r := &proto.LoadRequest{Placement: places[model], Rank: uint32(rank), ModelHash: m.Load.ModelHash,
				WeightType: m.Load.WeightType, KvType: m.Load.KvType, MaxStepTokens: uint32(m.stepTokens(part.nodes)),
				Context: m.Load.Context, Coordinator: m.Load.Coordinator}
			if part.prefill {
				r.Coordinator++ // each group has a batcher of its own, so a node that changes groups drops its caches
			}
			if m.Memory != nil {
				r.Memory = m.Memory(n)
			}
			requests[model] = r
		}
		d.callNode(ctx, c, loadLongest, epoch, n.ID, func(ctx context.Context) ([]*proto.LoadReply, error) {
			replies := make([]*proto.LoadReply, len(handles))
			return replies, ofEach(handles, func(model int, h node.Handle) (err error) {
				replies[model], err = h.Load(ctx, requests[model])
				return err
			})
		})
	}
}

func incarnations(nodes []topology.Node) []uint64 {
	out := make([]uint64, len(nodes))
	for i, n := range nodes {
		out[i] = n.Incarnation
	}
	return out
}

func (d *Director) join(c actor.Context, e topology.FormGroup) {
	d.endLoad(nil)
	for _, part := range parts(&e.Placement, e.Nodes) {
		d.joinPart(c, e.Epoch, part)
	}
}

// joinPart asks the nodes of one group to form a collective group for each model.
func (d *Director) joinPart(c actor.Context, epoch uint32, part part) {
	requests := make([]*proto.JoinRequest, len(d.cfg.Models))
	for model := range requests {
		r := &proto.JoinRequest{Epoch: epoch, DeadlineMillis: uint32(d.cfg.Deadline.Milliseconds()), Group: d.cfg.GroupName}
		if model > 0 {
			r.Group += fmt.Sprintf("-%d", model)
		}
		if part.prefill {
			r.Group += "-prefill"
		}
		for _, n := range part.nodes {
			r.Incarnations = append(r.Incarnations, uint32(n.Incarnation))
		}
		requests[model] = r
	}
	for _, n := range part.nodes {
		handles := d.hosts[n.ID].Handles
		d.callNode(d.ctx, c, joinTimeout, epoch, n.ID, func(ctx context.Context) ([]*proto.LoadReply, error) {
			return nil, ofEach(handles, func(model int, h node.Handle) error {
				reply, err := h.Join(ctx, requests[model])
				if err == nil && len(reply.Unreachable) > 0 {
					cut := new(topology.Unreachable)
					for _, rank := range reply.Unreachable {
						if int(rank) < len(part.nodes) {
							cut.Nodes = append(cut.Nodes, part.nodes[rank].ID)
						}
					}
					err = cut
				}
				return err
			})
		})
	}
}

// callNode calls a node outside the actor and sends its reply back as a message.
func (d *Director) callNode(ctx context.Context, c actor.Context, limit time.Duration, epoch uint32, id string,
	f func(context.Context) ([]*proto.LoadReply, error)) {
	self, root := c.Self(), c.ActorSystem().Root
	d.callIn(ctx, limit, func(ctx context.Context) {
		loaded, err := f(ctx)
		if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(cause, ctx.Err()) {
			err = cause
		}
		if err != nil {
			loaded = nil
		}
		root.Send(self, &nodeAnswered{epoch: epoch, id: id, err: err, loaded: loaded})
	})
}

func (d *Director) call(limit time.Duration, f func(context.Context)) { d.callIn(d.ctx, limit, f) }

func (d *Director) callIn(ctx context.Context, limit time.Duration, f func(context.Context)) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	d.calls.Go(func() {
		defer cancel()
		f(ctx)
	})
}
