package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"

	"github.com/shoal-llm/shoal/actors/socket"
	"github.com/shoal-llm/shoal/internal/bus"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/gossip"
	"github.com/shoal-llm/shoal/internal/hostname"
	"github.com/shoal-llm/shoal/internal/machine"
	"github.com/shoal-llm/shoal/internal/node"
	"github.com/shoal-llm/shoal/internal/options"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/internal/rpc"
	"github.com/shoal-llm/shoal/internal/security"
	"github.com/shoal-llm/shoal/internal/store"
	"github.com/shoal-llm/shoal/internal/sys/garbage"
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
	// Others are the further models of the cluster. A node without Model fetches all of them.
	Others []NodeModel
	// OnThreads, if set, is called with the number of compute threads before they start, and before each step
	// with the number of Go processors that it needs.
	OnThreads func(threads int)
	// Shared, if set, is memory that the nodes of this machine share. Close it after RunNode.
	Shared *sharedmem.Region
	// Speeds are measurements with that number of threads. Zero: the node measures.
	Speeds topology.Speeds
	// Serves describes the models of the cluster, for the division of a graphics card's memory. Zero: the model
	// with its own type of weights, and bf16 caches.
	Serves CardServes
	// CPUCaches, if not 0, lets the CPU compute where a card does not serve the model (--device auto), with
	// caches of CPUCaches bytes.
	CPUCaches int64
	// Share is this node's part of the work relative to other nodes, at most twice the measured
	// speed. 0: the measured speed. ServeConfig.Shares of the coordinator has precedence.
	Share float64 `range:"0.."`
	// Role is the part of requests that this node computes. Empty: topology.RoleBoth.
	Role topology.Role `oneof:"prefill,decode,both"`
	// Key authenticates all processes to each other and encrypts traffic between machines.
	Key security.Key
	// Abrupt: leave without waiting until other nodes have the work, for a node that ends together
	// with its cluster.
	Abrupt bool
	// OnProgress, if set, is called with the load progress in bytes of this node's weights. It is
	// called often and from any goroutine.
	OnProgress func(done, total int64)
	Logger     *slog.Logger

	cardStep int // tokens of a step that the card has memory for and computes in a short time
}

// NodeModel is a further model of a node.
type NodeModel struct{ Model, SwiftKV, Draft string }

func (c *NodeConfig) ensureDefaults() {
	if c.ID == "" {
		host, _ := os.Hostname()
		c.ID = fmt.Sprintf("%s-%d", token(host), os.Getpid())
	}
	orDefault(&c.Bind, "127.0.0.1:0")
	orDefault(&c.Cluster, defaultCluster)
	options.SetDefaults(&c.Resources)
	if c.onCard() == noCard {
		orDefault(&c.KVMemory, 1<<30)
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
}

// Validate checks a config as RunNode would.
func (c *NodeConfig) Validate() error {
	if len(c.Join) == 0 {
		return fmt.Errorf("cluster: a node needs the address of its coordinator: %s HOST:PORT", options.Name("join"))
	}
	if err := errors.Join(options.Check(&c.Resources), options.Check(c), c.Resources.checkDevice()); err != nil {
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
		host, _, err := security.HostPort(at)
		if err == nil {
			err = hostname.CheckPeer(host)
		}
		if err != nil {
			return fmt.Errorf("cluster: %s: %w", options.Name("join"), err)
		}
	}
	return checkBind(p.Bind, key, p.Insecure)
}

// defaultCluster is the default name of a cluster.
const defaultCluster = "shoal"

// checkBind rejects addresses that would expose the process, and addresses that other processes cannot
// dial.
func checkBind(addr string, key security.Key, insecure bool) error {
	if err := security.CheckBind(addr, !key.IsZero()); err != nil {
		return err
	}
	host, _, err := net.SplitHostPort(addr)
	if err == nil {
		err = hostname.Check(host)
	}
	if err != nil {
		return fmt.Errorf("cluster: %s %s: want one IP address or the name of this machine, by which the other processes can reach it, such "+
			"as 10.0.0.2:7070: %w", options.Name("bind"), addr, err)
	}
	if key.IsZero() && !insecure {
		return fmt.Errorf("%w: every user of this machine could join the cluster, and read its prompts. Give the token that "+
			"`shoal up --cluster` or `shoal token create` printed on the first machine (%s TOKEN); or make a key with "+
			"`shoal keygen -o key` and give it to every process: %s key, or %s. Without one, only with %s",
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

// GarbageBytes bounds the garbage in the Go heap of a node. Activations of large models are hundreds of MiB of live
// heap, so a target relative to them would let the garbage grow to gigabytes.
const GarbageBytes = 128 << 20

// RunNode runs a node until ctx ends, and then leaves the cluster.
func RunNode(ctx context.Context, cfg NodeConfig) error {
	cfg.ensureDefaults()
	if err := cfg.Validate(); err != nil {
		return err
	}
	models, err := openNodeModels(&cfg)
	defer func() { closeNodeModels(models) }()
	if err != nil {
		return err
	}
	// Weights and caches are outside the Go heap. The rest has few pointers, so a collection is cheap.
	defer garbage.Limit(GarbageBytes)()
	incarnation := rpc.NewIncarnation()
	meta := gossip.Meta{Incarnation: incarnation, Build: Build(), State: gossip.Joining}
	place, err := cfg.locate(ctx, cfg.Logger)
	if err != nil {
		return err
	}
	k, err := openStore(ctx, &cfg, place)
	if err != nil {
		return err
	}
	if k != nil {
		defer k.Close()
		meta.Store = k.Addr()
	}
	b, err := bus.Open(bus.Config{Role: security.RoleNode, Cluster: cfg.Cluster, ID: cfg.ID, Place: place, Ports: cfg.Ports, NATS: cfg.NATS,
		Key: cfg.Key, Meta: meta, OnEvent: func(gossip.Event) {}, Logger: cfg.Logger})
	if err != nil {
		return err
	}
	defer b.Close()
	if k != nil {
		if err := k.Offer(b.RPC); err != nil {
			return err
		}
	}
	if cfg.Model != "" {
		var all []*checkpoint.Checkpoint
		for _, m := range models {
			all = append(all, m.checkpoint)
		}
		wait, err := weights.Serve(ctx, b.RPC, all)
		if err != nil {
			return err
		}
		defer wait()
	} else {
		if err := b.JoinNode(ctx, cfg.Join); err != nil {
			return err
		}
		if models, err = fetchNodeModels(ctx, &cfg, b); err != nil {
			return err
		}
	}
	device, err := openCard(&cfg, models)
	if err != nil {
		return err
	}
	for _, m := range models {
		if m.draft, err = node.OpenDraft(m.draftWord, m.checkpoint, &cfg.KVMemory); err != nil {
			return err
		}
	}
	speeds := cfg.Speeds
	if !speeds.Valid() { // assumes that it is the only node on its machine and one of two in the cluster
		speeds = machine.MeasureSpeeds(ctx,
			machine.SpeedsConfig{Dir: cfg.WeightsCache, Nodes: 1, Threads: cfg.Threads, Sockets: 2, Model: &models[0].checkpoint.Config,
				Weights: models[0].checkpoint.Config.DType, NATS: cfg.NATS, Build: Build(), Logger: cfg.Logger}, b.NATS)
	}
	cfg.Threads = speeds.Threads.Max
	if cfg.OnThreads != nil {
		cfg.OnThreads(cfg.Threads)
	}
	pool, speed := tensor.NewPool(cfg.Threads), 0.0
	defer pool.Close()
	if cfg.Share == 0 || !cfg.Abrupt { // otherwise the parent process has set its share
		speed = machine.ShareOf(speeds.Read)
	}
	adapterFiles, err := openAdapterFiles(&cfg)
	if err != nil {
		return err
	}
	defer adapterFiles.Close()
	nc := node.Config{Bus: b, Description: &proto.NodeDescription{Id: cfg.ID, Incarnation: incarnation, Pid: uint32(os.Getpid()),
		Role: string(cfg.Role), KvBudgetBytes: cfg.KVMemory, Share: cfg.Share, Speed: speed, Read: speeds.Read, SyncTwo: speeds.Syncs.Two,
		SyncFour: speeds.Syncs.Four, Products: speeds.Products[:], Threads: uint32(speeds.Threads.Max),
		FewestThreads: uint32(speeds.Threads.Min)}}
	progress := progressOf(cfg.OnProgress, len(models))
	for i, m := range models {
		sc := socket.Config{Checkpoint: m.checkpoint, Grammars: node.Grammars(m.checkpoint), Pool: pool, Threads: speeds.Threads,
			OnThreads: cfg.OnThreads, KVBudget: cfg.KVMemory, Shared: cfg.Shared, Draft: m.draft, Logger: cfg.Logger, Connect: b.NATS.Join,
			OnProgress: progress.part(i), Stopped: make(chan struct{}),
			Adapters: adapterFiles, AdapterBudget: cfg.LoRAMemory}
		if err := m.openDisks(&cfg, &sc, i, len(models)); err != nil {
			return err
		}
		if device != nil {
			sc.Device, sc.ParsePolicy, sc.AdapterBudget, sc.Shared = device, cardPolicy, 0, nil
		}
		hash := m.checkpoint.Hash()
		if i == 0 {
			nc.Description.ModelHash = hash
		} else {
			nc.Description.OtherHashes = append(nc.Description.OtherHashes, hash)
		}
		h := node.Model{Socket: sc}
		if m.cache != nil {
			h.Fetched = m.cache.Fetched
		}
		nc.Models = append(nc.Models, h)
	}
	if device != nil {
		c := device.Card()
		nc.Description.Device, nc.Description.DeviceMemoryBytes, nc.Models[0].DeviceUsed = c.ID()+" "+c.Name, c.Memory, c.Used
		nc.Description.DeviceStepTokens = uint32(cfg.cardStep)
		nc.Description.FewestThreads = nc.Description.Threads // there is nothing to try
	}
	n, err := node.Start(nc)
	if err != nil {
		return err
	}
	defer n.Stop()
	if cfg.Model != "" {
		if err := b.JoinNode(ctx, cfg.Join); err != nil {
			return err
		}
	}
	if err := b.SetState(gossip.Ready); err != nil {
		return err
	}
	cfg.Logger.Info("node joined", "id", cfg.ID, "share", cfg.Share, "threads", speeds.Threads.Max, "read_bytes_per_second",
		int64(speeds.Read), "gossip", b.JoinAddress(), "control", b.RPC.Address(), "routes", b.NATS.RouteAddr(),
		"tensors", b.NATS.Addr(), "tls", !cfg.Key.IsZero())
	if err := b.StayJoined(ctx, cfg.Join, &n.Contact); err != nil {
		return err
	}
	cfg.Logger.Info("node leaves", "id", cfg.ID, "reason", context.Cause(ctx))
	n.Leave(!cfg.Abrupt)
	return nil
}

// logRechecks logs changes of files while they are served.
func logRechecks(ck *checkpoint.Checkpoint, log *slog.Logger) {
	ck.OnRecheck = func(file string, err error) {
		if err != nil {
			log.Error("model file changed", "file", file, "error", err)
			return
		}
		log.Info("model file was rewritten or removed, its content is unchanged", "file", file)
	}
}

// locate finds the address on which this process listens.
func (p *Process) locate(ctx context.Context, log *slog.Logger) (hostname.Place, error) {
	place, err := hostname.Locate(ctx, p.Bind, log)
	if err != nil {
		return place, fmt.Errorf("cluster: %s %s: %w", options.Name("bind"), p.Bind, err)
	}
	return place, nil
}

// openStore opens the data directory of a node, if it has one.
func openStore(ctx context.Context, cfg *NodeConfig, place hostname.Place) (*store.Store, error) {
	if cfg.DataDir == "" {
		return nil, nil
	}
	return store.Open(ctx, cfg.DataDir, cfg.ID, cfg.Ports.StoreAt(place), cfg.Key, security.RoleNode, cfg.Logger)
}
