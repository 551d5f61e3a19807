package cluster

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/topology"
)

// engines is the engine of all models of a coordinator. Each request names its model. engines embeds the core of the
// first model.
type engines struct{ *core }

// Submit implements engine.Engine.
func (e engines) Submit(ctx context.Context, r *engine.Request) (<-chan engine.Event, error) {
	if r.Model == "" {
		return e.core.Submit(ctx, r)
	}
	for _, c := range e.models {
		if slices.Contains(c.serve.Names, r.Model) {
			return c.Submit(ctx, r)
		}
	}
	return nil, apierr.ErrInvalid{Param: "model", Code: "model_not_found", Message: fmt.Sprintf("there is no model %q", r.Model)}
}

// Unread implements engine.Engine.
func (e engines) Unread(id string, yes bool) {
	for _, c := range e.models {
		c.Unread(id, yes)
	}
}

// PromptRoom implements engine.Sizer.
func (e engines) PromptRoom(r *engine.Request) int {
	for _, c := range e.models {
		if slices.Contains(c.serve.Names, r.Model) {
			return c.PromptRoom(r)
		}
	}
	return e.core.PromptRoom(r)
}

// Contexts implements engine.Contexts.
func (e engines) Contexts() map[string]engine.ContextState {
	all := map[string]engine.ContextState{}
	for _, c := range e.models {
		maps.Copy(all, c.Contexts())
	}
	return all
}

// Cluster implements engine.Engine.
func (e engines) Cluster() wire.ClusterState { return e.cluster() }

// Health implements engine.Engine.
func (e engines) Health() error {
	for _, c := range e.models {
		if err := c.Health(); err != nil {
			return err
		}
	}
	return nil
}

// ResetPrefixCache empties the prefix caches of all models, including the disks.
func (e engines) ResetPrefixCache(ctx context.Context) {
	for _, c := range e.models {
		c.ResetPrefixCache(ctx)
		c.prefiller.prefill.ResetPrefixCache(ctx)
	}
}

// budgetOn returns the cache memory of a node that this model may use.
func (c *core) budgetOn(n topology.Node) int64 {
	if len(c.models) < 2 {
		return n.KVBudget
	}
	return c.memoryOf(c.number, n.KVBudget).KvBytes
}

// cluster returns the state of the cluster. Numbers of requests and bytes count all models; Models has
// those of each, if there are several.
func (s *site) cluster() wire.ClusterState {
	ctx, cancel := context.WithTimeout(s.ctx, time.Second)
	defer cancel()
	v, err := s.director.View(ctx)
	if err != nil {
		return wire.ClusterState{WaitingReason: err.Error()}
	}
	all := s.models[0].state(ctx, &v)
	s.models[0].addReader(ctx, &v, &all)
	if len(s.models) == 1 {
		return all
	}
	all.Models = append(all.Models, s.models[0].share(&all))
	for i := range all.Sequences {
		all.Sequences[i].Model = all.Model
	}
	for _, c := range s.models[1:] {
		part := c.state(ctx, &v)
		c.addReader(ctx, &v, &part)
		all.Models = append(all.Models, c.share(&part))
		addModel(&all, &part)
	}
	return all
}

// share returns one model's entry in the state of the cluster.
func (c *core) share(s *wire.ClusterState) wire.ModelState {
	m := wire.ModelState{Model: c.serve.Names[0], Names: c.serve.Names, Policy: c.serve.Policy, Weights: c.serve.Weights,
		KVType: c.serve.KV, Mapping: s.Mapping,
		Running: s.Running, Waiting: s.Waiting, WaitingReason: s.WaitingReason, TokensPerSecond: s.TokensPerSecond, StepMillis: s.StepMillis,
		PrefixCache: s.PrefixCache, Drafts: s.Drafts}
	if s.Recovery != nil {
		m.Preemptions = s.Recovery.Preemptions
	}
	for _, n := range s.Nodes {
		m.KVUsedBytes, m.KVBudgetBytes, m.KVPrefix, m.WeightBytes = m.KVUsedBytes+n.KVUsedBytes, m.KVBudgetBytes+n.KVBudgetBytes,
			m.KVPrefix+n.KVPrefix, m.WeightBytes+n.WeightBytes
	}
	return m
}

// addModel adds the state of a further model to that of the cluster.
func addModel(all, part *wire.ClusterState) {
	all.Running, all.Waiting = all.Running+part.Running, all.Waiting+part.Waiting
	all.WaitingReason = cmp.Or(all.WaitingReason, part.WaitingReason)
	all.TokensPerSecond += part.TokensPerSecond
	all.BatchRows, all.BatchSequences = all.BatchRows+part.BatchRows, all.BatchSequences+part.BatchSequences
	all.TryingThreads = all.TryingThreads || part.TryingThreads
	all.MicroBatches = max(all.MicroBatches, part.MicroBatches)
	all.ExchangeWait += part.ExchangeWait
	all.StepRows, all.WireBytes, all.Clustering = all.StepRows+part.StepRows, all.WireBytes+part.WireBytes, all.Clustering+part.Clustering
	for _, q := range part.Sequences[:min(len(part.Sequences), max(0, shownSequences-len(all.Sequences)))] {
		q.Model = part.Model
		all.Sequences = append(all.Sequences, q)
	}
	if x, p := all.SavedCaches, part.SavedCaches; x != nil && p != nil {
		x.Caches, x.Bytes, x.Written, x.Read, x.Failed = x.Caches+p.Caches, x.Bytes+p.Bytes, x.Written+p.Written, x.Read+p.Read, x.Failed+p.Failed
	}
	if r, p := all.Recovery, part.Recovery; r != nil && p != nil {
		r.RecomputedTokens, r.ReplayedTokens = r.RecomputedTokens+p.RecomputedTokens, r.ReplayedTokens+p.ReplayedTokens
		r.RestoredCaches, r.RestoredReplicas = r.RestoredCaches+p.RestoredCaches, r.RestoredReplicas+p.RestoredReplicas
		r.ReplicaBytes, r.Preemptions = r.ReplicaBytes+p.ReplicaBytes, r.Preemptions+p.Preemptions
	}
	for i := range all.Nodes {
		n := &all.Nodes[i]
		at := slices.IndexFunc(part.Nodes, func(x wire.NodeState) bool { return x.ID == n.ID })
		if at < 0 {
			continue
		}
		x := &part.Nodes[at]
		n.Sequences += x.Sequences
		n.KVUsedBytes, n.KVBudgetBytes, n.KVReserved = n.KVUsedBytes+x.KVUsedBytes, n.KVBudgetBytes+x.KVBudgetBytes, n.KVReserved+x.KVReserved
		n.KVPeakBytes += x.KVPeakBytes
		n.KVReplicas, n.KVPrefix, n.KVFreed = n.KVReplicas+x.KVReplicas, n.KVPrefix+x.KVPrefix, n.KVFreed+x.KVFreed
		n.KVDiskReserved, n.KVDiskUsedBytes, n.KVDiskBytes, n.KVDiskFailures = n.KVDiskReserved+x.KVDiskReserved,
			n.KVDiskUsedBytes+x.KVDiskUsedBytes, n.KVDiskBytes+x.KVDiskBytes, n.KVDiskFailures+x.KVDiskFailures
		n.KVDiskSaved += x.KVDiskSaved
		n.LoRABytes, n.LoRAAdapters, n.WeightBytes = n.LoRABytes+x.LoRABytes, n.LoRAAdapters+x.LoRAAdapters, n.WeightBytes+x.WeightBytes
		n.LoadedBytes, n.LoadBytes, n.FetchedBytes = n.LoadedBytes+x.LoadedBytes, n.LoadBytes+x.LoadBytes, n.FetchedBytes+x.FetchedBytes
		n.Late = max(n.Late, x.Late)
	}
}

// ModelNames returns the first name of every model.
func (e engines) ModelNames() (names []string) {
	for _, c := range e.models {
		names = append(names, c.serve.Names[0])
	}
	return names
}
