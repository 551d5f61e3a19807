package cluster

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/internal/bus"
	"github.com/shoal-llm/shoal/internal/coordinator"
	"github.com/shoal-llm/shoal/internal/events"
	"github.com/shoal-llm/shoal/internal/gossip"
	"github.com/shoal-llm/shoal/internal/hostname"
	"github.com/shoal-llm/shoal/internal/options"
	"github.com/shoal-llm/shoal/internal/rpc"
	"github.com/shoal-llm/shoal/internal/security"
	"github.com/shoal-llm/shoal/internal/store"
	"github.com/shoal-llm/shoal/internal/weights"
)

// CoordinatorConfig configures the process with the API, the batcher and the placement authority.
type CoordinatorConfig struct {
	Process
	// API is the address of this coordinator for clients. It is announced to other coordinators.
	API string
	// Standby: wait while another coordinator has the lease, and take over after its end. Requires
	// DataDir and Join.
	Standby bool
	// Waits, if set, receives the reason why this process does not coordinate yet, and each later
	// reason: it is a standby, or its store lacks replicas. alone is set if no other process has
	// coordinated for longer than a takeover takes.
	Waits func(why string, alone bool)
	// Nodes is the number of nodes that the first placement waits for. 0: it uses the nodes present
	// after a quiet period.
	Nodes int `range:"1..256"`
	Serve ServeConfig
	// Others are the further models that the cluster serves side by side. Settings of the whole
	// cluster (shares, deadlines, logger) are those of Serve.
	Others []ServeConfig
	// Key authenticates all processes to each other and encrypts traffic between machines.
	Key security.Key
	// StoreNodes are the processes that keep copies of the store once two of them are connected.
	// store.Members.Add names further ones.
	StoreNodes []string
	// DataOptional: serve without jobs if DataDir is in use or not writable. It is for a default
	// directory that the user did not choose.
	DataOptional bool
}

// Coordinator serves one or several models with node processes. It implements engine.Engine.
type Coordinator struct {
	engines
	bus      *bus.Bus
	discover *coordinator.Discoverer
	election *coordinator.Election
	store    *store.Store   // nil: no data directory
	members  *store.Members // of the store
	noJobs   string         // why there are no jobs
	key      security.Key

	log *slog.Logger
	up  atomic.Pointer[core]

	ctx         context.Context // for everything except the core
	cancel      context.CancelFunc
	wg          sync.WaitGroup
	tending     sync.WaitGroup // of the members of the store
	waitWeights func()         // waits for the weight server's requests
	closing     sync.Once
}

// ErrLostLease: another coordinator has taken over and this one has stopped.
var ErrLostLease = coordinator.ErrLostLease

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
		return nil, fmt.Errorf("cluster: a standby needs %s DIR for its copy of the store, and %s HOST:PORT of the cluster",
			options.Name("data-dir"), options.Name("join"))
	}
	if err := cfg.Process.check(cfg.Key); err != nil {
		return nil, err
	}
	trials := options.ThreadTrialsOf(ctx)
	cfg.Serve.trialRounds = trials.Rounds
	models, err := openModels(append([]ServeConfig{cfg.Serve}, cfg.Others...)) // before this process contacts the others
	if err != nil {
		return nil, err
	}
	c := &Coordinator{key: cfg.Key, log: models[0].Logger}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			c.Close()
			if c.core == nil {
				closeModels(models)
			}
		}
	}()
	c.election = coordinator.NewElection(c.log, c.stopBatcher)
	place, err := cfg.locate(ctx, c.log)
	if err != nil {
		return nil, err
	}
	if err = c.openStore(ctx, &cfg, place); err != nil {
		return nil, err
	}
	var discover atomic.Pointer[coordinator.Discoverer]
	meta := gossip.Meta{Incarnation: rpc.NewIncarnation(), Build: Build(), State: gossip.Ready, Leads: true}
	if c.store != nil { // may wait for the lease
		meta.Store, meta.Leads = c.store.Addr(), false
	}
	onEvent := func(e gossip.Event) {
		c.election.Observe(e)
		if d := discover.Load(); d != nil { // the periodic comparison finds earlier ones
			d.Event(e)
		}
	}
	c.bus, err = bus.Open(bus.Config{Role: security.RoleCoordinator, Cluster: cfg.Cluster, ID: cfg.ID, Place: place, Ports: cfg.Ports,
		NATS: cfg.NATS, Key: cfg.Key, Meta: meta, OnEvent: onEvent, Logger: c.log})
	if err != nil {
		return nil, err
	}
	if c.store != nil {
		c.members = store.NewMembers(c.ctx, c.store, c.bus.Gossip, c.bus.RPC, cfg.StoreNodes)
	}
	if c.waitWeights, err = weights.Serve(c.ctx, c.bus.RPC, checkpoints(models)); err != nil {
		return nil, err
	}
	if err = c.join(ctx, &cfg); err != nil {
		return nil, err
	}
	var l coordinator.PlacementLog
	if c.store != nil {
		if l, err = c.election.Acquire(ctx, coordinator.Candidate{Bus: c.bus, Store: c.store, ID: cfg.ID, Incarnation: meta.Incarnation,
			API: cfg.API, Standby: cfg.Standby, Waits: cfg.Waits}); err != nil {
			return nil, err
		}
		c.wg.Go(func() { // the start does not wait for the announcement
			if err := c.bus.AnnounceCoordinator(); err != nil && c.ctx.Err() == nil {
				c.log.Warn("announcing that this process coordinates failed", "error", err)
			}
		})
		if err = c.store.OpenJobs(); err != nil {
			return nil, err
		}
	}
	if c.core, err = newSite(c.bus.RPC.Actors().Root, models, cfg.Nodes, groupName(), l, c.dataDir(&cfg)); err != nil {
		return nil, err
	}
	trials.Times = c.threadTimes
	c.trouble = c.storeProblem
	c.restoreEvents(l, &cfg)
	c.up.Store(c.core)
	c.election.Attach(c.director)
	c.discover = coordinator.Discover(c.bus, c.director, c.log)
	discover.Store(c.discover)
	return c, nil
}

// restoreEvents continues the event log of the previous coordinator and starts to persist it.
func (c *Coordinator) restoreEvents(l coordinator.PlacementLog, cfg *CoordinatorConfig) {
	first := wire.ClusterEvent{At: time.Now(), Kind: wire.EventStarted, Epoch: l.After, Reason: cfg.ID}
	if c.store != nil {
		first.Reason = fmt.Sprintf("%s, term %d", cfg.ID, l.Term)
		if c.events.Restore(c.ctx, c.store.Events, c.log); cfg.Standby {
			first.Kind, first.Cost = wire.EventTakeover, &wire.Cost{Open: true}
			if at := c.election.LastLost(); at != nil {
				first.At = *at
			}
		}
		c.wg.Go(func() { c.events.Persist(c.ctx, c.store.StoreEvents, c.log) })
	}
	c.events.Change(func(e *events.State, _ time.Time) bool { e.Add(first); return true })
}

// openStore opens the data directory. It runs before join, because a coordinator without its data
// directory must not contact nodes.
func (c *Coordinator) openStore(ctx context.Context, cfg *CoordinatorConfig, place hostname.Place) (err error) {
	c.noJobs = "Jobs, batches and files need a data directory: start the coordinator with " + options.Name("data-dir") + " DIR."
	if cfg.DataDir == "" {
		return nil
	}
	c.store, err = store.Open(ctx, cfg.DataDir, cfg.ID, cfg.Ports.StoreAt(place), cfg.Key, security.RoleCoordinator, c.log)
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
		if err := c.store.Offer(c.bus.RPC); err != nil {
			return err
		}
	}
	if len(cfg.Join) == 0 {
		return nil
	}
	for {
		err := c.bus.Gossip.Join(ctx, cfg.Join, 1)
		if err == nil {
			return c.bus.CheckBuild(ctx)
		}
		if !cfg.Standby {
			return err
		}
		c.log.Debug("no answer yet", "join", cfg.Join, "error", err)
		select {
		case <-time.After(bus.RejoinInterval):
		case <-ctx.Done():
			return fmt.Errorf("cluster: cannot join %v: %w", cfg.Join, err)
		}
	}
}

// stopBatcher ends the running requests with a reason, after another coordinator has taken over.
func (c *Coordinator) stopBatcher() {
	if k := c.up.Load(); k != nil {
		c.wg.Go(func() {
			ctx, cancel := context.WithTimeout(c.ctx, 5*time.Second)
			defer cancel()
			for _, c := range k.cores() {
				_ = c.batcher.Stop(ctx)
			}
		})
	}
}

// Lost is closed when another coordinator has taken over. LostReason names it.
func (c *Coordinator) Lost() <-chan struct{} { return c.election.Lost() }

// LostReason returns an error that wraps ErrLostLease once Lost is closed.
func (c *Coordinator) LostReason() error { return c.election.LostReason() }

func (c *Coordinator) Cluster() wire.ClusterState {
	s := c.engines.Cluster()
	s.Subscriptions, s.Join = c.bus.NATS.Subscriptions(), c.GossipAddress()
	mine := c.bus.Gossip.Meta()
	s.Build, s.Arithmetic, s.WireVersion = mine.Build, mine.Arithmetic, uint32(mine.WireMax)
	if c.store != nil {
		s.Store = c.store.State()
	}
	return s
}

// groupName returns a random name. On a NATS that other programs use too, no other process uses its
// subjects, not even an earlier coordinator of these nodes.
func groupName() string { return "g" + strings.ToLower(rand.Text()[:12]) }

// GossipAddress returns the address that nodes join.
func (c *Coordinator) GossipAddress() string { return c.bus.JoinAddress() }

// Close stops the coordinator. Nodes stay up and wait for another one. It may be called more than once.
func (c *Coordinator) Close() { c.closing.Do(c.close) }

func (c *Coordinator) close() {
	c.cancel()
	if c.discover != nil {
		c.discover.Close()
	}
	c.tending.Wait()    // it may open the jobs
	if c.store != nil { // before the core, so that jobs record the interruption
		c.store.CloseJobs()
	}
	if c.election != nil {
		c.election.Close()
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
		c.bus.Close()
	}
	if c.core != nil {
		c.closeCheckpoints()
	}
}

// Chunk returns the maximum number of prompt tokens of one sequence per step in the newest
// placement.
func (c *Coordinator) Chunk() int { return int(c.chunk.Load()) }
