package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/shoal-llm/shoal/actors/socket"
	"github.com/shoal-llm/shoal/actors/socket/draft"
	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/internal/coordinator"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/tier"
	"github.com/shoal-llm/shoal/internal/engine/lora"
	"github.com/shoal-llm/shoal/internal/engine/speculate"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/node"
	"github.com/shoal-llm/shoal/topology"
)

// LocalConfig configures a whole cluster in this process, for embedding and for one machine. It
// uses the same batcher, sockets and arithmetic, without a network.
type LocalConfig struct {
	Serve ServeConfig
	// Sockets is the number of sockets that share the model. More than one is for tests. Default 1.
	Sockets int
	// Shares has the share of each socket; nil: equal.
	Shares []float64
	// KVBudget is the cache memory of each socket in bytes. Default 1 GiB.
	KVBudget int64
	// LoRAMemory is the memory for LoRA adapters of each socket in bytes. Default 1 GiB.
	LoRAMemory int64
	// PrefixDisk is the folder for prefix cache blocks, with at most PrefixDiskSize bytes per
	// socket. Empty: none are stored.
	PrefixDisk     string
	PrefixDiskSize int64
	// KVDisk is a folder for rows of long sequences that do not fit in memory, with at most
	// KVDiskSize bytes per socket. Empty: they stay in memory.
	KVDisk     string
	KVDiskSize int64
	scratch    *tier.Scratch // for tests: replaces the files of all sockets
	// Draft is a folder with a small model with the same tokenizer, or "mtp" for its own multi-token prediction layer.
	Draft string
	// Threads is the number of compute threads. Default: the CPUs of the machine.
	Threads int
	fewest  int                                        // for tests: fewest threads of a step; 0: always all
	wrap    func(id string, h node.Handle) node.Handle // for tests: wraps the handle of each socket
	wire    func(id string) uint32                     // for tests: wire version of a socket
}

// Local is an embedded cluster. It implements engine.Engine.
type Local struct {
	*core
	system  *actor.ActorSystem
	sockets []localSocket
	pool    *tensor.Pool
	draft   *draft.Config
}

type localSocket struct {
	pid      *actor.PID
	stopped  chan struct{}
	disk     *tier.Store
	scratch  *tier.Scratch
	adapters *lora.Store
}

// New starts an embedded cluster and waits until it serves or ctx ends.
//
//	c, err := cluster.New(ctx, cluster.LocalConfig{Serve: cluster.ServeConfig{Model: dir}})
//	defer c.Close()
//	events, err := c.Submit(ctx, cluster.NewRequest(...))
func New(ctx context.Context, cfg LocalConfig) (_ *Local, err error) {
	orDefault(&cfg.Sockets, 1)
	orDefault(&cfg.KVBudget, 1<<30)
	orDefault(&cfg.LoRAMemory, 1<<30)
	orDefault(&cfg.Threads, runtime.GOMAXPROCS(0))
	if cfg.Sockets < 1 || cfg.Sockets > 256 || cfg.KVBudget < 0 || cfg.Threads < 1 {
		return nil, fmt.Errorf("cluster: %d sockets, %d bytes of cache, %d threads: want 1 to 256 sockets and nothing negative", cfg.Sockets, cfg.KVBudget, cfg.Threads)
	}
	if cfg.Shares != nil && len(cfg.Shares) != cfg.Sockets {
		return nil, fmt.Errorf("cluster: %d shares for %d sockets: give one share per socket", len(cfg.Shares), cfg.Sockets)
	}
	ck, err := checkpoint.OpenSwiftKV(cfg.Serve.Model, cfg.Serve.SwiftKV)
	if err != nil {
		return nil, err
	}
	logRechecks(ck, cmp.Or(cfg.Serve.Logger, slog.Default()))
	draft, err := node.OpenDraft(cfg.Draft, ck, &cfg.KVBudget)
	if err != nil {
		return nil, errors.Join(err, ck.Close())
	}
	if draft != nil && cfg.Serve.Speculate == "" {
		cfg.Serve.Speculate = string(speculate.Model)
	}
	cfg.Serve.ensureDefaults(&ck.Config)
	if err := cfg.Serve.Validate(&ck.Config); err != nil {
		node.CloseDraft(draft, ck)
		ck.Close()
		return nil, err
	}
	log := cfg.Serve.Logger
	c := &Local{pool: tensor.NewPool(cfg.Threads), draft: draft,
		system: actor.NewActorSystem(actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger { return log }))}
	defer func() {
		if err != nil {
			c.Close()
			node.CloseDraft(draft, ck)
			ck.Close()
		}
	}()
	for i, s := range cfg.Shares {
		if cfg.Serve.Shares == nil {
			cfg.Serve.Shares = map[string]float64{}
		}
		cfg.Serve.Shares[fmt.Sprintf("socket-%d", i)] = s
	}
	if c.core, err = newCore(c.system.Root, ck, cfg.Serve, cfg.Sockets, "local", coordinator.PlacementLog{}, ""); err != nil {
		return nil, err
	}
	hub := &memoryHub{size: cfg.Sockets}
	threads := topology.Threads{Most: cfg.Threads, Fewest: cmp.Or(cfg.fewest, cfg.Threads)}
	engine := node.Grammars(ck)
	for i := range cfg.Sockets {
		sc := socket.Config{Checkpoint: ck, Grammars: engine, Pool: c.pool, Threads: threads, KVBudget: cfg.KVBudget, Logger: log, Draft: draft, Connect: hub.connect, Stopped: make(chan struct{})}
		if cfg.PrefixDisk != "" {
			if sc.PrefixDisk, err = tier.Open(cfg.PrefixDisk, cfg.PrefixDiskSize, log); err != nil {
				return nil, err
			}
		}
		if sc.Scratch = cfg.scratch; cfg.KVDisk != "" {
			if sc.Scratch, err = tier.OpenScratch(cfg.KVDisk, cfg.KVDiskSize, log); err != nil {
				return nil, err
			}
		}
		if sc.Adapters, err = lora.OpenStore("", 0); err != nil {
			return nil, err
		}
		sc.AdapterBudget = cfg.LoRAMemory
		pid := c.system.Root.Spawn(actor.PropsFromProducer(func() actor.Actor { return &socket.Actor{Config: sc} }))
		c.sockets = append(c.sockets, localSocket{pid, sc.Stopped, sc.PrefixDisk, sc.Scratch, sc.Adapters})
		n := topology.Node{ID: fmt.Sprintf("socket-%d", i), Incarnation: 1, Threads: threads, KVBudget: cfg.KVBudget, ModelHash: ck.Hash()}
		if cfg.wire != nil {
			n.Wire = cfg.wire(n.ID)
		}
		c.director.Up(n, coordinator.Host{Incarnation: n.Incarnation, Handle: cfg.handle(n.ID, node.Local{Root: c.system.Root, PID: pid}), Address: "local"})
	}
	for c.director.Serving() == nil {
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("cluster: the embedded cluster did not start: %w (%w)", context.Cause(ctx), c.Ready())
		case <-time.After(time.Millisecond):
		}
	}
	return c, nil
}

// handle returns the handle of a socket, wrapped if a test asks for it.
func (c *LocalConfig) handle(id string, h node.Handle) node.Handle {
	if c.wrap != nil {
		return c.wrap(id, h)
	}
	return h
}

// Close stops the cluster. Running requests finish with an error.
func (c *Local) Close() {
	if c.core != nil {
		c.core.close()
	}
	for _, s := range c.sockets {
		socket.Stop(c.system.Root, s.pid, s.stopped)
		if s.disk != nil {
			_ = s.disk.Close()
		}
		if s.scratch != nil {
			s.scratch.Close()
		}
		s.adapters.Close()
	}
	c.pool.Close()
	c.system.Shutdown()
	if c.core != nil {
		node.CloseDraft(c.draft, c.checkpoint)
		c.checkpoint.Close()
	}
}

// memoryHub provides the in-process transports of each epoch.
type memoryHub struct {
	size   int
	mu     sync.Mutex
	epoch  uint32
	active []collective.Transport
}

func (h *memoryHub) connect(_ context.Context, _ string, epoch uint32, rank int, _ []uint32) (collective.Transport, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if epoch < h.epoch || rank >= h.size {
		return nil, fmt.Errorf("cluster: rank %d of epoch %d, the process is at epoch %d", rank, epoch, h.epoch)
	}
	if epoch > h.epoch {
		h.epoch, h.active = epoch, collective.NewMemory(h.size)
	}
	return h.active[rank], nil
}
