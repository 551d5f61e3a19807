package cluster

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/shoal-llm/shoal/actors/layer/accelerator"
	"github.com/shoal-llm/shoal/actors/socket"
	"github.com/shoal-llm/shoal/actors/socket/draft"
	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/internal/coordinator"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/tier"
	"github.com/shoal-llm/shoal/internal/engine/lora"
	"github.com/shoal-llm/shoal/internal/engine/speculate"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/node"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/internal/text/grammar"
	"github.com/shoal-llm/shoal/topology"
)

// LocalConfig configures a whole cluster in this process, for embedding and for one machine. It
// uses the same batcher, sockets and arithmetic, without a network.
type LocalConfig struct {
	Serve ServeConfig
	// Others are further models that the cluster serves side by side. Requests name their model.
	Others []ServeConfig
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
	// Draft is the folder of a small model with the same tokenizer, or "mtp" for the model's own multi-token
	// prediction layer.
	Draft string
	// Threads is the number of compute threads. Default: the CPUs of the machine.
	Threads int
	// Device is the device that computes: "cpu", or a graphics card "cuda:N", which needs a single socket and one
	// model. With a card, KVBudget is memory of the card, and an error of its driver ends the process. Default "cpu".
	Device string
	fewest int                                        // for tests: fewest threads of a step; 0: always all
	wrap   func(id string, h node.Handle) node.Handle // for tests: wraps the handle of each socket
	wire   func(id string) uint32                     // for tests: wire version of a socket
	roles  []topology.Role                            // for tests: of each socket; nil: all do everything
	lend   func(*proto.RowsReply) error               // for tests: changes rows of a cache that another socket takes
}

// Local is an embedded cluster. It implements engine.Engine.
type Local struct {
	engines
	system  *actor.ActorSystem
	sockets []localSocket
	pool    *tensor.Pool
	draft   *draft.Config
	device  *accelerator.Device // nil: the CPU
	closing sync.Once
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
	if err := cfg.checkSizes(); err != nil {
		return nil, err
	}
	if cfg.Draft != "" && cfg.Serve.Speculate == "" {
		cfg.Serve.Speculate = string(speculate.Model)
	}
	if cfg.Serve.Shares = maps.Clone(cfg.Serve.Shares); cfg.Serve.Shares == nil { // not the map of the caller
		cfg.Serve.Shares = map[string]float64{}
	}
	for i, x := range cfg.Shares {
		cfg.Serve.Shares[fmt.Sprintf("socket-%d", i)] = x
	}
	models, err := openModels(append([]ServeConfig{cfg.Serve}, cfg.Others...))
	if err != nil {
		return nil, err
	}
	for _, m := range models {
		logRechecks(m.checkpoint, m.Logger)
	}
	first := models[0].checkpoint
	draft, err := node.OpenDraft(cfg.Draft, first, &cfg.KVBudget)
	if err != nil {
		closeModels(models)
		return nil, err
	}
	log := models[0].Logger
	c := &Local{pool: tensor.NewPool(cfg.Threads), draft: draft,
		system: actor.NewActorSystem(actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger { return log }))}
	defer func() {
		if err != nil {
			if c.Close(); c.core == nil {
				node.CloseDraft(draft, first)
				closeModels(models)
			}
		}
	}()
	if c.core, err = newSite(c.system.Root, models, cfg.Sockets, "local", coordinator.PlacementLog{}, ""); err != nil {
		return nil, err
	}
	var cardStep int
	if c.device, cardStep, err = cfg.openCard(models); err != nil {
		return nil, err
	}
	threads := topology.Threads{Max: cfg.Threads, Min: cmp.Or(cfg.fewest, cfg.Threads)}
	hubs, grammars := make([]*memoryHub, len(models)), make([]func() (*grammar.Engine, error), len(models))
	for i, m := range models {
		hubs[i], grammars[i] = &memoryHub{size: cfg.Sockets}, node.Grammars(m.checkpoint)
	}
	for i := range cfg.Sockets {
		n := topology.Node{ID: fmt.Sprintf("socket-%d", i), Incarnation: 1, Threads: threads, KVBudget: cfg.KVBudget, ModelHash: first.Hash()}
		host := coordinator.Host{Incarnation: n.Incarnation, Address: "local"}
		for number, m := range models {
			sc := socket.Config{Checkpoint: m.checkpoint, Grammars: grammars[number], Pool: c.pool, Threads: threads, KVBudget: cfg.KVBudget,
				AdapterBudget: cfg.LoRAMemory, Logger: log, Connect: hubs[number].connect, Stopped: make(chan struct{})}
			if number == 0 {
				sc.Draft = draft
			} else {
				n.OtherHashes = append(n.OtherHashes, m.checkpoint.Hash())
			}
			if err = cfg.openDisks(&sc, number, len(models)); err != nil {
				return nil, err
			}
			sc.Rows = c.rows(cfg.lend)
			if c.device != nil {
				sc.Device, sc.ParsePolicy, sc.AdapterBudget = c.device, cardPolicy, 0
				n.Device, n.DeviceStep = c.device.Card().ID()+" "+c.device.Card().Name, cardStep
			}
			pid := c.system.Root.Spawn(actor.PropsFromProducer(func() actor.Actor { return &socket.Actor{Config: sc} }))
			name := fmt.Sprintf("socket-%d", len(c.sockets)+1)
			c.sockets = append(c.sockets, localSocket{pid, sc.Stopped, sc.PrefixDisk, sc.Scratch, sc.Adapters})
			host.Handles = append(host.Handles, cfg.handle(n.ID, node.Local{Root: c.system.Root, PID: pid}))
			host.Sockets = append(host.Sockets, name)
		}
		if cfg.wire != nil {
			n.Wire = cfg.wire(n.ID)
		}
		if cfg.roles != nil {
			n.Role = cfg.roles[i]
		}
		c.director.Up(n, host)
	}
	for c.Ready() != nil {
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("cluster: the embedded cluster did not start: %w (%w)", context.Cause(ctx), c.Ready())
		case <-time.After(time.Millisecond):
		}
	}
	return c, nil
}

// checkSizes checks the numbers of a config with defaults filled in.
func (c *LocalConfig) checkSizes() error {
	switch {
	case c.Sockets < 1 || c.Sockets > 256:
		return fmt.Errorf("cluster: LocalConfig.Sockets is %d: want 1 to 256", c.Sockets)
	case c.KVBudget < 0:
		return fmt.Errorf("cluster: LocalConfig.KVBudget is %d bytes: want a positive number, or 0 for 1 GiB", c.KVBudget)
	case c.Threads < 1:
		return fmt.Errorf("cluster: LocalConfig.Threads is %d: want a positive number, or 0 for all CPUs", c.Threads)
	case c.Shares != nil && len(c.Shares) != c.Sockets:
		return fmt.Errorf("cluster: LocalConfig.Shares has %d elements for %d sockets: want one for each socket", len(c.Shares), c.Sockets)
	}
	return nil
}

// openCard opens the card that the cluster computes on, and returns the tokens of its steps; nil: the CPU computes.
func (c *LocalConfig) openCard(models []served) (d *accelerator.Device, step int, err error) {
	nc := NodeConfig{Resources: Resources{Device: c.Device, KVMemory: c.KVBudget}, Logger: models[0].Logger,
		Serves: CardServesOf(&models[0].ServeConfig)}
	if err := nc.checkDevice(); err != nil {
		return nil, 0, err
	}
	if nc.onCard() != noCard && c.Sockets > 1 {
		return nil, 0, fmt.Errorf("cluster: LocalConfig.Sockets is %d with Device %s: want 1, because an embedded cluster "+
			"has one socket on a card", c.Sockets, c.Device)
	}
	var all []*nodeModel
	for _, m := range models {
		all = append(all, &nodeModel{checkpoint: m.checkpoint, draftWord: c.Draft})
	}
	d, err = openCard(&nc, all)
	return d, nc.cardStep, err
}

// openDisks opens the folders of a socket. Further models have folders below those of the first, and
// equal parts of the sizes.
func (c *LocalConfig) openDisks(sc *socket.Config, number, models int) (err error) {
	at := func(dir string) string {
		if number > 0 {
			dir = filepath.Join(dir, fmt.Sprint("model-", number))
		}
		return dir
	}
	if c.PrefixDisk != "" {
		if sc.PrefixDisk, err = tier.Open(at(c.PrefixDisk), c.PrefixDiskSize/int64(models), sc.Logger); err != nil {
			return err
		}
	}
	if sc.Scratch = c.scratch; c.KVDisk != "" {
		if sc.Scratch, err = tier.OpenScratch(at(c.KVDisk), c.KVDiskSize/int64(models), sc.Logger); err != nil {
			return err
		}
	}
	sc.Adapters, err = lora.OpenStore("", 0)
	return err
}

// handle returns the handle of a socket, with the wrapper of a test if there is one.
func (c *LocalConfig) handle(id string, h node.Handle) node.Handle {
	if c.wrap != nil {
		return c.wrap(id, h)
	}
	return h
}

// Close stops the cluster. Running requests finish with an error. It may be called more than once.
func (c *Local) Close() { c.closing.Do(c.close) }

func (c *Local) close() {
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
	if c.device != nil {
		c.device.Close()
		_ = c.device.Card().Close()
	}
	c.pool.Close()
	c.system.Shutdown()
	if c.core != nil {
		node.CloseDraft(c.draft, c.checkpoint)
		c.closeCheckpoints()
	}
}

// rows returns the function by which a socket requests rows of a cache from another socket of this
// process.
func (c *Local) rows(change func(*proto.RowsReply) error) socket.Rows {
	return func(ctx context.Context, _, name string, r *proto.RowsRequest) (*proto.RowsReply, error) {
		var n int
		if _, err := fmt.Sscanf(name, "socket-%d", &n); err != nil || n < 1 || n > len(c.sockets) {
			return nil, fmt.Errorf("cluster: rows of a cache from socket %q: this process has socket-1 to socket-%d", name, len(c.sockets))
		}
		reply, err := node.Local{Root: c.system.Root, PID: c.sockets[n-1].pid}.Lend(ctx, r)
		if err == nil && change != nil {
			err = change(reply)
		}
		return reply, err
	}
}

// memoryHub provides the in-process transports of each epoch.
type memoryHub struct {
	size   int
	mu     sync.Mutex
	epoch  uint32
	active map[string][]collective.Transport // by group
}

func (h *memoryHub) connect(_ context.Context, group string, epoch uint32, rank int, _ []uint32) (collective.Transport, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case epoch < h.epoch:
		return nil, fmt.Errorf("cluster: rank %d connects in epoch %d, but epoch %d has begun", rank, epoch, h.epoch)
	case rank >= h.size:
		return nil, fmt.Errorf("cluster: rank %d connects in epoch %d, which has %d ranks", rank, epoch, h.size)
	}
	if epoch > h.epoch {
		h.epoch, h.active = epoch, map[string][]collective.Transport{}
	}
	if h.active[group] == nil {
		h.active[group] = collective.NewMemory(h.size)
	}
	return h.active[group][rank], nil
}
