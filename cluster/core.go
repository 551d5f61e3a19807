// Package cluster wires all parts together. It is the only package that imports all of them.
//
//	api -> core -> batcher -> stepper -> sockets (here or in node processes)
//	                 ^                      |
//	                 '---- director <-------' placement, epochs, members
package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"

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
	"github.com/shoal-llm/shoal/topology"
)

// core is the part of the coordinator that is independent of where the sockets run.
type core struct {
	checkpoint *checkpoint.Checkpoint
	serve      ServeConfig
	director   *coordinator.Director
	batcher    *batcher.Batcher
	stepper    *coordinator.Stepper
	policy     *kvcache.Policy
	adapters   *adapters.Registry
	geometry   kvcache.Geometry
	recoveries atomic.Uint64 // placements withdrawn because of a fault
	most       atomic.Int64  // cache bytes of the largest placement that served
	chunk      atomic.Int64  // maximum prompt tokens of one sequence per step in the newest placement
	recovery   *coordinator.Recovery
	events     *events.Log
	trouble    func() string             // faults other than of steps; "": none
	withdrawn  atomic.Pointer[time.Time] // since when no placement serves; nil: one serves, or none ever did

	steps  sync.WaitGroup // steps and releases in flight
	ctx    context.Context
	cancel context.CancelFunc

	mu     sync.Mutex
	status map[string]*proto.SocketStatus // by node, from the last poll
}

// statusEvery is the interval at which nodes report their figures. loadingEvery is the interval
// while no placement serves, for progress bars.
const (
	statusEvery  = events.SampleEvery
	loadingEvery = statusEvery / 5
)

// newCore builds a core from a valid config. dataDir stores what must survive the process; "": nothing does.
func newCore(root *actor.RootContext, ck *checkpoint.Checkpoint, s ServeConfig, nodes int, group string, l coordinator.PlacementLog, dataDir string) (*core, error) {
	policy, err := kvpolicy.Parse(s.Policy)
	if err != nil {
		return nil, err
	}
	kv, err := tensor.ParseDType(s.KV)
	if err != nil {
		return nil, err
	}
	c := &core{checkpoint: ck, serve: s, policy: policy, recovery: coordinator.NewRecovery(), events: events.New(), status: map[string]*proto.SocketStatus{}}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	if err := c.openAdapters(dataDir); err != nil {
		return nil, err
	}
	m := &ck.Config
	shape := shard.ShapeOf(m)
	weights, err := tensor.ParseDType(s.Weights)
	if err != nil {
		return nil, err
	}
	mapping, err := topology.ParseMapping(s.Mapping)
	if err != nil { // "auto": the authority chooses
		mapping = ""
	}
	c.director = coordinator.New(coordinator.Config{
		Authority: topology.AuthorityConfig{Shape: shape, Mapping: mapping, WeightBytes: float64(weights.BytesPerRow(32)) / 32, Nodes: nodes, Settle: settle, Backoff: 200 * time.Millisecond, ModelHash: ck.Hash(), After: l.After, Leased: l.Record != nil, Shares: s.Shares, Drained: l.Drained},
		Record:    l.Record, Drained: l.Drain,
		Load:      &proto.LoadRequest{ModelHash: ck.Hash(), WeightType: s.Weights, KvType: s.KV, MaxStepTokens: uint32(s.StepTokens), Context: servedContext(m, &s), Coordinator: rand.Uint64()},
		GroupName: group, Deadline: s.SyncDeadline, LoadStall: s.LoadDeadline, Logger: s.Logger,
		OnServe: c.placed, OnWithdraw: c.unplaced, OnEvent: c.events.Note,
	})
	c.stepper = coordinator.NewStepper(c.director, s.StepDeadline, s.Logger, s.Tracer)
	c.geometry = shard.GeometryOf(m, kv)
	if err := c.geometry.Fits(policy); err != nil {
		return nil, err
	}
	cfg := batcher.Config{
		Geometry:     c.geometry,
		ContextLimit: s.MaxContext, EOS: m.EOS, Whole: m.NonCausal, Headless: m.Headless, TokenBudget: s.StepTokens, Chunk: s.Chunk, MaxRunning: s.MaxSequences, MaxWaiting: s.Queue, Replicas: s.Replicas,
		NoPrefixCache: s.PrefixCache == PrefixOff, Identity: fmt.Sprint(fingerprint(ck, &s), " ", tensor.Arithmetic),
		Speculate: speculate.Mode(s.Speculate), SpeculateRecent: s.SpeculateRecent, Guess: s.guess, DecodeSteps: s.DecodeSteps, TrialRounds: s.TrialRounds,
		StepMillis: (coordinator.StepStalls*s.StepDeadline + 5*time.Second).Milliseconds(),
	}
	cfg.Defaults()
	if c.batcher, err = batcher.Start(root, cfg, callbacks{c}, batcher.Options{Logger: s.Logger}); err != nil {
		return nil, err
	}
	c.director.Start(root)
	c.steps.Add(1)
	go c.poll()
	return c, nil
}

// settle is the quiet period after which new nodes get a share.
const settle = 2 * time.Second

// placed is called by the director when a placement serves.
func (c *core) placed(g *coordinator.Group) {
	if since := c.withdrawn.Swap(nil); since != nil {
		c.recovery.Served(*since, time.Now())
	}
	c.events.Serves(g.Placement.Epoch, len(g.Nodes))
	c.most.Store(max(c.most.Load(), g.Budget()))
	p := batcher.Placed{Epoch: g.Placement.Epoch, Disk: g.Disk, Chunk: c.serve.Chunk}
	if p.Chunk == 0 {
		p.Chunk = c.director.ChooseChunk(g, c.serve.StepTokens)
	}
	for _, n := range g.Nodes {
		p.MaxThreadShift = max(p.MaxThreadShift, n.Threads.MaxShift())
	}
	p.OnePass, p.MaxThreadShift = c.director.Adapt(g, p.MaxThreadShift)
	c.chunk.Store(int64(p.Chunk))
	for i, s := range g.Placement.Slices {
		if have, least := g.Nodes[i].KVBudget, kvcache.ResidentBytes(c.geometry, 1, 1, c.policy); have < least {
			c.serve.Logger.Warn("no request fits the cache memory of this node: restart it with a larger "+options.Name("kv-memory"), "node", s.ID, "bytes", have, "shortest_request", least)
		}
		p.Sockets = append(p.Sockets, batcher.Socket{ID: s.ID, Budget: g.Nodes[i].KVBudget, Heads: tensor.Span{Lo: s.KVHeads.Lo, Hi: s.KVHeads.Hi}, Scratch: g.Scratch[i], Adapters: g.Adapters[i]})
	}
	for rank, held := range g.Held {
		for _, h := range held {
			p.Held = append(p.Held, batcher.Held{Seq: h.Seq, Rank: rank, Prompt: int(h.Prompt), Tokens: int(h.Tokens), Staged: int(h.Staged), Replica: h.Replica, Spilled: int(h.Spilled)})
		}
	}
	c.batcher.Place(p)
}

func (c *core) unplaced(w topology.Withdraw) {
	now := time.Now()
	c.withdrawn.CompareAndSwap(nil, &now)
	c.recovery.Withdrawn(w, c.stepper.Interrupted(), now)
	c.events.Ended(w)
	if !w.Grown {
		c.recoveries.Add(1)
	}
	c.batcher.Unplace(w.Reason)
}

// askDisks asks all nodes of a group concurrently and returns how many of the first blocks all of
// them have.
func (c *core) askDisks(ctx context.Context, g *coordinator.Group, r *proto.PrefixRequest) int {
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
	if g := c.director.Serving(); g != nil && g.Disk {
		c.askDisks(ctx, g, &proto.PrefixRequest{Forget: true})
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

// nodeOf returns the node of a rank, or "" if its epoch no longer serves.
func (c *core) nodeOf(epoch uint32, rank int) string {
	if g := c.director.Serving(); g != nil && g.Placement.Epoch == epoch && rank < len(g.Nodes) {
		return g.Nodes[rank].ID
	}
	return ""
}

// poll refreshes the figures of the nodes and the samples of the recent past.
func (c *core) poll() {
	defer c.steps.Done()
	t := time.NewTicker(loadingEvery)
	defer t.Stop()
	asked, sampled := time.Now(), time.Now()
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-t.C:
		}
		if now := time.Now(); c.director.Serving() == nil || now.Sub(asked) >= statusEvery {
			asked = now
			c.askAll()
		}
		c.recordFigures(&sampled)
	}
}

// recordFigures records the cost of outages, and a sample once per statusEvery.
func (c *core) recordFigures(sampled *time.Time) {
	ctx, cancel := context.WithTimeout(c.ctx, statusEvery)
	defer cancel()
	if snap, err := c.batcher.Snapshot(ctx); err == nil {
		c.events.Cost(snap.Outage)
	}
	if now := time.Now(); now.Sub(*sampled) >= statusEvery {
		*sampled = now
		s := c.Cluster()
		c.events.Sample(&s)
	}
}

// askAll requests the figures of all nodes.
func (c *core) askAll() {
	ctx, cancel := context.WithTimeout(c.ctx, statusEvery)
	defer cancel()
	v, err := c.director.View(ctx)
	if err != nil {
		return
	}
	var wg sync.WaitGroup
	for id, h := range v.Hosts {
		if h.Handle == nil {
			continue
		}
		wg.Go(func() {
			if s, err := h.Handle.Status(ctx); err == nil {
				c.mu.Lock()
				c.status[id] = s
				c.mu.Unlock()
			}
		})
	}
	wg.Wait()
}

// close stops the core. Running requests finish with an error.
func (c *core) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err := c.batcher.Stop(ctx)
	c.cancel()
	err = errors.Join(err, c.director.Stop())
	c.steps.Wait()
	c.adapters.Close()
	if err != nil {
		c.serve.Logger.Warn("stopping", "error", err)
	}
}

// Checkpoint returns the served model.
func (c *core) Checkpoint() *checkpoint.Checkpoint { return c.checkpoint }

// ServeConfig returns the serving configuration with defaults filled in.
func (c *core) ServeConfig() ServeConfig { return c.serve }

// Logger returns the logger of the cluster.
func (c *core) Logger() *slog.Logger { return c.serve.Logger }
