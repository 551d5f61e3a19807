package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/shoal-llm/shoal/actors/batcher"
	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/internal/coordinator"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/events"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/topology"
)

// site holds the state that all models of a coordinator share: the placement and its history.
type site struct {
	director   *coordinator.Director
	models     []*core // of the decode groups
	prefill    []*core // of the prefill groups, by model
	root       *actor.RootContext
	several    bool // more than one model
	log        *slog.Logger
	recoveries atomic.Uint64 // placements withdrawn because of a fault
	recovery   *coordinator.RecoveryCounters
	events     *events.Log
	trouble    func() string             // faults other than of steps; "": none
	withdrawn  atomic.Pointer[time.Time] // since when no placement serves; nil: one serves, or none ever did

	steps  sync.WaitGroup // steps and releases in flight
	ctx    context.Context
	cancel context.CancelFunc
}

// served is a model with the settings with which it is served.
type served struct {
	checkpoint *checkpoint.Checkpoint
	ServeConfig
}

// openModels opens the checkpoints of several models and fills in and checks their settings. After an
// error none is open.
func openModels(configs []ServeConfig) (out []served, err error) {
	defer func() {
		if err != nil {
			closeModels(out)
			out = nil
		}
	}()
	for _, s := range configs {
		if s.Model == "" {
			return out, errors.New("cluster: ServeConfig.Model is empty: name a model folder or a .gguf file")
		}
		ck, err := checkpoint.OpenSwiftKV(s.Model, s.SwiftKV)
		if err != nil {
			return out, err
		}
		s.ensureDefaults(&ck.Config)
		out = append(out, served{ck, s})
		if err := s.Validate(&ck.Config); err != nil {
			return out, ofModel(len(configs), &s, err)
		}
	}
	return out, distinct(out)
}

func closeModels(all []served) {
	for _, m := range all {
		m.checkpoint.Close()
	}
}

// checkpoints returns the weights of several models.
func checkpoints(all []served) (out []*checkpoint.Checkpoint) {
	for _, m := range all {
		out = append(out, m.checkpoint)
	}
	return out
}

// ofModel adds the name of the model to an error, if there are several.
func ofModel(models int, s *ServeConfig, err error) error {
	if err == nil || models < 2 {
		return err
	}
	return fmt.Errorf("model %s: %w", cmp.Or(append(slices.Clone(s.Names), s.Model)...), err)
}

// distinct refuses a model that is served twice, and a name of two models or of their adapters.
func distinct(all []served) error {
	names, hashes := map[string]string{}, map[string]string{}
	for _, m := range all {
		hash := m.checkpoint.Hash()
		if other, twice := hashes[hash]; twice {
			return fmt.Errorf("cluster: %s and %s are the same model: give it once, with several names if you need them", other, m.Model)
		}
		hashes[hash] = m.Model
		for _, name := range slices.Concat(m.Names, slices.Sorted(maps.Keys(m.LoRA))) {
			if other, taken := names[name]; taken {
				return fmt.Errorf("cluster: the models in %s and %s have the same name %q: give one of them another name", other, m.Model, name)
			}
			names[name] = m.Model
		}
	}
	return nil
}

// newSite builds the parts of a coordinator for its models, from valid configs, and returns the core of
// the first one. dataDir stores data that must survive the process, or "" if there is none.
func newSite(root *actor.RootContext, models []served, nodes int, group string, l coordinator.PlacementLog,
	dataDir string) (_ *core, err error) {
	first := &models[0]
	s := &site{root: root, log: first.Logger, several: len(models) > 1, recovery: coordinator.NewRecoveryCounters(), events: events.New()}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	rules := make([]topology.ModelRules, len(models))
	life := rand.Uint64()
	var orders []coordinator.Model
	for i := range models {
		m := &models[i]
		weights, err := tensor.ParseDType(m.Weights)
		if err != nil {
			return nil, err
		}
		mapping, err := topology.ParseMapping(m.Mapping)
		if err != nil { // "auto": the authority chooses
			mapping = ""
		}
		config := &m.checkpoint.Config
		rules[i] = topology.ModelRules{Shape: shard.ShapeOf(config), Mapping: mapping, WeightBytes: float64(weights.BytesPerRow(32)) / 32,
			ModelHash: m.checkpoint.Hash()}
		order := coordinator.Model{Load: &proto.LoadRequest{ModelHash: m.checkpoint.Hash(), WeightType: m.Weights, KvType: m.KV,
			MaxStepTokens: uint32(m.StepTokens), Context: servedContext(config, &m.ServeConfig), Coordinator: life},
			CardSteps: m.StepTokens == defaultStep}
		if len(models) > 1 {
			order.Memory = func(n topology.Node) *proto.Memory { return s.memoryOf(i, n.KVBudget) }
		}
		orders = append(orders, order)
	}
	r := &rules[0]
	s.director = coordinator.New(coordinator.Config{
		Authority: topology.AuthorityConfig{Shape: r.Shape, Mapping: r.Mapping, Cards: topology.Cards(first.Cards), WeightBytes: r.WeightBytes,
			ModelHash: r.ModelHash, Others: rules[1:],
			Nodes: nodes, Settle: settle, Backoff: 200 * time.Millisecond, After: l.After, Leased: l.Record != nil,
			Shares: first.Shares, Drained: l.Drained},
		Record: l.Record, Drained: l.Drain, Models: orders,
		GroupName: group, Deadline: first.SyncDeadline, LoadStall: first.LoadDeadline, Logger: s.log,
		OnServe: s.placed, OnWithdraw: s.unplaced, OnEvent: s.events.Add,
	})
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stopCores())
		}
	}()
	for i, m := range models {
		c, err := newCore(s, i, m, dataDir)
		if err != nil {
			return nil, ofModel(len(models), &m.ServeConfig, err)
		}
		s.models = append(s.models, c)
		p, err := newReader(c)
		if err != nil {
			return nil, err
		}
		s.prefill = append(s.prefill, p)
	}
	s.director.Start(root)
	s.steps.Add(1)
	go s.poll()
	return s.models[0], nil
}

// memoryOf returns the part of a model in a node's memory for caches, in bytes.
func (s *site) memoryOf(model int, bytes int64) *proto.Memory {
	out := &proto.Memory{}
	wants := make([]memoryWant, len(s.models))
	for i, c := range s.models {
		wants[i] = memoryWant{fixed: c.serve.KVMemory, perToken: tokenBytes(c.geometry)}
		if c.takesAdapters() {
			out.AdapterParts++
		}
	}
	if !s.models[model].takesAdapters() {
		out.AdapterParts = 0
	}
	out.KvBytes = splitMemory(bytes, wants)[model]
	return out
}

// placed records that a placement serves, and passes its groups to the cores. The director calls it.
func (s *site) placed(groups []*coordinator.Group) {
	if since := s.withdrawn.Swap(nil); since != nil {
		s.recovery.Served(*since, time.Now())
	}
	s.events.Serves(groups[0].Placement.Epoch, len(groups[0].Nodes))
	for _, g := range slices.Backward(groups) { // prefill groups first
		if g.Prefill {
			s.prefill[g.Model].placed(g)
			continue
		}
		s.models[g.Model].placed(g)
	}
}

func (s *site) unplaced(w topology.Withdraw) {
	now := time.Now()
	s.withdrawn.CompareAndSwap(nil, &now)
	var began time.Time // of the oldest step that was in flight
	for _, c := range s.cores() {
		if at := c.stepper.Interrupted(); !at.IsZero() && (began.IsZero() || at.Before(began)) {
			began = at
		}
	}
	s.recovery.Withdrawn(w, began, now)
	s.events.Ended(w)
	if !w.Grown {
		s.recoveries.Add(1)
	}
	for _, c := range s.cores() {
		c.batcher.Unplace(w.Reason)
	}
}

// cores returns the cores of all groups of all models.
func (s *site) cores() []*core { return slices.Concat(s.models, s.prefill) }

// poll refreshes the figures of the nodes and the samples of the recent past.
func (s *site) poll() {
	defer s.steps.Done()
	t := time.NewTicker(loadingEvery)
	defer t.Stop()
	requested, sampled := time.Now(), time.Now()
	var of *coordinator.Group // the group that served at the last poll of the nodes
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-t.C:
		}
		if now, g := time.Now(), s.director.Serving(0); g == nil || g != of || now.Sub(requested) >= statusEvery {
			requested, of = now, g
			s.requestFigures()
		}
		s.recordFigures(&sampled)
	}
}

// recordFigures records the cost of outages, and a sample once per statusEvery.
func (s *site) recordFigures(sampled *time.Time) {
	ctx, cancel := context.WithTimeout(s.ctx, statusEvery)
	defer cancel()
	if cost, ok := s.outage(ctx); ok {
		s.events.Cost(cost)
	}
	if now := time.Now(); now.Sub(*sampled) >= statusEvery {
		*sampled = now
		state := s.cluster()
		s.events.Sample(&state)
	}
}

// outage returns the cost of the newest outage to the sequences of all models.
func (s *site) outage(ctx context.Context) (sum batcher.Outage, ok bool) {
	for i, c := range s.models {
		snap, err := c.batcher.Snapshot(ctx)
		if err != nil {
			return sum, false
		}
		o := snap.Outage
		if i == 0 || o.Epoch > sum.Epoch {
			sum = o
			continue
		}
		if o.Epoch < sum.Epoch { // the newest outage has not reached this batcher yet
			continue
		}
		sum.Streams, sum.Waiting, sum.Failed = sum.Streams+o.Streams, sum.Waiting+o.Waiting, sum.Failed+o.Failed
		sum.Recomputed, sum.Replayed = sum.Recomputed+o.Recomputed, sum.Replayed+o.Replayed
		sum.Restored, sum.Copies, sum.SilentMillis = sum.Restored+o.Restored, sum.Copies+o.Copies, max(sum.SilentMillis, o.SilentMillis)
	}
	return sum, true
}

// requestFigures requests the figures of all nodes that are up. A node that answers, but counts as lost here,
// must get no request: it would count that as contact and not rejoin.
func (s *site) requestFigures() {
	ctx, cancel := context.WithTimeout(s.ctx, statusEvery)
	defer cancel()
	v, err := s.director.View(ctx)
	if err != nil {
		return
	}
	var wg sync.WaitGroup
	for id, host := range v.Hosts {
		if incarnation, up := s.director.Known(id); !up || incarnation != host.Incarnation {
			continue
		}
		cores, others := s.models, s.prefill
		if v.Placement.RoleOf(v.Nodes, id) == topology.RolePrefill {
			cores, others = others, cores
		}
		for i, h := range host.Handles {
			wg.Go(func() {
				if status, err := h.Status(ctx); err == nil {
					cores[i].noteStatus(id, status)
					others[i].noteStatus(id, nil) // it may have changed its group
				}
			})
		}
	}
	wg.Wait()
	for _, c := range s.cores() {
		c.forgetStatus(v.Hosts)
	}
}

// stopCores ends the batchers. Running requests finish with an error.
func (s *site) stopCores() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for _, c := range s.cores() {
		err = errors.Join(err, c.batcher.Stop(ctx))
	}
	s.cancel()
	return err
}

// close stops all models. Running requests finish with an error.
func (s *site) close() {
	err := errors.Join(s.stopCores(), s.director.Stop())
	s.steps.Wait()
	for _, c := range s.models {
		c.adapters.Close()
	}
	if err != nil {
		s.log.Warn("stopping", "error", err)
	}
}

// closeCheckpoints closes the weights, after the sockets and servers that read them.
func (s *site) closeCheckpoints() {
	for _, c := range s.models {
		c.checkpoint.Close()
	}
}
