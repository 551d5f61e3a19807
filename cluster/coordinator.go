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
	"github.com/shoal-llm/shoal/internal/gossip"
	"github.com/shoal-llm/shoal/internal/rpc"
	"github.com/shoal-llm/shoal/internal/security"
	"github.com/shoal-llm/shoal/internal/server/api"
	"github.com/shoal-llm/shoal/internal/store"
	"github.com/shoal-llm/shoal/internal/weights"
	"github.com/shoal-llm/shoal/topology"
)

// CoordinatorConfig is the process with the API, the batcher and the placement
// authority.
type CoordinatorConfig struct {
	// ID names the process in the cluster. Default "coordinator".
	ID string
	// Bind is host:port of gossip, which nodes join; the other listeners take
	// Ports on the same host. Default 127.0.0.1:0.
	Bind  string
	Ports Ports
	// Cluster is the name of the cluster: processes of another name are not let
	// in. Letters, digits, - and _. Default "shoal".
	Cluster string
	// Join are gossip addresses of the cluster, for a coordinator that is not its
	// first process.
	Join []string
	// API is where clients reach this coordinator; others are told.
	API string
	// Standby: wait while another coordinator has the lease, and take over when it
	// is gone. Needs DataDir and Join.
	Standby bool
	// Waits is told why this process does not coordinate yet, whenever that changes: a
	// standby, or one whose store lacks replicas. alone: nor does anybody else, for longer
	// than a takeover takes.
	Waits func(why string, alone bool)
	// Nodes is how many nodes the first placement waits for; 0: whoever is there
	// after a quiet moment.
	Nodes int
	Serve ServeConfig
	// Key authenticates every process to every other one, and encrypts what leaves the
	// machine.
	Key security.Key
	// Insecure: start without a Key. Whoever can connect is let in, so only loopback
	// addresses may be bound.
	Insecure bool
	NATS     string
	// DataDir is where jobs, batches and files live; one running coordinator may
	// have it. Empty: no jobs.
	DataDir string
	// StoreNodes are the processes that are to keep copies of the store, once two of them
	// are here; store.Members.Add names more.
	StoreNodes []string
	// DataOptional: when DataDir is in use or cannot be written, serve without
	// jobs (a default directory that nobody asked for).
	DataOptional bool
}

// Coordinator serves a model on node processes. It implements api.Engine.
type Coordinator struct {
	*core
	bus      *bus
	discover *discoverer
	store    *store.Store   // nil: there is none
	members  *store.Members // of the store
	noJobs   string         // why there are no jobs
	key      security.Key

	log      *slog.Logger
	up       atomic.Pointer[core]
	election atomic.Pointer[store.Election]

	ctx    context.Context // of what runs beside the core
	cancel context.CancelFunc
	wg     sync.WaitGroup
	given  func()                    // waits for what the weight server is giving
	silent atomic.Pointer[time.Time] // when another coordinator was last found to be gone
	lost   chan struct{}             // closed when the lease is lost
	why    error                     // why, then
}

// ErrLostLease: another coordinator has taken over; this one has stopped.
var ErrLostLease = errors.New("cluster: another coordinator has taken over")

// StartCoordinator brings the coordinator up. It does not wait for nodes: Ready
// tells when the model answers. A standby waits for the lease first, as long as
// ctx allows.
func StartCoordinator(ctx context.Context, cfg CoordinatorConfig) (_ *Coordinator, err error) {
	orDefault(&cfg.ID, "coordinator")
	orDefault(&cfg.Bind, "127.0.0.1:0")
	orDefault(&cfg.Cluster, defaultCluster)
	if cfg.Nodes < 0 || cfg.Nodes > 256 {
		return nil, errors.New("cluster: --nodes: want 0 to 256")
	}
	if cfg.Standby && (cfg.DataDir == "" || len(cfg.Join) == 0) {
		return nil, errors.New("cluster: a standby needs --data-dir DIR for its copy of the store, and --join HOST:PORT of the cluster")
	}
	if err := checkJoin(cfg.Join); err != nil {
		return nil, err
	}
	if err := cfg.Ports.check(); err != nil {
		return nil, err
	}
	if err := checkBind(cfg.Bind, cfg.Key, cfg.Insecure); err != nil {
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
	if err = cfg.Serve.Validate(&ck.Config); err != nil { // before others hear of it
		return nil, err
	}
	if err = c.openStore(ctx, &cfg); err != nil {
		return nil, err
	}
	var events atomic.Pointer[discoverer]
	meta := gossip.Meta{Incarnation: rpc.NewIncarnation(), State: gossip.Ready, Leads: true}
	if c.store != nil { // it may have to wait for the lease
		meta.Store, meta.Leads = c.store.Addr(), false
	}
	c.bus, err = openBus(security.RoleCoordinator, cfg.Cluster, cfg.ID, cfg.Bind, cfg.Ports, cfg.NATS, cfg.Key, cfg.Serve.Logger, meta, func(e gossip.Event) {
		c.rival(e)
		if d := events.Load(); d != nil { // earlier ones are found by comparison
			d.event(e)
		}
	})
	if err != nil {
		return nil, err
	}
	if c.store != nil {
		c.members = store.NewMembers(c.ctx, c.store, c.bus.gossip, c.bus.rpc, cfg.StoreNodes)
	}
	if c.given, err = weights.Serve(c.ctx, c.bus.rpc, ck); err != nil {
		return nil, err
	}
	if err = c.join(ctx, &cfg); err != nil {
		return nil, err
	}
	var l placementLog
	if c.store != nil {
		if l, err = c.take(ctx, meta.Incarnation, &cfg); err != nil {
			return nil, err
		}
		c.wg.Go(func() { // the others need not have heard of it
			if err := c.bus.lead(); err != nil && c.ctx.Err() == nil {
				c.log.Warn("that this process coordinates is not told", "error", err)
			}
		})
		if err = c.store.OpenJobs(); err != nil {
			return nil, err
		}
	}
	if c.core, err = newCore(c.bus.rpc.Actors().Root, ck, cfg.Serve, cfg.Nodes, groupName(), l); err != nil {
		return nil, err
	}
	c.trouble = c.storeTrouble
	c.recount(l, &cfg)
	c.up.Store(c.core)
	select {
	case <-c.lost: // between the lease and now
		c.root.Send(c.dpid, &leaseLost{c.why.Error()})
	default:
	}
	c.discover = newDiscoverer(c.bus, c.dpid, c.director.known, cfg.Serve.Logger)
	events.Store(c.discover)
	return c, nil
}

// recount goes on with the event log of the coordinator before, and with writing it down.
func (c *Coordinator) recount(l placementLog, cfg *CoordinatorConfig) {
	first := api.ClusterEvent{At: time.Now(), Kind: api.EventStarted, Epoch: l.after, Reason: cfg.ID}
	if c.store != nil {
		first.Reason = fmt.Sprintf("%s, term %d", cfg.ID, l.term)
		if c.events.recall(c.ctx, c.store.Events, c.log); cfg.Standby {
			first.Kind, first.Cost = api.EventTakeover, &api.Cost{Open: true}
			if at := c.silent.Load(); at != nil {
				first.At = *at
			}
		}
		c.wg.Go(func() { c.events.keep(c.ctx, c.store.KeepEvents, c.log) })
	}
	c.events.change(func(e *eventLog, _ time.Time) bool { e.add(first); return true })
}

// openStore comes first: a coordinator that cannot have its data directory must
// not meet the nodes.
func (c *Coordinator) openStore(ctx context.Context, cfg *CoordinatorConfig) (err error) {
	c.noJobs = "Jobs, batches and files need a place to live: start the coordinator with --data-dir DIR."
	if cfg.DataDir == "" {
		return nil
	}
	host, _, err := net.SplitHostPort(cfg.Bind)
	if err != nil {
		return fmt.Errorf("cluster: --bind %q is not host:port: %w", cfg.Bind, err)
	}
	c.store, err = store.Open(ctx, cfg.DataDir, cfg.ID, cfg.Ports.at(host, storePort), cfg.Key, security.RoleCoordinator, c.log)
	if err != nil && cfg.DataOptional {
		c.noJobs = "Jobs, batches and files are off: " + err.Error() + ". Give this one a --data-dir DIR of its own."
		c.log.Warn("serving without jobs", "error", err)
		return nil
	}
	return err
}

// join meets the cluster; the first coordinator has nobody to meet.
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
		c.log.Debug("nobody answers yet", "join", cfg.Join, "error", err)
		select {
		case <-time.After(knockEvery):
		case <-ctx.Done():
			return fmt.Errorf("cluster: cannot join %v: %w", cfg.Join, err)
		}
	}
}

// rival tells the election of coordinators that are gone.
func (c *Coordinator) rival(e gossip.Event) {
	if e.Member.Meta.Role != string(security.RoleCoordinator) || e.Kind != gossip.Failed && e.Kind != gossip.Leave {
		return
	}
	now := time.Now()
	c.silent.Store(&now)
	c.wg.Go(func() { // gossip must not wait
		t := time.NewTicker(waitsTick)
		defer t.Stop()
		for { // the election may not be there yet
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
	// rivalWait is how long a coordinator that is no standby waits for the lease of
	// another one to run out.
	rivalWait = store.LeaseTTL + 10*time.Second
	waitsTick = 200 * time.Millisecond
)

// take waits for the lease.
func (c *Coordinator) take(ctx context.Context, incarnation uint64, cfg *CoordinatorConfig) (placementLog, error) {
	v := &vigil{standby: cfg.Standby, log: c.log, led: c.bus.led, tell: cfg.Waits}
	v.start()
	defer v.stop()
	t := time.NewTicker(waitsTick)
	defer t.Stop()
	var unlike complaints
	look := func() { // nodes of another's kind would be of no use after a takeover
		why, _ := c.bus.unlikeCoordinators(ctx, thisCoordinator)
		unlike.say(c.log, "this coordinator stands by one of another build, whose nodes it could not take over", why)
	}
	for cfg.Standby && !c.store.Replicated() {
		v.say(fmt.Sprintf("the coordinator has not asked this process to keep a copy of the store yet: name it there, with --store-nodes %s,... or shoal store add %s; that takes three processes with a --data-dir", cfg.ID, cfg.ID))
		select {
		case <-t.C:
			look()
		case <-ctx.Done():
			return placementLog{}, ctx.Err()
		}
	}
	if err := c.store.OpenLease(ctx, v.say); err != nil {
		return placementLog{}, err
	}
	claims := make(chan topology.Claim, 1)
	election := c.store.Elect(cfg.ID, incarnation, cfg.API, store.Callbacks{
		Elected:  func(l topology.Claim) { claims <- l },
		Recorded: func(epoch uint32) { c.tell(&placementRecorded{epoch}) },
		Deposed:  c.depose,
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
		if cfg.Standby || time.Since(began) > store.Quiet {
			v.say(why)
		}
		if !cfg.Standby && time.Since(began) > rivalWait {
			return placementLog{}, fmt.Errorf("cluster: %s (its API: %s); to wait in its shadow start this one with --standby --join HOST:PORT", why, claim.API)
		}
	}
}

// depose stops this coordinator: whatever it decides from now on could not be
// written down, and nodes follow another one.
func (c *Coordinator) depose(by topology.Claim) {
	c.why = fmt.Errorf("%w: %s has the lease since term %d (its API: %s); this process was silent for too long and has changed nothing since", ErrLostLease, by.Holder, by.Term, by.API)
	c.log.Error("stepping down", "reason", c.why)
	close(c.lost)
	c.tell(&leaseLost{c.why.Error()})
	if k := c.up.Load(); k != nil {
		c.wg.Go(func() {
			ctx, cancel := context.WithTimeout(c.ctx, 5*time.Second)
			defer cancel()
			_ = k.batcher.Stop(ctx) // running requests end with a reason
		})
	}
}

// Lost is closed when another coordinator has taken over; LostReason says which.
func (c *Coordinator) Lost() <-chan struct{} { return c.lost }

// LostReason is an error that wraps ErrLostLease, once Lost is closed.
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

// tell sends the director a message, once there is one.
func (c *Coordinator) tell(m any) {
	if k := c.up.Load(); k != nil {
		k.root.Send(k.dpid, m)
	}
}

// groupName is of this coordinator's life alone: on a NATS that others use too,
// nobody else speaks on its subjects, an earlier coordinator of these nodes
// included.
func groupName() string { return "g" + strings.ToLower(rand.Text()[:12]) }

// GossipAddress is what nodes join.
func (c *Coordinator) GossipAddress() string { return c.bus.gossip.Address() }

// Close ends the coordinator; nodes stay up and wait for another one.
func (c *Coordinator) Close() {
	c.cancel()
	if c.discover != nil {
		c.discover.close()
	}
	if c.store != nil { // before the core: what is interrupted is noted as such
		c.store.CloseJobs()
	}
	if e := c.election.Load(); e != nil {
		e.Close()
	}
	if c.core != nil {
		c.core.close()
	}
	c.wg.Wait()
	if c.given != nil {
		c.given()
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

// Chunk is the most prompt tokens of one sequence in one step of the newest placement.
func (c *Coordinator) Chunk() int { return int(c.chunk.Load()) }
