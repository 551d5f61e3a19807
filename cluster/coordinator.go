package cluster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/events"
	"github.com/shoal-llm/shoal/internal/gossip"
	"github.com/shoal-llm/shoal/internal/options"
	"github.com/shoal-llm/shoal/internal/rpc"
	"github.com/shoal-llm/shoal/internal/security"
	"github.com/shoal-llm/shoal/internal/server/api"
	"github.com/shoal-llm/shoal/internal/store"
	"github.com/shoal-llm/shoal/internal/weights"
	"github.com/shoal-llm/shoal/topology"
)

// CoordinatorConfig configures the process with the API, the batcher and the placement authority.
type CoordinatorConfig struct {
	Process
	// API is the address of this coordinator for clients. It is announced to other coordinators.
	API string
	// Standby: wait while another coordinator has the lease, and take over once it is gone.
	// Requires DataDir and Join.
	Standby bool
	// Waits is called whenever the reason changes why this process does not coordinate yet: it is a
	// standby, or its store lacks replicas. alone is set if no other process has coordinated for
	// longer than a takeover takes.
	Waits func(why string, alone bool)
	// Nodes is the number of nodes that the first placement waits for. 0: it uses the nodes present
	// after a quiet period.
	Nodes int `range:"1..256"`
	Serve ServeConfig
	// Key authenticates all processes to each other and encrypts traffic between machines.
	Key security.Key
	// StoreNodes are the processes that keep copies of the store once two of them are connected.
	// store.Members.Add names further ones.
	StoreNodes []string
	// DataOptional: serve without jobs if DataDir is in use or not writable. It is for a default
	// directory that the user did not choose.
	DataOptional bool
}

// Coordinator serves a model with node processes. It implements api.Engine.
type Coordinator struct {
	*core
	bus      *bus
	discover *discoverer
	store    *store.Store   // nil: no data directory
	members  *store.Members // of the store
	noJobs   string         // why there are no jobs
	key      security.Key

	log      *slog.Logger
	up       atomic.Pointer[core]
	election atomic.Pointer[store.Election]

	ctx         context.Context // for everything except the core
	cancel      context.CancelFunc
	wg          sync.WaitGroup
	waitWeights func()                    // waits for the weight server's requests
	lastGone    atomic.Pointer[time.Time] // time of the last report that another coordinator is gone
	lost        chan struct{}             // closed when the lease is lost
	why         error                     // then the reason
}

// ErrLostLease: another coordinator has taken over and this one has stopped.
var ErrLostLease = errors.New("cluster: another coordinator has taken over")

// StartCoordinator starts the coordinator. It does not wait for nodes; Ready reports when the model
// can answer. A standby first waits for the lease, until ctx ends.
func StartCoordinator(ctx context.Context, cfg CoordinatorConfig) (_ *Coordinator, err error) {
	orDefault(&cfg.ID, "coordinator")
	orDefault(&cfg.Bind, "127.0.0.1:0")
	orDefault(&cfg.Cluster, defaultCluster)
	if err := options.Check(&cfg); err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	if cfg.Standby && (cfg.DataDir == "" || len(cfg.Join) == 0) {
		return nil, fmt.Errorf("cluster: a standby needs %s DIR for its copy of the store, and %s HOST:PORT of the cluster", options.Name("data-dir"), options.Name("join"))
	}
	if err := cfg.Process.check(cfg.Key); err != nil {
		return nil, err
	}
	ck, err := model.OpenSwiftKV(cfg.Serve.Model, cfg.Serve.SwiftKV)
	if err != nil {
		return nil, err
	}
	c := &Coordinator{lost: make(chan struct{}), key: cfg.Key}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			c.Close()
			ck.Close()
		}
	}()
	cfg.Serve.ensureDefaults(&ck.Config)
	c.log = cfg.Serve.Logger
	if err = cfg.Serve.Validate(&ck.Config); err != nil { // before the other processes see this one
		return nil, err
	}
	if err = c.openStore(ctx, &cfg); err != nil {
		return nil, err
	}
	var discover atomic.Pointer[discoverer]
	meta := gossip.Meta{Incarnation: rpc.NewIncarnation(), State: gossip.Ready, Leads: true}
	if c.store != nil { // may wait for the lease
		meta.Store, meta.Leads = c.store.Addr(), false
	}
	c.bus, err = openBus(security.RoleCoordinator, cfg.Cluster, cfg.ID, cfg.Bind, cfg.Ports, cfg.NATS, cfg.Key, cfg.Serve.Logger, meta, func(e gossip.Event) {
		c.coordinatorGone(e)
		if d := discover.Load(); d != nil { // the periodic comparison finds earlier ones
			d.event(e)
		}
	})
	if err != nil {
		return nil, err
	}
	if c.store != nil {
		c.members = store.NewMembers(c.ctx, c.store, c.bus.gossip, c.bus.rpc, cfg.StoreNodes)
	}
	if c.waitWeights, err = weights.Serve(c.ctx, c.bus.rpc, ck); err != nil {
		return nil, err
	}
	if err = c.join(ctx, &cfg); err != nil {
		return nil, err
	}
	var l placementLog
	if c.store != nil {
		if l, err = c.acquireLease(ctx, meta.Incarnation, &cfg); err != nil {
			return nil, err
		}
		c.wg.Go(func() { // other processes need not know this yet
			if err := c.bus.lead(); err != nil && c.ctx.Err() == nil {
				c.log.Warn("announcing that this process coordinates failed", "error", err)
			}
		})
		if err = c.store.OpenJobs(); err != nil {
			return nil, err
		}
	}
	if c.core, err = newCore(c.bus.rpc.Actors().Root, ck, cfg.Serve, cfg.Nodes, groupName(), l); err != nil {
		return nil, err
	}
	c.trouble = c.storeProblem
	c.restoreEvents(l, &cfg)
	c.up.Store(c.core)
	select {
	case <-c.lost: // lost between the acquisition and now
		c.root.Send(c.dpid, &leaseLost{c.why.Error()})
	default:
	}
	c.discover = newDiscoverer(c.bus, c.dpid, c.director.known, cfg.Serve.Logger)
	discover.Store(c.discover)
	return c, nil
}

// restoreEvents continues the event log of the previous coordinator and starts to persist it.
func (c *Coordinator) restoreEvents(l placementLog, cfg *CoordinatorConfig) {
	first := api.ClusterEvent{At: time.Now(), Kind: api.EventStarted, Epoch: l.after, Reason: cfg.ID}
	if c.store != nil {
		first.Reason = fmt.Sprintf("%s, term %d", cfg.ID, l.term)
		if c.events.Restore(c.ctx, c.store.Events, c.log); cfg.Standby {
			first.Kind, first.Cost = api.EventTakeover, &api.Cost{Open: true}
			if at := c.lastGone.Load(); at != nil {
				first.At = *at
			}
		}
		c.wg.Go(func() { c.events.Persist(c.ctx, c.store.KeepEvents, c.log) })
	}
	c.events.Change(func(e *events.State, _ time.Time) bool { e.Add(first); return true })
}

// openStore opens the data directory. It runs before join, because a coordinator without its data
// directory must not contact nodes.
func (c *Coordinator) openStore(ctx context.Context, cfg *CoordinatorConfig) (err error) {
	c.noJobs = "Jobs, batches and files need a data directory: start the coordinator with " + options.Name("data-dir") + " DIR."
	if cfg.DataDir == "" {
		return nil
	}
	host, _, err := net.SplitHostPort(cfg.Bind)
	if err != nil {
		return fmt.Errorf("cluster: %s %q is not host:port: %w", options.Name("bind"), cfg.Bind, err)
	}
	c.store, err = store.Open(ctx, cfg.DataDir, cfg.ID, cfg.Ports.at(host, storePort), cfg.Key, security.RoleCoordinator, c.log)
	if err != nil && cfg.DataOptional {
		c.noJobs = "Jobs, batches and files are off: " + err.Error() + ". Give this coordinator its own " + options.Name("data-dir") + " DIR."
		c.log.Warn("serving without jobs", "error", err)
		return nil
	}
	return err
}

// join joins the cluster. The first coordinator has no process to join.
func (c *Coordinator) join(ctx context.Context, cfg *CoordinatorConfig) error {
	if c.store != nil {
		if err := c.store.Offer(c.bus.rpc); err != nil {
			return err
		}
	}
	if len(cfg.Join) == 0 {
		return nil
	}
	for {
		err := c.bus.gossip.Join(ctx, cfg.Join, 1)
		if err == nil {
			return c.bus.checkBuild(ctx, thisCoordinator)
		}
		if !cfg.Standby {
			return err
		}
		c.log.Debug("no answer yet", "join", cfg.Join, "error", err)
		select {
		case <-time.After(rejoinInterval):
		case <-ctx.Done():
			return fmt.Errorf("cluster: cannot join %v: %w", cfg.Join, err)
		}
	}
}

// coordinatorGone reports coordinators that are gone to the election.
func (c *Coordinator) coordinatorGone(e gossip.Event) {
	if e.Member.Meta.Role != string(security.RoleCoordinator) || e.Kind != gossip.Failed && e.Kind != gossip.Leave {
		return
	}
	now := time.Now()
	c.lastGone.Store(&now)
	c.wg.Go(func() { // gossip callbacks must not block
		t := time.NewTicker(waitsTick)
		defer t.Stop()
		for { // the election may not exist yet
			if s := c.election.Load(); s != nil {
				s.Gone(e.Member.Meta.Incarnation)
				return
			}
			select {
			case <-t.C:
			case <-c.ctx.Done():
				return
			}
		}
	})
}

const thisCoordinator = "this coordinator"

const (
	// rivalWait is how long a coordinator without --standby waits for another one's lease to
	// expire.
	rivalWait = store.LeaseTTL + 10*time.Second
	waitsTick = 200 * time.Millisecond
)

// acquireLease waits for the lease.
func (c *Coordinator) acquireLease(ctx context.Context, incarnation uint64, cfg *CoordinatorConfig) (placementLog, error) {
	v := &standbyWait{standby: cfg.Standby, log: c.log, othersLead: c.bus.othersLead, notify: cfg.Waits}
	v.start()
	defer v.stop()
	t := time.NewTicker(waitsTick)
	defer t.Stop()
	var unlike buildWarnings
	look := func() { // incompatible nodes would be useless after a takeover
		why, _ := c.bus.incompatibleCoordinators(ctx, thisCoordinator)
		unlike.log(c.log, "the active coordinator has an incompatible build: this standby could not take over its nodes", why)
	}
	for cfg.Standby && !c.store.Replicated() {
		v.setReason(fmt.Sprintf("the coordinator has not asked this process to keep a copy of the store yet: name it there with %s %s,... or shoal store add %s; a replicated store needs three processes with a %s", options.Name("store-nodes"), cfg.ID, cfg.ID, options.Name("data-dir")))
		select {
		case <-t.C:
			look()
		case <-ctx.Done():
			return placementLog{}, ctx.Err()
		}
	}
	if err := c.store.OpenLease(ctx, v.setReason); err != nil {
		return placementLog{}, err
	}
	claims := make(chan topology.Claim, 1)
	election := c.store.Elect(cfg.ID, incarnation, cfg.API, store.Callbacks{
		Elected:  func(l topology.Claim) { claims <- l },
		Recorded: func(epoch uint32) { c.tellDirector(&placementRecorded{epoch}) },
		Deposed:  c.stepDown,
	})
	c.election.Store(election)
	began := time.Now()
	for {
		select {
		case l := <-claims:
			kind, _ := c.store.Durability()
			c.log.Debug("coordinating", "term", l.Term, "after epoch", l.Placement.Epoch, "store", kind)
			return placementLog{term: l.Term, after: l.Placement.Epoch, record: election.Record, drained: l.Drained, drain: election.Drain}, nil
		case <-t.C:
			look()
		case <-ctx.Done():
			return placementLog{}, ctx.Err()
		}
		claim, _, why := election.Claim()
		if cfg.Standby || time.Since(began) > store.QuietPeriod {
			v.setReason(why)
		}
		if !cfg.Standby && time.Since(began) > rivalWait {
			return placementLog{}, fmt.Errorf("cluster: %s (its API: %s); to run this one as a standby start it with %s %s HOST:PORT", why, claim.API, options.Name("standby"), options.Name("join"))
		}
	}
}

// stepDown stops this coordinator. It can no longer record decisions, and the nodes follow another
// one.
func (c *Coordinator) stepDown(by topology.Claim) {
	c.why = fmt.Errorf("%w: %s has the lease since term %d (its API: %s); this process failed to renew it in time and has changed nothing since", ErrLostLease, by.Holder, by.Term, by.API)
	c.log.Error("stepping down", "reason", c.why)
	close(c.lost)
	c.tellDirector(&leaseLost{c.why.Error()})
	if k := c.up.Load(); k != nil {
		c.wg.Go(func() {
			ctx, cancel := context.WithTimeout(c.ctx, 5*time.Second)
			defer cancel()
			_ = k.batcher.Stop(ctx) // running requests end with a reason
		})
	}
}

// Lost is closed when another coordinator has taken over. LostReason names it.
func (c *Coordinator) Lost() <-chan struct{} { return c.lost }

// LostReason returns an error that wraps ErrLostLease once Lost is closed.
func (c *Coordinator) LostReason() error {
	select {
	case <-c.lost:
		return c.why
	default:
		return nil
	}
}

func (c *Coordinator) Cluster() api.ClusterState {
	s := c.core.Cluster()
	s.Subscriptions, s.Join = c.bus.nats.Subscriptions(), c.GossipAddress()
	mine := c.bus.gossip.Meta()
	s.Build, s.Arithmetic, s.WireVersion = mine.Build, mine.Arithmetic, uint32(mine.WireMax)
	if c.store != nil {
		s.Store = c.store.State()
	}
	return s
}

// tellDirector sends a message to the director, if it exists.
func (c *Coordinator) tellDirector(m any) {
	if k := c.up.Load(); k != nil {
		k.root.Send(k.dpid, m)
	}
}

// groupName returns a random name. On a NATS that other programs use too, no other process uses its
// subjects, not even an earlier coordinator of these nodes.
func groupName() string { return "g" + strings.ToLower(rand.Text()[:12]) }

// GossipAddress returns the address that nodes join.
func (c *Coordinator) GossipAddress() string { return c.bus.gossip.Address() }

// Close stops the coordinator. Nodes stay up and wait for another one.
func (c *Coordinator) Close() {
	c.cancel()
	if c.discover != nil {
		c.discover.close()
	}
	if c.store != nil { // before the core, so that jobs record the interruption
		c.store.CloseJobs()
	}
	if e := c.election.Load(); e != nil {
		e.Close()
	}
	if c.core != nil {
		c.core.close()
	}
	c.wg.Wait()
	if c.waitWeights != nil {
		c.waitWeights()
	}
	if c.store != nil {
		c.store.Close()
	}
	if c.bus != nil {
		c.bus.close()
	}
	if c.core != nil {
		c.checkpoint.Close()
	}
}

// Chunk returns the maximum number of prompt tokens of one sequence per step in the newest
// placement.
func (c *Coordinator) Chunk() int { return int(c.chunk.Load()) }
