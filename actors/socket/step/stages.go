package step

import (
	"maps"
	"time"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/actors/socket/caches"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// plan lists the stages after begin: copies of whole caches, the layers, the head for the wanted rows,
// the rows for replicas, the commit of prompts, the hand-over of complete prompts, the sweeps. Every
// rank lists the same collectives in the same order.
func (e *Epoch) plan(s *Step) []stage {
	if len(s.Work.Runs) == 0 {
		return append(e.cluster(s), e.sweeps(s)...)
	}
	stages := append(e.copies(s), e.layers(s)...)
	stages = append(stages, e.heads(s, s.buf.batch, s.wanted)...)
	if len(s.pooled) > 0 {
		stages = append(stages, stage{job: func(done func(error)) { e.addPooled(s); done(nil) }})
	}
	if e.Drafter != nil {
		stages = append(stages, stage{job: func(done func(error)) {
			began := time.Now()
			e.draftTokens(s)
			s.spent.Head += time.Since(began)
			done(nil)
		}})
	}
	stages = append(stages, e.replication(s)...)
	stages = append(stages, stage{job: func(done func(error)) {
		for i := range s.Work.Runs {
			c := &s.Work.Runs[i]
			if q := e.Seqs[c.Seq]; c.Prefill && q.PromptShard != nil {
				if err := e.Save(q, c); err != nil {
					done(err)
					return
				}
				q.PromptShard.Commit(len(c.Tokens))
			}
		}
		s.spilled, s.lost = append(s.spilled, e.TakeSpilled()...), e.Lost(s.Work)
		done(nil)
	}})
	stages = append(append(stages, e.cluster(s)...), e.handOver(s)...)
	if len(s.Work.Sweeps) == 0 {
		return stages
	}
	stages = append(stages, stage{job: func(done func(error)) { s.collect(s.buf.batch); done(nil) }})
	return append(stages, e.sweeps(s)...)
}

// heads returns the stages that compute the logits of rows of a batch, and their results.
func (e *Epoch) heads(s *Step, b *layer.Batch, all []wanted) (stages []stage) {
	alone := len(e.Place.Slices) == 1
	h := &s.buf.head
	for lo := 0; lo < len(all); lo += layer.LogitRows {
		rows := all[lo:min(lo+layer.LogitRows, len(all))]
		stages = append(stages, stage{job: func(done func(error)) {
			began := time.Now()
			h.compute(b, rows)
			sent := time.Now()
			s.spent.Head += sent.Sub(began)
			if alone {
				done(nil)
				return
			}
			e.Await(b.Bulk(), e.Group, func() {
				h.exchange(b, rows, e.Group, func(err error) {
					s.spent.Wait += time.Since(sent)
					done(err)
				})
			})
		}}, stage{job: func(done func(error)) {
			began := time.Now()
			err := h.finish(b, rows, &s.results)
			s.spent.Head += time.Since(began)
			done(err)
		}})
	}
	return stages
}

// cluster returns the stages of a step that cluster prompts.
func (e *Epoch) cluster(s *Step) (stages []stage) {
	for _, x := range s.Work.Index {
		q := e.Seqs[x.Seq]
		if c := kvcache.IndexWorkOf(e.Geometry, q.Prompt, q.Policy); x.From >= c.Before {
			stages = append(stages, e.move(s, q, x.From-c.Before, x.From-c.Before+x.Pieces, c.Pieces-c.Before)...)
			continue
		}
		stages = append(stages, stage{job: func(done func(error)) {
			began := time.Now()
			if q.PromptShard != nil && (e.Geometry.Units == 0 || q.Owner == e.Rank) {
				for i := range x.Pieces {
					q.Stats.Prepare(q.PromptShard, q.Policy, x.From+i, e.pool.Run)
				}
			}
			s.spent.Clustering += time.Since(began)
			done(nil)
		}})
	}
	return stages
}

// move returns the stages for pieces [lo, hi) of a prompt's hand-over; piece all-1 completes it.
func (e *Epoch) move(s *Step, q *caches.Sequence, lo, hi, all int) (stages []stage) {
	h := e.handovers[q]
	if h == nil {
		maps.DeleteFunc(e.handovers, func(q *caches.Sequence, _ *handover) bool { return e.Seqs[q.ID] != q }) // of sequences that were released
		h = &handover{epoch: e, seqs: []*caches.Sequence{q}}
		e.handovers[q] = h
	}
	for piece := lo; piece < min(hi, all-1); piece++ {
		if of, heads, moved := e.Geometry.Moved(piece); moved && heads.Len() > 0 {
			stages = append(stages, h.exchange(oneLayer(of), heads)...)
		}
		stages = append(stages, stage{job: func(done func(error)) {
			began := time.Now()
			var err error
			if q.Cache != nil {
				err = q.Cache.Index(piece, e.pool.Run)
			}
			s.spent.Own += time.Since(began)
			done(err)
		}})
	}
	if hi == all {
		stages = append(stages, h.states()...)
	}
	return h.timed(s, stages, hi == all)
}

// handOver returns the stages that move complete prompts to their owners.
func (e *Epoch) handOver(s *Step) (stages []stage) {
	h := &handover{epoch: e}
	for _, c := range s.Work.Runs {
		if c.Last {
			h.seqs = append(h.seqs, e.Seqs[c.Seq])
		}
	}
	if len(h.seqs) == 0 {
		return nil
	}
	return h.timed(s, append(h.joined(tensor.Span{Hi: e.Geometry.Layers}), h.states()...), true)
}

// joined returns the stages that move all heads of layers, several in one exchange where they are short.
func (h *handover) joined(layers tensor.Span) (stages []stage) {
	g, tokens := h.epoch.Geometry, 0
	for _, q := range h.seqs {
		tokens += q.Prompt
	}
	each := 1
	if g.Units == 0 { // latent rows do not move
		each = JoinedLayers(tokens * g.KVHeads * g.Layout.RowBytes())
	}
	for l := layers.Lo; l < layers.Hi; l += each {
		stages = append(stages, h.exchange(tensor.Span{Lo: l, Hi: min(l+each, layers.Hi)}, topology.Range{Hi: g.KVHeads})...)
	}
	return stages
}

// states returns the stages that move recurrent states. Their layers are numbered after the others.
func (h *handover) states() (stages []stage) {
	g := h.epoch.Geometry
	for l := range g.Recurrent.Layers {
		stages = append(stages, h.exchange(oneLayer(g.Layers+l), topology.Range{Hi: g.KVHeads})...)
	}
	return stages
}

// exchange returns the stages that move heads of layers.
func (h *handover) exchange(layers tensor.Span, heads topology.Range) []stage {
	return []stage{
		{job: func(done func(error)) { h.heads = heads; h.divide(layers, done) }},
		{job: func(done func(error)) { h.start(layers, done) }},
		{job: func(done func(error)) { done(h.finish()) }}}
}

// JoinedLayers returns how many layers of whole caches move in one exchange, if each has this number of bytes on
// all ranks together. A short prompt then waits for few exchanges. A long one moves layer by layer, which limits
// the bytes in flight. All ranks get the same number.
func JoinedLayers(bytes int) int { return max(1, joinedBytes/max(1, bytes)) }

const joinedBytes = 4 << 20

// oneLayer returns the span of one layer.
func oneLayer(l int) tensor.Span { return tensor.Span{Lo: l, Hi: l + 1} }

// timed measures the stages of a hand-over: selection, transfer and storage of the rows. With end,
// it also seals the hand-over.
func (h *handover) timed(s *Step, stages []stage, end bool) []stage {
	var began time.Time
	h.batch = s.buf.batch
	first := stage{job: func(done func(error)) { began = time.Now(); done(nil) }}
	return append(append([]stage{first}, stages...), stage{job: func(done func(error)) {
		var err error
		if end {
			err = h.seal()
		}
		s.spent.Votes, s.spent.Selection = s.spent.Votes+h.observing, s.spent.Selection+h.choosing
		s.spent.Shipping += time.Since(began) - h.observing - h.choosing
		h.observing, h.choosing = 0, 0
		done(err)
	}})
}
