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

// Draft is a small model that every socket has whole, to guess what the sequences that it
// owns say next: one of the same vocabulary, or the model's layer of multi-token prediction.
// Its guesses go to the batcher with what was drawn; they are worth time and no bits, so a
// socket that has none, or no memory left for its caches, just gives none.
type Draft struct {
	Checkpoint *model.Checkpoint // of the small model, or with MTP of that layer
	MTP        bool
	KVBudget   int64 // bytes of its caches, beside those of the model
}

// drafter is the small model, loaded. The executor's.
type drafter struct {
	device   layer.Device
	weights  *shard.Weights
	mtp      layer.Held // of multi-token prediction; nil: a model of its own
	config   model.Config
	place    topology.Placement // of one rank
	geometry kvcache.Geometry
	score    tensor.Score
	ropes    []*layer.Rotation
	batch    *layer.Batch
	arena    *kvcache.Arena
	rows     []layer.LogitRow // of a pass
	states   layer.States     // of a pass, with MTP: what its last rows give the next one
	least    float32          // leastOdds
}

const (
	draftRows = 256             // rows of a pass, of all sequences together
	draftTail = 64              // newest rows that are kept for MTP: what it reads of a prompt, or after a rest
	leastOdds = 0.3             // nothing is guessed behind a guess that is less likely
	draftMost = layer.LogitRows // sequences of a pass
)

type drafted struct {
	mtp    bool
	tokens []int32      // of the sequence; for MTP, of the rows that wait
	hidden layer.States // of those, what the model's head read; nil without MTP
	have   []int32      // tokens in the cache
	cache  *kvcache.Store
}

// sequence is what the drafter knows of a new one.
func (g *drafter) sequence() *drafted {
	d := &drafted{mtp: g.mtp != nil}
	if d.mtp {
		d.hidden = g.device.States(g.config.Hidden)
	}
	return d
}

// loadDrafter reads it whole.
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
		arena: cfg.device().Arena(d.KVBudget), states: cfg.device().States(c.Hidden), least: leastOdds}
	g.weights, g.mtp, err = shard.LoadDraft(ctx, d.Checkpoint, cfg.Checkpoint, place, d.MTP, dt, shard.Options{Pool: cfg.Pool, Device: cfg.device()})
	if err != nil {
		g.arena.Close()
		return nil, err
	}
	g.batch = newBatch(cfg.device(), &c, draftRows, g.geometry.Layout)
	g.batch.Type = dt
	return g, nil
}

// close frees what it holds, when no sequence is left.
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

// Bytes is the memory of the weights.
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

func (d *drafted) release() {
	if d != nil {
		d.tokens = nil
		d.forget()
		d.restart()
	}
}

// forget drops the states of rows that wait.
func (d *drafted) forget() {
	if d.hidden != nil {
		d.hidden.Drop(d.hidden.Len())
	}
}

// restart empties the cache.
func (d *drafted) restart() {
	if d.cache != nil {
		d.cache.Release()
	}
	d.cache, d.have = nil, nil
}

// feed notes a token of the sequence, undo takes the newest back. MTP hears of tokens with
// their rows.
func (d *drafted) feed(token int32) {
	if d != nil && !d.mtp {
		d.tokens = append(d.tokens, token)
	}
}

func (d *drafted) undo() {
	switch {
	case d == nil:
	case d.mtp:
		d.release()
	default:
		d.tokens = d.tokens[:len(d.tokens)-1]
	}
}

// wish is a sequence whose next tokens are to be guessed, n at most.
type wish struct {
	of   *drafted
	n    int
	out  *proto.Sampled
	rows []int32 // tokens that the cache lacks
}

// guesses takes up what a step has drawn of the sequences that this rank owns, and guesses
// what follows it where that was asked for.
func (e *epoch) guesses(s *step) {
	g := e.drafter
	b := s.micro.batch
	first := map[uint64]int{}
	for _, seg := range b.Segments {
		first[seg.Seq] = seg.First
	}
	var wishes []wish
	var states []int
	for i := range s.work.Runs {
		c := &s.work.Runs[i]
		q, drawn := e.seqs[c.Seq], s.results.bySeq[c.Seq]
		if q.draft == nil || c.Prefill && !c.Last {
			continue
		}
		if drawn == nil || len(drawn.Drawn) == 0 {
			if g.mtp != nil {
				q.draft.release() // it begins anew behind rows that it is not told of
			}
			continue
		}
		last := drawn.Drawn[len(drawn.Drawn)-1]
		if g.mtp != nil {
			rows := c.Tokens // those whose next token is known
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
		if c.Draft > 0 && last.HasToken && len(wishes) < draftMost {
			w := wish{of: q.draft, n: min(c.Draft, speculate.Most), out: drawn}
			if w.rows = q.draft.tokens; g.mtp == nil {
				w.rows = append(slices.Clip(w.rows), int32(last.Token))
			}
			wishes = append(wishes, w)
		}
	}
	g.guess(wishes)
}

// trim forgets the oldest of too many rows that wait, and then what lies before them too.
func (d *drafted) trim() {
	if n := len(d.tokens) - draftTail; n > 0 {
		d.restart()
		d.tokens = slices.Delete(d.tokens, 0, n)
		d.hidden.Drop(n)
	}
}

// guess drafts for several sequences at once: what their caches lack, then a token a pass.
func (g *drafter) guess(wishes []wish) {
	var live []wish
	room := draftRows
	for _, w := range wishes {
		d := w.of
		if g.mtp == nil {
			if len(w.rows) < len(d.have) || !slices.Equal(w.rows[:len(d.have)], d.have) {
				d.restart() // it was rebuilt
			}
			w.rows = w.rows[len(d.have):]
		}
		ready := len(w.rows) <= room
		w.rows = w.rows[:min(len(w.rows), room)]
		if len(w.rows) == 0 || slices.ContainsFunc(w.rows, func(t int32) bool { return int(t) >= g.config.Vocab }) || len(d.have)+len(w.rows)+w.n > g.config.MaxPositions {
			continue
		}
		if d.cache == nil {
			d.cache = kvcache.NewPrefill(g.arena, g.geometry, tensor.Span{Lo: 0, Hi: g.geometry.PromptHeads(g.geometry.Cut(), true)})
		}
		if d.cache.Reserve(len(d.have)+len(w.rows)) != nil {
			d.restart() // no memory is left
			continue
		}
		if room -= len(w.rows); !ready {
			w.n = 0 // it is read a piece a step
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
		d.have = append(d.have, live[i].rows...)
		if g.mtp != nil {
			d.tokens = d.tokens[:0]
			d.forget()
		}
	}
	began := live
	for deep := 1; ; deep++ {
		var next []wish
		states = states[:0]
		for i := range live {
			w := live[i]
			if deep >= w.n || w.out.Odds[deep-1] < g.least || w.of.cache.Reserve(len(w.of.have)+deep) != nil {
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

// pass carries the rows of sequences through the small model, adds to each the likeliest next
// token, and with MTP keeps in g.states what it would read next. states are those before its rows.
func (g *drafter) pass(live []wish, states []layer.StateRun) {
	segments := make([]layer.Segment, len(live))
	for i := range live {
		w := &live[i]
		segments[i] = layer.Segment{Seq: uint64(i), N: len(w.rows), Start: w.of.cache.Tokens() + w.of.cache.Staged() - len(w.rows), Prefill: true,
			Cache: g.device.Prompt(w.of.cache, nil, g.score)}
	}
	if g.batch.Reset(g.place, 0, segments, g.ropes...) != nil {
		return // there are never more rows than draftRows
	}
	b, last := g.batch, make([]int, len(live))
	g.rows = g.rows[:0]
	for i := range live {
		tokens := make([]uint32, len(live[i].rows))
		for j, t := range live[i].rows {
			tokens[j] = uint32(t)
		}
		_ = b.Backend.Embed(g.weights.Ends, segments[i].First, tokens, false) // of wrong bytes, guesses are worse and still verified
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
