// Package cluster wires all parts together. It is the only package that imports all of them.
//
//	api -> core -> batcher -> stepper -> sockets (here or in node processes)
//	                 ^                      |
//	                 '---- director <-------' placement, epochs, members
package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoal-llm/shoal/actors/batcher"
	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/internal/adapters"
	"github.com/shoal-llm/shoal/internal/coordinator"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/speculate"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/events"
	"github.com/shoal-llm/shoal/internal/options"
	"github.com/shoal-llm/shoal/internal/proto"
)

// core serves one model: the part of the coordinator that is independent of where the sockets run.
type core struct {
	*site
	number     int  // of the model
	prefill    bool // it serves the model's prefill group
	prefiller  *prefiller
	checkpoint *checkpoint.Checkpoint
	serve      ServeConfig
	batcher    *batcher.Batcher
	stepper    *coordinator.Stepper
	policy     *kvcache.Policy
	adapters   *adapters.Registry
	geometry   kvcache.Geometry
	most       atomic.Int64 // cache bytes of the largest placement that served
	placedOnce atomic.Bool  // the batcher knows a placement, so it can refuse what no node has memory for
	chunk      atomic.Int64 // maximum prompt tokens of one sequence per step in the newest placement

	mu     sync.Mutex
	status map[string]*proto.SocketStatus // by node, from the last poll
}

// statusEvery is the interval at which nodes report their figures. loadingEvery is the interval
// while no placement serves, for progress bars.
const (
	statusEvery  = events.SampleEvery
	loadingEvery = statusEvery / 5
)

// newCore builds the core of a model from a valid config. dataDir stores the state that must survive
// the process; "": no state does.
func newCore(all *site, number int, sm served, dataDir string) (*core, error) {
	ck, s := sm.checkpoint, sm.ServeConfig
	policy, err := kvpolicy.Parse(s.Policy)
	if err != nil {
		return nil, err
	}
	kv, err := tensor.ParseDType(s.KV)
	if err != nil {
		return nil, err
	}
	c := &core{site: all, number: number, checkpoint: ck, serve: s, policy: policy, status: map[string]*proto.SocketStatus{},
		prefiller: &prefiller{cancels: map[uint64]context.CancelFunc{}}}
	if err := c.openAdapters(dataDir); err != nil {
		return nil, err
	}
	c.geometry = shard.GeometryOf(&ck.Config, kv)
	if err := c.geometry.Fits(policy); err != nil {
		return nil, err
	}
	return c, c.start()
}

// start starts the stepper and the batcher of a core.
func (c *core) start() (err error) {
	m, s := &c.checkpoint.Config, &c.serve
	c.stepper = coordinator.NewStepper(c.director, c.group, s.StepDeadline, s.Logger, s.Tracer)
	cfg := batcher.Config{
		Geometry:     c.geometry,
		ContextLimit: s.MaxContext, EOS: m.EOS, Whole: m.NonCausal, Headless: m.Headless, TokenBudget: s.StepTokens, Chunk: s.Chunk,
		MaxRunning: s.MaxSequences, MaxWaiting: s.Queue, Replicas: s.Replicas,
		NoPrefixCache: s.PrefixCache == PrefixOff, Identity: fmt.Sprint(fingerprint(c.checkpoint, s), " ", tensor.Arithmetic),
		Speculate: speculate.Mode(s.Speculate), SpeculateRecent: s.SpeculateRecent, Guess: s.guess, DecodeSteps: s.DecodeSteps,
		MicroBatches: s.microBatches(), TrialRounds: s.trialRounds,
		Prefill: s.Prefill, PrefillHere: s.PrefillOver,
		StepMillis: (coordinator.StepStalls*s.StepDeadline + 5*time.Second).Milliseconds(),
	}
	if shard.Layered(m) {
		cfg.Hidden = m.Hidden
	}
	cfg.Defaults()
	c.batcher, err = batcher.Start(c.root, cfg, callbacks{c}, batcher.Options{Logger: s.Logger, Prefill: c.prefiller})
	return err
}

// threadTimes is options.ThreadTrials.Times.
func (c *core) threadTimes(ctx context.Context) ([][]float64, error) {
	snap, err := c.batcher.Snapshot(ctx)
	return snap.Trials, err
}

// takesAdapters reports whether requests of this model may choose a LoRA adapter.
func (c *core) takesAdapters() bool { return len(c.serve.LoRA) > 0 || c.serve.LoRADir != "" }

// settle is the quiet period after which new nodes get a share.
const settle = 2 * time.Second

// placed reports to the batcher that a placement serves.
func (c *core) placed(g *coordinator.Group) {
	p := batcher.Placed{Epoch: g.Placement.Epoch, Disk: g.Disk, StepTokens: c.director.StepTokens(g), Chunk: c.serve.Chunk,
		Prefill: !c.prefill && c.director.ServingPrefill(c.number) != nil}
	if p.Chunk == 0 {
		p.Chunk = c.director.ChooseChunk(g)
	}
	for _, n := range g.Nodes {
		p.MaxThreadShift = max(p.MaxThreadShift, n.Threads.MaxShift())
	}
	p.OnePass, p.MaxThreadShift = c.director.Adapt(g, p.MaxThreadShift)
	p.MaxMicroBatches = g.MaxMicroBatches()
	c.chunk.Store(int64(p.Chunk))
	for i, s := range g.Placement.Slices {
		if have, least := g.Nodes[i].KVBudget, kvcache.ResidentBytes(c.geometry, 1, 1, c.policy); have < least {
			c.serve.Logger.Warn("no request fits the cache memory of this node: restart it with a larger "+options.Name("kv-memory"), "node",
				s.ID, "bytes", have, "shortest_request", least)
		}
		p.Sockets = append(p.Sockets, batcher.Socket{ID: s.ID, Budget: g.Nodes[i].KVBudget,
			Heads: tensor.Span{Lo: s.KVHeads.Lo, Hi: s.KVHeads.Hi}, Scratch: g.Scratch[i], Adapters: g.Adapters[i]})
	}
	for rank, held := range g.Held {
		for _, h := range held {
			p.Held = append(p.Held, batcher.Held{Seq: h.Seq, Rank: rank, Prompt: int(h.Prompt), Tokens: int(h.Tokens), Staged: int(h.Staged),
				Replica: h.Replica, Spilled: int(h.Spilled)})
		}
	}
	c.batcher.Place(p)
	c.most.Store(max(c.most.Load(), g.Budget()))
	c.placedOnce.Store(true)
}

// requestDisks sends a request to all nodes of a group concurrently. It returns the number of leading
// blocks that all of them have.
func (c *core) requestDisks(ctx context.Context, g *coordinator.Group, r *proto.PrefixRequest) int {
	answers := make([]int, len(g.Handles))
	var wg sync.WaitGroup
	for i, h := range g.Handles {
		wg.Go(func() {
			reply, err := h.Prefix(ctx, r)
			switch {
			case err != nil && r.Seq != 0:
				c.serve.Logger.Debug("an answer was not stored for the next turn", "node", g.Nodes[i].ID, "error", err)
				return
			case err != nil:
				c.serve.Logger.Warn("the disk of the prefix cache did not answer; its blocks are computed again", "node", g.Nodes[i].ID, "error", err)
				return
			}
			answers[i] = int(reply.Blocks)
		})
	}
	wg.Wait()
	return slices.Min(answers)
}

// ResetPrefixCache empties the prefix cache, including the disks.
func (c *core) ResetPrefixCache(ctx context.Context) {
	c.batcher.ResetPrefixCache()
	ctx, cancel := context.WithTimeout(ctx, coordinator.CallTimeout)
	defer cancel()
	if g := c.group(); g != nil && g.Disk {
		c.requestDisks(ctx, g, &proto.PrefixRequest{Forget: true})
	}
}

// noteUsed records the newest cache size of a node.
func (c *core) noteUsed(id string, bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.status[id]; s != nil {
		s.KvUsedBytes = bytes
	} else if id != "" {
		c.status[id] = &proto.SocketStatus{KvUsedBytes: bytes}
	}
}

func (c *core) noteStatus(id string, s *proto.SocketStatus) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.status[id] = s; s == nil {
		delete(c.status, id)
	}
}

// forgetStatus drops the figures of nodes that are gone.
func (c *core) forgetStatus(hosts map[string]coordinator.Host) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.status, func(id string, _ *proto.SocketStatus) bool { _, here := hosts[id]; return !here })
}

// nodeOf returns the node of a rank, or "" if its epoch no longer serves.
func (c *core) nodeOf(epoch uint32, rank int) string {
	if g := c.group(); g != nil && g.Placement.Epoch == epoch && rank < len(g.Nodes) {
		return g.Nodes[rank].ID
	}
	return ""
}

// Checkpoint returns the served model.
func (c *core) Checkpoint() *checkpoint.Checkpoint { return c.checkpoint }

// ServeConfig returns the serving configuration with defaults filled in.
func (c *core) ServeConfig() ServeConfig { return c.serve }

// Logger returns the logger of the cluster.
func (c *core) Logger() *slog.Logger { return c.serve.Logger }
