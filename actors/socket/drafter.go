package socket

import (
	"context"
	"slices"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/speculate"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/topology"
)

// Draft is a small model that drafts the next tokens of the sequences that a socket owns. Every socket
// has the whole model: a separate model with the same vocabulary, or the model's multi-token-prediction
// (MTP) layer. The drafts go to the batcher with the sampled tokens. They change speed and not results,
// so a socket without a draft model, or without memory for its caches, sends no drafts.
type Draft struct {
	Checkpoint *model.Checkpoint // of the small model; with MTP, of that layer
	MTP        bool
	KVBudget   int64 // bytes for its caches, in addition to those of the model
}

// drafter is the loaded draft model. Only the executor uses it.
type drafter struct {
	device         layer.Device
	weights        *shard.Weights
	mtp            layer.Held // MTP weights; nil: a separate model
	config         model.Config
	place          topology.Placement // of a single rank
	geometry       kvcache.Geometry
	score          tensor.Score
	ropes          []*layer.Rotation
	batch          *layer.Batch
	arena          *kvcache.Arena
	rows           []layer.LogitRow // of one pass
	states         layer.States     // with MTP: the last hidden states of a pass, input of the next pass
	minProbability float32          // minProbability, unless a test changes it
}

const (
	draftRows      = 256             // maximum rows per pass, of all sequences together
	draftTail      = 64              // maximum rows queued for MTP: it reads this much of a prompt, or after a pause
	minProbability = 0.3             // minimum probability of a draft token; drafting stops after a less likely one
	draftSequences = layer.LogitRows // maximum sequences per pass
)

type draftState struct {
	mtp    bool
	tokens []int32      // tokens of the sequence; with MTP, of the queued rows
	hidden layer.States // hidden states of the queued rows, the input of the model's head; nil without MTP
	cached []int32      // tokens in the draft model's cache
	cache  *kvcache.Store
}

// sequence returns the draft state of a new sequence.
func (g *drafter) sequence() *draftState {
	d := &draftState{mtp: g.mtp != nil}
	if d.mtp {
		d.hidden = g.device.States(g.config.Hidden)
	}
	return d
}

// loadDrafter loads the whole draft model.
func loadDrafter(ctx context.Context, cfg *Config, dt, kv tensor.DType) (*drafter, error) {
	d := cfg.Draft
	c := d.Checkpoint.Config
	one := c
	if d.MTP {
		one.Layers, one.MoE.Dense = 1, nil
	}
	place, err := topology.Place(1, topology.Gather, shard.ShapeOf(&c), []topology.Member{{ID: "drafter"}})
	if err != nil {
		return nil, err
	}
	g := &drafter{device: cfg.device(), config: c, place: place, geometry: GeometryOf(&one, kv), score: tensor.Score{Scale: c.AttentionScale()}, ropes: layer.RotationsOf(&c),
		arena: cfg.device().Arena(d.KVBudget), states: cfg.device().States(c.Hidden), minProbability: minProbability}
	g.weights, g.mtp, err = shard.LoadDraft(ctx, d.Checkpoint, cfg.Checkpoint, place, d.MTP, dt, shard.Options{Pool: cfg.Pool, Device: cfg.device()})
	if err != nil {
		g.arena.Close()
		return nil, err
	}
	g.batch = newBatch(cfg.device(), &c, draftRows, g.geometry.Layout)
	g.batch.Type = dt
	return g, nil
}

// close frees the drafter. No sequence may be left.
func (g *drafter) close() {
	if g == nil {
		return
	}
	g.arena.Close()
	g.weights.Close()
	if g.mtp != nil {
		g.mtp.Close()
	}
}

// Bytes returns the memory of the weights.
func (g *drafter) Bytes() int64 {
	if g == nil {
		return 0
	}
	n := g.weights.Bytes()
	if g.mtp != nil {
		n += g.mtp.Bytes()
	}
	return n
}

func (d *draftState) release() {
	if d != nil {
		d.tokens = nil
		d.forget()
		d.restart()
	}
}

// forget drops the states of the queued rows.
func (d *draftState) forget() {
	if d.hidden != nil {
		d.hidden.Drop(d.hidden.Len())
	}
}

// restart empties the cache.
func (d *draftState) restart() {
	if d.cache != nil {
		d.cache.Release()
	}
	d.cache, d.cached = nil, nil
}

// feed appends a token of the sequence; undo removes the newest. MTP gets its tokens with their rows
// instead, in draftTokens.
func (d *draftState) feed(token int32) {
	if d != nil && !d.mtp {
		d.tokens = append(d.tokens, token)
	}
}

func (d *draftState) undo() {
	switch {
	case d == nil:
	case d.mtp:
		d.release()
	default:
		d.tokens = d.tokens[:len(d.tokens)-1]
	}
}

// draftRequest is a request to draft at most n tokens of a sequence.
type draftRequest struct {
	of   *draftState
	n    int
	out  *proto.Sampled
	rows []int32 // tokens that are not in the cache yet
}

// draftTokens feeds the sampled tokens of a step to the drafter, for the sequences that this rank
// owns. It drafts the next tokens where the plan requests drafts.
func (e *epoch) draftTokens(s *step) {
	g := e.drafter
	b := s.micro.batch
	first := map[uint64]int{}
	for _, seg := range b.Segments {
		first[seg.Seq] = seg.First
	}
	var requests []draftRequest
	var states []int
	for i := range s.work.Runs {
		c := &s.work.Runs[i]
		q, drawn := e.seqs[c.Seq], s.results.bySeq[c.Seq]
		if q.draft == nil || c.Prefill && !c.Last {
			continue
		}
		if drawn == nil || len(drawn.Drawn) == 0 {
			if g.mtp != nil {
				q.draft.release() // the rows of this step are missing, so MTP starts again after them
			}
			continue
		}
		last := drawn.Drawn[len(drawn.Drawn)-1]
		if g.mtp != nil {
			rows := c.Tokens // rows whose next token is known
			at := first[c.Seq]
			if c.Prefill {
				skip := max(0, len(rows)-draftTail)
				rows, at = rows[skip:], at+skip
			} else {
				rows = rows[:len(drawn.Drawn)]
			}
			for j := range rows {
				next := int32(last.Token)
				if j+1 < len(rows) {
					next = rows[j+1]
				}
				q.draft.tokens = append(q.draft.tokens, next)
			}
			states = states[:0]
			for i := range rows {
				states = append(states, at+i)
			}
			b.Backend.Keep(q.draft.hidden, e.weights.Ends, states)
			q.draft.trim()
		}
		if c.Draft > 0 && last.HasToken && len(requests) < draftSequences {
			w := draftRequest{of: q.draft, n: min(c.Draft, speculate.Most), out: drawn}
			if w.rows = q.draft.tokens; g.mtp == nil {
				w.rows = append(slices.Clip(w.rows), int32(last.Token))
			}
			requests = append(requests, w)
		}
	}
	g.draft(requests)
}

// trim drops the oldest queued rows above the limit. It also empties the cache, which then has a gap.
func (d *draftState) trim() {
	if n := len(d.tokens) - draftTail; n > 0 {
		d.restart()
		d.tokens = slices.Delete(d.tokens, 0, n)
		d.hidden.Drop(n)
	}
}

// draft drafts for several sequences at once: first the rows that their caches lack, then one token per
// pass.
func (g *drafter) draft(requests []draftRequest) {
	var live []draftRequest
	room := draftRows
	for _, w := range requests {
		d := w.of
		if g.mtp == nil {
			if len(w.rows) < len(d.cached) || !slices.Equal(w.rows[:len(d.cached)], d.cached) {
				d.restart() // the sequence was rebuilt
			}
			w.rows = w.rows[len(d.cached):]
		}
		ready := len(w.rows) <= room
		w.rows = w.rows[:min(len(w.rows), room)]
		if len(w.rows) == 0 || slices.ContainsFunc(w.rows, func(t int32) bool { return int(t) >= g.config.Vocab }) || len(d.cached)+len(w.rows)+w.n > g.config.MaxPositions {
			continue
		}
		if d.cache == nil {
			d.cache = kvcache.NewPrefill(g.arena, g.geometry, tensor.Span{Lo: 0, Hi: g.geometry.PromptHeads(g.geometry.Cut(), true)})
		}
		if d.cache.Reserve(len(d.cached)+len(w.rows)) != nil {
			d.restart() // no memory for its cache
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
			d.forget()
		}
	}
	began := live
	for deep := 1; ; deep++ {
		var next []draftRequest
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
func (g *drafter) pass(live []draftRequest, states []layer.StateRun) {
	segments := make([]layer.Segment, len(live))
	for i := range live {
		w := &live[i]
		segments[i] = layer.Segment{Seq: uint64(i), N: len(w.rows), Start: w.of.cache.Tokens() + w.of.cache.Staged() - len(w.rows), Prefill: true,
			Cache: g.device.Prompt(w.of.cache, nil, g.score)}
	}
	if g.batch.Reset(g.place, 0, segments, g.ropes...) != nil {
		return // cannot happen: there are at most draftRows rows
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
		g.rows = append(g.rows, layer.LogitRow{Row: last[i], Odds: true})
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
