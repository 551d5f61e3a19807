package socket

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
	for l := range h.epoch.geometry.Recurrent.Layers {
		stages = append(stages, h.exchangeState(l)...)
	}
	return stages
}

func (h *handover) startState(layer int, done func(error)) {
	e, n := h.epoch, len(h.epoch.place.Slices)
	h.reset(n, func(r int) (bytes int) {
		for _, q := range h.seqs {
			if q.owner == e.rank && r != e.rank {
				bytes += kvcache.StateRowBytes(e.geometry, e.place.Slices[r].KVHeads)
			}
		}
		return bytes
	})
	for _, q := range h.seqs {
		if q.owner == e.rank || q.promptShard == nil {
			continue
		}
		var err error
		if h.send[q.owner], err = q.promptShard.ExportState(h.send[q.owner], layer, q.promptShard.Heads(), q.prompt); err != nil {
			done(fmt.Errorf("socket: states of sequence %d: %w", q.id, err))
			return
		}
	}
	if n == 1 {
		done(nil)
		return
	}
	e.group.AllToAll(collective.OpID(h.batch.NextOp()), h.send, h.recv, done)
}

func (h *handover) finishState(layer int) error {
	e := h.epoch
	at := make([]int, len(e.place.Slices))
	for _, q := range h.seqs {
		if q.owner != e.rank {
			continue
		}
		for r, s := range e.place.Slices {
			var err error
			switch size := kvcache.StateRowBytes(e.geometry, s.KVHeads); {
			case s.KVHeads.Len() == 0:
			case r == e.rank:
				err = q.cache.KeepState(q.promptShard, layer, s.KVHeads)
			default:
				err = q.cache.ImportState(layer, s.KVHeads, h.recv[r][at[r]:at[r]+size])
				at[r] += size
			}
			if err != nil {
				return fmt.Errorf("socket: states of sequence %d: %w", q.id, err)
			}
		}
	}
	return nil
}

// copyStates returns the stages that copy recurrent states to replicas, one layer per exchange.
func (r *replicas) copyStates() (stages []stage) {
	g := r.epoch.geometry
	all := tensor.Span{Hi: g.KVHeads}
	for l := range g.Recurrent.Layers {
		var err error
		stages = append(stages, stage{job: func(done func(error)) {
			r.exchange(func(moved) int {
				return kvcache.StateRowBytes(g, all)
			}, func(dst []byte, q moved) []byte {
				dst, failed := q.cache.ExportState(dst, l, all, q.tokens)
				err = failed
				return dst
			}, done)
		}}, stage{job: func(done func(error)) {
			if err != nil {
				done(err)
				return
			}
			done(r.each(func(q moved, rows []byte) error { return q.replicaCache.ImportState(l, all, rows) }))
		}})
	}
	return stages
}
