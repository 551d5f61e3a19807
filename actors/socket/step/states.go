package step

import (
	"fmt"

	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// exchangeState returns the stages that move the states of one recurrent layer to the owners. A
// socket has those of its KV heads.
func (h *handover) exchangeState(layer int) []stage {
	return []stage{
		{job: func(done func(error)) { h.startState(layer, done) }},
		{job: func(done func(error)) { done(h.finishState(layer)) }},
	}
}

// states returns the stages that move the states of all recurrent layers.
func (h *handover) states() (stages []stage) {
	for l := range h.epoch.Geometry.Recurrent.Layers {
		stages = append(stages, h.exchangeState(l)...)
	}
	return stages
}

func (h *handover) startState(layer int, done func(error)) {
	e, n := h.epoch, len(h.epoch.Place.Slices)
	h.reset(n, func(r int) (bytes int) {
		for _, q := range h.seqs {
			if q.Owner == e.Rank && r != e.Rank {
				bytes += kvcache.StateRowBytes(e.Geometry, e.Place.Slices[r].KVHeads)
			}
		}
		return bytes
	})
	for _, q := range h.seqs {
		if q.Owner == e.Rank || q.PromptShard == nil {
			continue
		}
		var err error
		if h.send[q.Owner], err = q.PromptShard.ExportState(h.send[q.Owner], layer, q.PromptShard.Heads(), q.Prompt); err != nil {
			done(fmt.Errorf("socket: states of sequence %d: %w", q.ID, err))
			return
		}
	}
	if n == 1 {
		done(nil)
		return
	}
	e.Group.AllToAll(collective.OpID(h.batch.NextOp()), h.send, h.recv, done)
}

func (h *handover) finishState(layer int) error {
	e := h.epoch
	at := make([]int, len(e.Place.Slices))
	for _, q := range h.seqs {
		if q.Owner != e.Rank {
			continue
		}
		for r, s := range e.Place.Slices {
			var err error
			switch size := kvcache.StateRowBytes(e.Geometry, s.KVHeads); {
			case s.KVHeads.Len() == 0:
			case r == e.Rank:
				err = q.Cache.KeepState(q.PromptShard, layer, s.KVHeads)
			default:
				err = q.Cache.ImportState(layer, s.KVHeads, h.recv[r][at[r]:at[r]+size])
				at[r] += size
			}
			if err != nil {
				return fmt.Errorf("socket: states of sequence %d: %w", q.ID, err)
			}
		}
	}
	return nil
}

// copyStates returns the stages that copy recurrent states to replicas, one layer per exchange.
func (r *replicas) copyStates() (stages []stage) {
	g := r.epoch.Geometry
	all := tensor.Span{Hi: g.KVHeads}
	for l := range g.Recurrent.Layers {
		var err error
		stages = append(stages, stage{job: func(done func(error)) {
			r.exchange(func(moved) int {
				return kvcache.StateRowBytes(g, all)
			}, func(dst []byte, q moved) []byte {
				dst, failed := q.Cache.ExportState(dst, l, all, q.tokens)
				err = failed
				return dst
			}, done)
		}}, stage{job: func(done func(error)) {
			if err != nil {
				done(err)
				return
			}
			done(r.each(func(q moved, rows []byte) error { return q.ReplicaCache.ImportState(l, all, rows) }))
		}})
	}
	return stages
}
