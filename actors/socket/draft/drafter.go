// Package draft drafts the next tokens of sequences with a small model, for speculative decoding.
// Drafts change speed and not results.
package draft

import (
	"context"
	"slices"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/actors/layer/rotation"
	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// Config is a small model that drafts the next tokens of the sequences that a socket owns. Every socket
// has the whole model: a separate model with the same vocabulary, or the model's multi-token-prediction
// (MTP) layer. The drafts go to the batcher with the sampled tokens. A socket without a draft model, or
// without memory for its caches, sends no drafts.
type Config struct {
	Checkpoint *checkpoint.Checkpoint // of the small model; with MTP, of that layer
	MTP        bool
	KVBudget   int64 // bytes for its caches, in addition to those of the model
}

// Drafter is the loaded draft model. Only the executor uses it.
type Drafter struct {
	device         layer.Device
	weights        *shard.Weights
	mtp            layer.Held // MTP weights; nil: a separate model
	config         model.Config
	place          topology.Placement // of a single rank
	geometry       kvcache.Geometry
	score          tensor.Score
	ropes          []*rotation.Table
	batch          *layer.Batch
	arena          *memory.Arena
	rows           []layer.LogitRow // of one pass
	states         layer.States     // with MTP: the last hidden states of a pass, input of the next pass
	minProbability float32          // the constant, unless a test changes it
}

const (
	maxRows        = 256             // maximum rows per pass, of all sequences together
	maxQueued      = 64              // maximum rows queued for MTP: it reads this much of a prompt, or after a pause
	minProbability = 0.3             // minimum probability of a draft token; drafting stops after a less likely one
	maxSequences   = layer.LogitRows // maximum sequences per pass
)

// NewState returns the draft state of a new sequence.
func (g *Drafter) NewState() *State {
	d := &State{mtp: g.mtp != nil}
	if d.mtp {
		d.hidden = g.device.States(g.config.Hidden)
	}
	return d
}

// Load loads the whole draft model for a model. positions is the served context (model.Config.Serve). o
// has the pool and the device. Close must be called.
func Load(ctx context.Context, d *Config, of *checkpoint.Checkpoint, positions int, dt,
	kv tensor.DType, o shard.Options) (*Drafter, error) {
	c := d.Checkpoint.Config
	c.Serve(positions)
	one := c
	if d.MTP {
		one.Layers, one.MoE.Dense = 1, nil
	}
	place, err := topology.Place(1, topology.Gather, shard.ShapeOf(&c), []topology.Member{{ID: "drafter"}})
	if err != nil {
		return nil, err
	}
	g := &Drafter{device: o.Device, config: c, place: place, geometry: shard.GeometryOf(&one, kv),
		score: c.Score(), ropes: rotation.TablesOf(&c),
		arena: o.Device.Arena(d.KVBudget), states: o.Device.States(c.Hidden), minProbability: minProbability}
	g.weights, g.mtp, err = shard.LoadDraft(ctx, d.Checkpoint, of, place, d.MTP, dt, o)
	if err != nil {
		g.arena.Close()
		return nil, err
	}
	dims := layer.DimsOf(&c)
	g.batch = layer.NewBatch(dims, maxRows, o.Device.Backend(dims, maxRows, g.geometry.Layout))
	g.batch.Type = dt
	return g, nil
}

// Close frees the drafter. No sequence may be left.
func (g *Drafter) Close() {
	g.arena.Close()
	g.weights.Close()
	if g.mtp != nil {
		g.mtp.Close()
	}
}

// Bytes returns the memory of the weights; 0 of a nil Drafter.
func (g *Drafter) Bytes() int64 {
	if g == nil {
		return 0
	}
	n := g.weights.Bytes()
	if g.mtp != nil {
		n += g.mtp.Bytes()
	}
	return n
}

// Draft drafts for several sequences at once: first the rows that their caches lack, then one token per
// pass. It ignores requests beyond the number of sequences that a pass can have.
func (g *Drafter) Draft(requests []Request) {
	var live []Request
	room := maxRows
	for _, w := range requests[:min(len(requests), maxSequences)] {
		d := w.of
		if g.mtp == nil {
			if len(w.rows) < len(d.cached) || !slices.Equal(w.rows[:len(d.cached)], d.cached) {
				d.clearCache() // the sequence was rebuilt
			}
			w.rows = w.rows[len(d.cached):]
		}
		ready := len(w.rows) <= room
		w.rows = w.rows[:min(len(w.rows), room)]
		if len(w.rows) == 0 || slices.ContainsFunc(w.rows, func(t int32) bool { return int(t) >= g.config.Vocab }) ||
			len(d.cached)+len(w.rows)+w.n > g.config.MaxPositions {
			continue
		}
		if d.cache == nil {
			d.cache = kvcache.NewPrefill(g.arena, g.geometry, tensor.Span{Lo: 0, Hi: g.geometry.PromptHeads(g.geometry.Cut(), true)})
		}
		if d.cache.Reserve(len(d.cached)+len(w.rows)) != nil {
			d.clearCache() // no memory for its cache
			continue
		}
		if room -= len(w.rows); !ready {
			w.n = 0 // too many rows for one step: read a piece per step, without a draft
		}
		live = append(live, w)
	}
	if len(live) == 0 {
		return
	}
	var states []layer.StateRun
	for _, w := range live {
		if g.mtp != nil {
			states = append(states, layer.StateRun{Of: w.of.hidden, N: len(w.rows)})
		}
	}
	g.pass(live, states)
	for i := range live {
		d := live[i].of
		d.cache.Commit(len(live[i].rows))
		d.cached = append(d.cached, live[i].rows...)
		if g.mtp != nil {
			d.tokens = d.tokens[:0]
			d.dropHidden()
		}
	}
	for i := range live { // the next passes advance recurrent states in place, and Rollback returns to these
		if w := &live[i]; w.n > 1 && w.of.cache.States().Save() != nil {
			w.n = 1 // no memory for the copy
		}
	}
	began := live
	for deep := 1; ; deep++ {
		var next []Request
		states = states[:0]
		for i := range live {
			w := live[i]
			if deep >= w.n || w.out.Odds[deep-1] < g.minProbability || w.of.cache.Reserve(len(w.of.cached)+deep) != nil {
				continue
			}
			w.rows = []int32{int32(w.out.Drafts[deep-1])}
			if g.mtp != nil {
				states = append(states, layer.StateRun{Of: g.states, First: i, N: 1})
			}
			next = append(next, w)
		}
		if live = next; len(live) == 0 {
			break
		}
		g.pass(live, states)
	}
	for _, w := range began {
		w.of.cache.Rollback()
	}
}

// pass runs the rows of sequences through the draft model and appends the most likely next token of
// each. states are the hidden states before these rows. With MTP it stores the new ones in g.states.
func (g *Drafter) pass(live []Request, states []layer.StateRun) {
	segments := make([]layer.Segment, len(live))
	for i := range live {
		w := &live[i]
		segments[i] = layer.Segment{Seq: uint64(i), N: len(w.rows), Start: w.of.cache.Tokens() + w.of.cache.Staged() - len(w.rows), Prefill: true,
			Cache: g.device.Prompt(w.of.cache, nil, g.score)}
	}
	if g.batch.Reset(g.place, 0, segments, g.ropes...) != nil {
		return // cannot happen: there are at most maxRows rows
	}
	b, last := g.batch, make([]int, len(live))
	g.rows = g.rows[:0]
	for i := range live {
		tokens := make([]uint32, len(live[i].rows))
		for j, t := range live[i].rows {
			tokens[j] = uint32(t)
		}
		_ = b.Backend.Embed(g.weights.Ends, segments[i].First, tokens, false) // wrong bytes only make drafts worse: each draft is verified
		last[i] = segments[i].First + segments[i].N - 1
		g.rows = append(g.rows, layer.LogitRow{Row: last[i], Probability: true})
	}
	if g.mtp != nil {
		b.Backend.Join(g.mtp, states)
	}
	b.Through(g.weights.Layers...)
	b.Backend.Logits(g.weights.Ends, g.rows)
	if g.mtp != nil {
		g.states.Drop(g.states.Len())
		b.Backend.Keep(g.states, nil, last)
	}
	for i := range live {
		if live[i].n == 0 {
			continue
		}
		out := live[i].out
		out.Drafts = append(out.Drafts, uint32(g.rows[i].Best))
		out.Odds = append(out.Odds, g.rows[i].Share)
	}
}
