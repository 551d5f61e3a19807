package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/shoal-llm/shoal/actors/socket"
	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/collective/natsbus"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/tier"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/gossip"
	"github.com/shoal-llm/shoal/internal/machine"
	"github.com/shoal-llm/shoal/internal/options"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/internal/rpc"
	"github.com/shoal-llm/shoal/internal/security"
	"github.com/shoal-llm/shoal/internal/store"
	"github.com/shoal-llm/shoal/internal/sys/sharedmem"
	"github.com/shoal-llm/shoal/internal/weights"
	"github.com/shoal-llm/shoal/topology"
)

// NodeConfig configures one node process: one socket on one machine.
type NodeConfig struct {
	Process
	Resources
	// Model is the checkpoint, which must match the one that the cluster serves. Empty: the node
	// fetches the parts that it needs from other processes into WeightsCache.
	Model string
	// Hub, if set, reads bytes of a file of the hub. A node without Model takes weights from it when the
	// cluster has the model from the hub and the hub answers faster than the cluster.
	Hub func(ctx context.Context, origin, file string, from, to int64) ([]byte, error)
	// SwiftKV is the folder of an adapter of Model; empty: none.
	SwiftKV string
	// OnThreads, if set, is called with the number of compute threads before they start.
	OnThreads func(threads int)
	// Shared, if set, is memory that the nodes of this machine share. Close it after RunNode.
	Shared *sharedmem.Region
	// Speeds are measurements with that number of threads. Zero: the node measures.
	Speeds topology.Speeds
	// Share is this node's part of the work relative to other nodes, at most twice the measured
	// speed. 0: the measured speed. ServeConfig.Shares of the coordinator has precedence.
	Share float64 `range:"0.."`
	// Key authenticates all processes to each other and encrypts traffic between machines.
	Key security.Key
	// Abrupt: leave without waiting until other nodes have the work, for a node that ends together
	// with its cluster.
	Abrupt bool
	// OnProgress, if set, is called with the load progress in bytes of this node's weights. It is
	// called often and from any goroutine.
	OnProgress func(done, total int64)
	Logger     *slog.Logger
}

func (c *NodeConfig) ensureDefaults() {
	if c.ID == "" {
		host, _ := os.Hostname()
		c.ID = fmt.Sprintf("%s-%d", token(host), os.Getpid())
	}
	orDefault(&c.Bind, "127.0.0.1:0")
	orDefault(&c.Cluster, defaultCluster)
	options.SetDefaults(&c.Resources)
	orDefault(&c.KVMemory, 1<<30)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
}

// Validate checks a config as RunNode would.
func (c *NodeConfig) Validate() error {
	if len(c.Join) == 0 {
		return fmt.Errorf("cluster: a node needs the address of its coordinator: %s HOST:PORT", options.Name("join"))
	}
	if err := errors.Join(options.Check(&c.Resources), options.Check(c)); err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	return c.Process.check(c.Key)
}

// check checks the addresses.
func (p *Process) check(key security.Key) error {
	if err := options.Check(p); err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	for _, at := range p.Join {
		if _, _, err := security.HostPort(at); err != nil {
			return fmt.Errorf("cluster: %s: %w", options.Name("join"), err)
		}
	}
	return checkBind(p.Bind, key, p.Insecure)
}

// defaultCluster is the default name of a cluster.
const defaultCluster = "shoal"

// checkBind rejects addresses that would expose the process, and those that other processes cannot
// dial.
func checkBind(addr string, key security.Key, insecure bool) error {
	if err := security.CheckBind(addr, !key.IsZero()); err != nil {
		return err
	}
	host, _, err := net.SplitHostPort(addr)
	if ip := net.ParseIP(host); err == nil && host != "localhost" && (ip == nil || ip.IsUnspecified()) {
		return fmt.Errorf("cluster: %s %s: want one IP address of this machine that the other processes can reach, such as 10.0.0.2:7070", options.Name("bind"), addr)
	}
	if key.IsZero() && !insecure {
		return fmt.Errorf("%w: every user of this machine could join the cluster, and read its prompts. Give the token that `shoal up --cluster` or `shoal token create` printed "+
			"on the first machine (%s TOKEN); or make a key with `shoal keygen -o key` and give it to every process: %s key, or %s. Without one, only with %s",
			security.ErrNoKey, options.Name("token"), options.Name("cluster-key"), security.EnvKey, options.Name("insecure"))
	}
	return nil
}

// token replaces the characters that a node name must not contain.
func token(s string) string {
	s = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' {
			return r
		}
		return '-'
	}, s)
	return strings.Trim(s[:min(len(s), 40)], "-_")
}

// bus has the listeners and connections of a process of the cluster.
type bus struct {
	rpc    *rpc.System
	nats   *natsbus.Server
	gossip *gossip.Node
	log    *slog.Logger
}

// openBus starts the three listeners of a process. It calls onEvent for changes of the members;
// onEvent must not block.
func openBus(role security.Role, name, id, bind string, ports Ports, url string, key security.Key, log *slog.Logger, meta gossip.Meta, onEvent func(gossip.Event)) (_ *bus, err error) {
	host, _, err := net.SplitHostPort(bind)
	if err != nil {
		return nil, fmt.Errorf("cluster: %s %q is not host:port: %w", options.Name("bind"), bind, err)
	}
	if err := introduce(&meta); err != nil {
		return nil, err
	}
	b := &bus{log: log}
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	rc := rpc.Config{ID: id, Role: string(role), Incarnation: meta.Incarnation, Build: meta.Build, Bind: ports.at(host, controlPort), Logger: log}
	gc := gossip.Config{Name: id, Bind: bind, Label: name, Profile: profile(host), Logger: log}
	nc := natsbus.Config{Name: id, Cluster: name, Listen: ports.at(host, routesPort), ClientPort: ports.number(tensorsPort), URL: url, Log: log, HungAfter: 2 * time.Second}
	if !key.IsZero() {
		if rc.ServerTLS, rc.ClientTLS, err = key.TLS(security.Identity{Role: role, ID: id}, security.Roles()...); err != nil {
			return nil, err
		}
		if nc.RouteTLS, nc.ClientTLS, err = key.BusTLS(security.Identity{Role: role, ID: id}); err != nil {
			return nil, err
		}
		// Packets on loopback are not visible to others, so tensors are sent unencrypted there,
		// which gives up to 25 % more tokens per second. Logins cannot be replayed.
		if local, err := security.Loopback(bind); err == nil && local {
			nc.ClientTLS = nil
		}
		nc.Secret, nc.Secrets = key.BusPassword(security.RoleNode), key.BusPasswords(security.RoleNode) // one for the mesh
		gc.Keys = gossipKeys(key.Keys())
	}
	if b.rpc, err = rpc.Start(rc); err != nil {
		return nil, err
	}
	if b.nats, err = natsbus.Start(nc); err != nil {
		return nil, err
	}
	meta.Role, meta.RPC, meta.Route, meta.PID = string(role), b.rpc.Address(), b.nats.RouteAddr(), uint32(os.Getpid())
	gc.Meta = meta
	gc.OnEvent = func(e gossip.Event) {
		b.route(e)
		onEvent(e)
	}
	if b.gossip, err = gossip.Start(gc); err != nil {
		return nil, err
	}
	key.Watch(func(keys []security.Key) {
		if err := b.gossip.SetKeys(gossipKeys(keys)); err != nil {
			log.Error("changing the gossip keys failed", "error", err)
			return
		}
		log.Info("cluster keys reloaded", "in_use", keys[0].Fingerprint(), "accepted", len(keys))
	})
	return b, nil
}

func gossipKeys(keys []security.Key) (out [][]byte) {
	for _, k := range keys {
		out = append(out, k.Gossip())
	}
	return out
}

// profile selects the timings of failure detection. Processes on one machine can use shorter ones
// than machines on a network.
func profile(host string) gossip.Profile {
	if ip := net.ParseIP(host); host == "localhost" || ip != nil && ip.IsLoopback() {
		return gossip.Local
	}
	return gossip.LAN
}

// route connects the bus to a newly seen process. The mesh spreads by itself, so one known peer is
// enough, and repeating one has no effect.
func (b *bus) route(e gossip.Event) {
	if e.Kind != gossip.Join || e.Member.Meta.Route == "" || e.Member.Name == b.nats.Name() {
		return
	}
	if e.Member.Meta.Role == string(security.RoleCoordinator) {
		if err := b.nats.AddRoute(e.Member.Meta.Route); err != nil {
			b.log.Warn("cannot route to a peer", "peer", e.Member.Name, "error", err)
		}
	}
}

// sameBus returns an error if only one of this process and the coordinator uses an external NATS.
func (b *bus) sameBus() error {
	ours := b.nats.RouteAddr() == ""
	for _, m := range b.gossip.Members() {
		if m.Meta.Role != string(security.RoleCoordinator) || (m.Meta.Route == "") == ours {
			continue
		}
		if ours {
			return fmt.Errorf("cluster: this node has %s but the coordinator %s has not: set it for all processes or for none", options.Name("nats"), m.Name)
		}
		return fmt.Errorf("cluster: the coordinator %s uses an external NATS: give this node the same %s URL", m.Name, options.Name("nats"))
	}
	return nil
}

func (b *bus) setState(s gossip.State) error {
	m := b.gossip.Meta()
	m.State = s
	return b.gossip.UpdateMeta(m)
}

// lead announces that this process coordinates.
func (b *bus) lead() error {
	m := b.gossip.Meta()
	m.Leads = true
	return b.gossip.UpdateMeta(m)
}

func (b *bus) close() {
	if b.gossip != nil {
		_ = b.gossip.Leave()
	}
	if b.rpc != nil {
		b.rpc.Close()
	}
	if b.nats != nil {
		b.nats.Shutdown()
	}
}

// RunNode runs a node until ctx ends, and then leaves the cluster.
func RunNode(ctx context.Context, cfg NodeConfig) error {
	cfg.ensureDefaults()
	if err := cfg.Validate(); err != nil {
		return err
	}
	var ck *model.Checkpoint
	var m *weights.Cache // nil: the checkpoint is local
	var err error
	if cfg.Model != "" {
		if ck, err = model.OpenSwiftKV(cfg.Model, cfg.SwiftKV); err != nil {
			return err
		}
	}
	defer func() { closeWeights(ck, m) }()
	if ck != nil {
		logRechecks(ck, cfg.Logger)
	}
	// Weights and caches are outside the Go heap. The rest is small, so a high GC target costs
	// little memory and avoids collections.
	debug.SetGCPercent(400)
	incarnation := rpc.NewIncarnation()
	meta := gossip.Meta{Incarnation: incarnation, State: gossip.Joining}
	k, err := openStore(ctx, &cfg)
	if err != nil {
		return err
	}
	if k != nil {
		defer k.Close()
		meta.Store = k.Addr()
	}
	b, err := openBus(security.RoleNode, cfg.Cluster, cfg.ID, cfg.Bind, cfg.Ports, cfg.NATS, cfg.Key, cfg.Logger, meta, func(gossip.Event) {})
	if err != nil {
		return err
	}
	defer b.close()
	if k != nil {
		if err := k.Offer(b.rpc); err != nil {
			return err
		}
	}
	if ck != nil {
		wait, err := weights.Serve(ctx, b.rpc, ck)
		if err != nil {
			return err
		}
		defer wait()
	} else {
		if err := b.joinCluster(ctx, &cfg); err != nil {
			return err
		}
		if ck, m, err = weights.Open(ctx, weights.From(b.rpc, b.weightServers), cfg.Hub, cfg.WeightsCache, cfg.WeightsCacheSize, cfg.Logger); err != nil {
			return err
		}
	}
	draft, err := OpenDraft(cfg.Draft, ck, &cfg.KVMemory)
	if err != nil {
		return err
	}
	defer closeDraft(draft, ck)
	speeds := cfg.Speeds
	if !speeds.Valid() { // assumes that it is the only node on its machine and one of two in the cluster
		speeds = machine.MeasureSpeeds(ctx, machine.SpeedsConfig{Dir: cfg.WeightsCache, Nodes: 1, Threads: cfg.Threads, Sockets: 2, Model: &ck.Config, Weights: ck.Config.DType, NATS: cfg.NATS, Build: Build(), Logger: cfg.Logger}, b.nats)
	}
	cfg.Threads = speeds.Threads.Most
	if cfg.OnThreads != nil {
		cfg.OnThreads(cfg.Threads)
	}
	pool, speed := tensor.NewPool(cfg.Threads), 0.0
	defer pool.Close()
	if cfg.Share == 0 || !cfg.Abrupt { // otherwise the parent process has set its share
		speed = machine.ShareOf(speeds.Read)
	}
	n := &nodeActor{cache: m, retired: make(chan struct{}, 1), mux: rpc.NewMux(b.rpc), bus: b.nats, cfg: cfg, hash: ck.Hash(), incarnation: incarnation, speed: speed, speeds: speeds}
	n.register()
	n.socket = socket.Config{Checkpoint: ck, Grammars: grammars(ck), Pool: pool, Threads: speeds.Threads, OnThreads: cfg.OnThreads, KVBudget: cfg.KVMemory, Shared: cfg.Shared, Draft: draft, Logger: cfg.Logger, Connect: b.nats.Join, OnProgress: cfg.OnProgress, Stopped: make(chan struct{})}
	if cfg.WeightsCache != "" {
		n.socket.WeightsCache = &shard.Cache{Dir: cfg.WeightsCache, Limit: cfg.WeightsCacheSize, Logger: cfg.Logger}
	}
	if cfg.PrefixDisk != "" {
		if n.socket.PrefixDisk, err = tier.Open(cfg.PrefixDisk, cfg.PrefixDiskSize, cfg.Logger); err != nil {
			return err
		}
		defer n.socket.PrefixDisk.Close()
	}
	if cfg.KVDisk != "" {
		if n.socket.Scratch, err = tier.OpenScratch(cfg.KVDisk, cfg.KVDiskSize, cfg.Logger); err != nil {
			return err
		}
		defer n.socket.Scratch.Close()
	}
	pid, err := b.rpc.Spawn(socketName, actor.PropsFromProducer(func() actor.Actor { return n }))
	if err != nil {
		return err
	}
	defer socket.Stop(b.rpc.Actors().Root, pid, n.socket.Stopped)
	if m == nil {
		if err := b.joinCluster(ctx, &cfg); err != nil {
			return err
		}
	}
	if err := b.setState(gossip.Ready); err != nil {
		return err
	}
	cfg.Logger.Info("node joined", "id", cfg.ID, "share", cfg.Share, "threads", speeds.Threads.Most, "read_bytes_per_second", int64(speeds.Read), "gossip", b.gossip.Address(), "control", b.rpc.Address(), "routes", b.nats.RouteAddr(), "tensors", b.nats.Addr(), "tls", !cfg.Key.IsZero())
	if err := stayJoined(ctx, b, cfg.Join, &n.lastContact, cfg.Logger); err != nil {
		return err
	}
	cfg.Logger.Info("node leaves", "id", cfg.ID, "reason", context.Cause(ctx))
	n.leaving.Store(true)
	_ = b.setState(gossip.Draining)
	if !cfg.Abrupt {
		n.drain(b)
	}
	return nil
}

// logRechecks logs changes of files while they are served.
func logRechecks(ck *model.Checkpoint, log *slog.Logger) {
	ck.OnRecheck = func(file string, err error) {
		if err != nil {
			log.Error("model file changed", "file", file, "error", err)
			return
		}
		log.Info("model file was rewritten or removed, its content is unchanged", "file", file)
	}
}

// joinCluster joins the cluster and waits for a coordinator.
func (b *bus) joinCluster(ctx context.Context, cfg *NodeConfig) error {
	if err := b.gossip.Join(ctx, cfg.Join, 2); err != nil {
		return fmt.Errorf("cluster: cannot join %s: %w", strings.Join(cfg.Join, ", "), err)
	}
	if err := b.checkBuild(ctx, thisNode); err != nil {
		return err
	}
	return b.sameBus()
}

const thisNode = "this node"

// weightServers returns the control addresses of the coordinator and then of the nodes.
func (b *bus) weightServers() (out []string) {
	for _, m := range b.gossip.Members() {
		if m.Meta.Role == string(security.RoleCoordinator) {
			out = append([]string{m.Meta.RPC}, out...)
		} else if m.Meta.State == gossip.Ready && m.Meta.RPC != b.rpc.Address() {
			out = append(out, m.Meta.RPC)
		}
	}
	return out
}

func closeWeights(ck *model.Checkpoint, m *weights.Cache) {
	if ck != nil {
		_ = ck.Close()
	}
	if m != nil {
		_ = m.Close()
	}
}

const (
	// drainLimit is how long a leaving node waits for its work to move.
	drainLimit = 20 * time.Second
	drainLook  = 100 * time.Millisecond
)

// drain keeps taking part until other nodes have this node's work, or until no process is left to
// move it.
func (n *nodeActor) drain(b *bus) {
	end := time.NewTimer(drainLimit)
	defer end.Stop()
	look := time.NewTicker(drainLook)
	defer look.Stop()
	for {
		select {
		case <-n.retired:
			return
		case <-end.C:
			n.cfg.Logger.Warn("leaving before the work has moved", "waited", drainLimit)
			return
		case <-look.C:
			if uptime()-time.Duration(n.lastContact.Load()) > contactTimeout || !slices.ContainsFunc(b.gossip.Members(), func(m gossip.Member) bool {
				return m.Meta.Role == string(security.RoleCoordinator)
			}) {
				return
			}
		}
	}
}

// openStore opens the data directory of a node, if it has one.
func openStore(ctx context.Context, cfg *NodeConfig) (*store.Store, error) {
	if cfg.DataDir == "" {
		return nil, nil
	}
	host, _, err := net.SplitHostPort(cfg.Bind)
	if err != nil {
		return nil, fmt.Errorf("cluster: %s %q is not host:port: %w", options.Name("bind"), cfg.Bind, err)
	}
	return store.Open(ctx, cfg.DataDir, cfg.ID, cfg.Ports.at(host, storePort), cfg.Key, security.RoleNode, cfg.Logger)
}

// nodeActor turns envelopes into commands of the socket and sends its replies.
type nodeActor struct {
	cache       *weights.Cache // nil: the checkpoint is local
	mux         *rpc.Mux
	bus         *natsbus.Server
	cfg         NodeConfig
	socket      socket.Config
	hash        string
	incarnation uint64
	speed       float64 // measured, in units of a share; 0: its share was configured
	speeds      topology.Speeds
	pid         *actor.PID
	leaving     atomic.Bool   // it has announced that it drains
	retired     chan struct{} // receives a value when, after that, the coordinator reports that it has no work left
	lastContact atomic.Int64  // uptime of this process at the last request of the coordinator
}

// Receive implements actor.Actor.
func (n *nodeActor) Receive(c actor.Context) {
	if _, ok := c.Message().(*actor.Started); ok {
		n.pid = c.Spawn(actor.PropsFromProducer(func() actor.Actor { return &socket.Actor{Config: n.socket} }))
		return
	}
	n.mux.Receive(c)
}

func (n *nodeActor) register() {
	rpc.Handle(n.mux, uint32(proto.Kind_KIND_DESCRIBE), func(c *rpc.Ctx, _ *proto.Empty) {
		n.noteContact()
		// A restarted coordinator continues after the newest epoch.
		c.Actor.Send(n.pid, &socket.Status{Reply: func(s *proto.SocketStatus) {
			respond(c, &proto.NodeDescription{Id: n.cfg.ID, Incarnation: n.incarnation, Pid: uint32(os.Getpid()), ModelHash: n.hash,
				KvBudgetBytes: n.cfg.KVMemory, Share: n.cfg.Share, Speed: n.speed, Read: n.speeds.Read, SyncTwo: n.speeds.Syncs.Two, SyncFour: n.speeds.Syncs.Four, Products: n.speeds.Products[:], Threads: uint32(n.speeds.Threads.Most), FewestThreads: uint32(n.speeds.Threads.Fewest), Epoch: s.Epoch}, nil)
		}})
	})
	rpc.Handle(n.mux, uint32(proto.Kind_KIND_LOAD), func(c *rpc.Ctx, m *proto.LoadRequest) {
		c.Actor.Send(n.pid, &socket.Load{Request: m, Reply: func(r *proto.LoadReply, err error) { respond(c, r, err) }})
	})
	rpc.Handle(n.mux, uint32(proto.Kind_KIND_JOIN), func(c *rpc.Ctx, m *proto.JoinRequest) {
		c.Actor.Send(n.pid, &socket.Join{Request: m, Reply: func(r *proto.JoinReply, err error) { respond(c, r, err) }})
	})
	rpc.Handle(n.mux, uint32(proto.Kind_KIND_STEP), func(c *rpc.Ctx, m *proto.StepRequest) {
		c.Actor.Send(n.pid, &socket.Step{Request: m, Reply: func(r *proto.StepReply, err error) { respond(c, r, err) }})
	})
	rpc.Handle(n.mux, uint32(proto.Kind_KIND_RETIRE), func(c *rpc.Ctx, m *proto.RetireRequest) {
		c.Actor.Send(n.pid, &socket.Retire{Request: m, Reply: func(err error) {
			respond(c, &proto.Empty{}, err)
			if err == nil && n.leaving.Load() {
				select {
				case n.retired <- struct{}{}:
				default:
				}
			}
		}})
	})
	rpc.Handle(n.mux, uint32(proto.Kind_KIND_RELEASE), func(c *rpc.Ctx, m *proto.ReleaseRequest) {
		c.Actor.Send(n.pid, &socket.Release{Request: m, Reply: func(r *proto.ReleaseReply, err error) { respond(c, r, err) }})
	})
	rpc.Handle(n.mux, uint32(proto.Kind_KIND_PREFIX), func(c *rpc.Ctx, m *proto.PrefixRequest) {
		c.Actor.Send(n.pid, &socket.Prefix{Request: m, Reply: func(r *proto.PrefixReply, err error) { respond(c, r, err) }})
	})
	rpc.Handle(n.mux, uint32(proto.Kind_KIND_STATUS), func(c *rpc.Ctx, _ *proto.Empty) {
		n.noteContact()
		c.Actor.Send(n.pid, &socket.Status{Reply: func(s *proto.SocketStatus) {
			if n.cache != nil {
				s.FetchedBytes = n.cache.Fetched()
			}
			respond(c, processFigures(s, n.bus), nil)
		}})
	})
}
