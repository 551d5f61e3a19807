package socket

import (
	"errors"
	"slices"
	"time"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// handover moves the cache of a prompt from all sockets to the sequence's owner, one layer per
// exchange, to limit the bytes in flight. The owner adopts or compresses its own heads and
// imports the others.
type handover struct {
	epoch *epoch
	batch *layer.Batch   // batch of the step, which numbers its collectives
	seqs  []*sequence    // in the order of the plan, the same on every rank
	heads topology.Range // heads of the current layer that move
	kept  []kvcache.Kept // choice per (sequence, own head) of the current layer
	stats []*kvcache.Statistics
	rankBuffers
	sum []float32 // latent attention: attention statistics of all sequences, summed over all sockets

	observing, choosing time.Duration
}

// of returns the current heads that a rank has.
func (h *handover) of(rank int) topology.Range {
	has := h.epoch.place.Slices[rank].KVHeads
	lo := min(max(has.Lo, h.heads.Lo), has.Hi)
	return topology.Range{Lo: lo, Hi: max(lo, min(has.Hi, h.heads.Hi))}
}

// choose lets the policies choose the tokens of one layer, for all of this rank's heads at once. It
// computes the attention of the observation window first.
func (h *handover) choose(layer int) {
	began := time.Now()
	e := h.epoch
	mine := h.of(e.rank)
	h.kept = make([]kvcache.Kept, len(h.seqs)*mine.Len())
	h.stats = make([]*kvcache.Statistics, len(h.kept))
	e.pool.Run(len(h.kept), func(i int) {
		q, head := h.seqs[i/mine.Len()], mine.Lo+i%mine.Len()
		if rule := e.geometry.Rule(layer, q.policy); q.owner != e.rank || !rule.KeepsAll() {
			h.stats[i] = q.stats.Statistics(q.promptShard, layer, head, e.score)
			if !rule.Needs.Queries {
				h.stats[i].Vote(rule.Needs.Window)
			}
		}
	})
	voted := time.Now()
	e.pool.Run(len(h.kept), func(i int) {
		if h.stats[i] != nil {
			h.kept[i] = e.geometry.Rule(layer, h.seqs[i/mine.Len()].policy).Keep(h.stats[i])
		}
	})
	h.observing += voted.Sub(began)
	h.choosing += time.Since(voted)
}

// keep returns the choice for one head.
func (h *handover) keep(seq, head int) kvcache.Kept {
	mine := h.of(h.epoch.rank)
	return h.kept[seq*mine.Len()+head-mine.Lo]
}

// queries returns the query statistics of one head that the owner gets.
func (h *handover) queries(seq, head int) *kvcache.Statistics {
	mine := h.of(h.epoch.rank)
	return h.stats[seq*mine.Len()+head-mine.Lo]
}

// rowBytes returns the size of the heads of a layer on the wire to the owner: their rows, and the query
// statistics if the policy needs them on the owner.
func (h *handover) rowBytes(q *sequence, layer int, heads topology.Range) int {
	g := h.epoch.geometry
	rule := g.Rule(layer, q.policy)
	return heads.Len() * (rule.Slots(q.prompt, q.prompt)*kvcache.RowBytes(g, layer, rule) + kvcache.QueryBytes(g, rule, q.prompt))
}

// start packs one layer and begins its exchange.
func (h *handover) start(layer int, done func(error)) {
	e, n := h.epoch, len(h.epoch.place.Slices)
	if e.geometry.Units > 0 {
		h.startLatent(layer, done)
		return
	}
	h.reset(n, func(r int) (bytes int) {
		for _, q := range h.seqs {
			if q.owner == e.rank && r != e.rank {
				bytes += h.rowBytes(q, layer, h.of(r))
			}
		}
		return bytes
	})
	mine := h.of(e.rank)
	h.choose(layer)
	for i, q := range h.seqs {
		if q.owner == e.rank {
			continue
		}
		for head := mine.Lo; head < mine.Hi; head++ {
			rule := e.geometry.Rule(layer, q.policy)
			h.send[q.owner] = q.promptShard.Export(h.send[q.owner], rule, layer, head, h.keep(i, head))
			h.send[q.owner] = kvcache.ExportQueries(h.send[q.owner], rule, h.queries(i, head))
		}
	}
	if n == 1 {
		done(nil)
		return
	}
	e.group.AllToAll(collective.OpID(h.batch.NextOp()), h.send, h.recv, done)
}

// finish stores one layer in the owners' caches.
func (h *handover) finish(layer int) error {
	e := h.epoch
	if e.geometry.Units > 0 {
		return h.finishLatent(layer)
	}
	at := make([]int, len(e.place.Slices))
	for i, q := range h.seqs {
		if q.owner != e.rank {
			continue
		}
		for r := range e.place.Slices {
			if r == e.rank {
				if err := h.keepOwn(i, layer, h.of(r)); err != nil {
					return err
				}
				continue
			}
			size := h.rowBytes(q, layer, topology.Range{Lo: 0, Hi: 1})
			rows := size - kvcache.QueryBytes(e.geometry, e.geometry.Rule(layer, q.policy), q.prompt)
			for head := h.of(r).Lo; head < h.of(r).Hi; head++ {
				in := h.recv[r][at[r] : at[r]+size]
				if err := q.cache.Import(layer, head, 0, in[:rows]); err != nil {
					return err
				}
				if err := q.cache.ImportQueries(layer, head, e.score, in[rows:]); err != nil {
					return err
				}
				at[r] += size
			}
		}
	}
	return nil
}

func (h *handover) keepOwn(i, layer int, heads topology.Range) error {
	e, q := h.epoch, h.seqs[i]
	moved, errs := !e.geometry.Rule(layer, q.policy).KeepsAll(), make([]error, heads.Len())
	if moved {
		e.pool.Run(heads.Len(), func(n int) { errs[n] = q.cache.Keep(q.promptShard, layer, heads.Lo+n, h.keep(i, heads.Lo+n)) })
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for head := heads.Lo; head < heads.Hi; head++ {
		if q.policy.KeepsAll() && layer == e.geometry.Layers-1 { // all layers at once, after the policy's last choice
			if err := q.cache.Adopt(q.promptShard, head); err != nil {
				return err
			}
		}
		if moved {
			if err := h.observed(q, layer, head, h.queries(i, head)); err != nil {
				return err
			}
		}
	}
	return nil
}

// observed copies the statistics of a head on this socket to the owner's cache.
func (h *handover) observed(q *sequence, layer, head int, s *kvcache.Statistics) error {
	return q.cache.ImportQueries(layer, head, h.epoch.score, kvcache.ExportQueries(nil, h.epoch.geometry.Rule(layer, q.policy), s))
}

// seal ends the hand-over: it frees the prompt's full cache.
func (h *handover) seal() error {
	for _, q := range h.seqs {
		if q.cache != nil {
			if err := q.cache.SealOn(h.epoch.pool.Run, h.epoch.ropesUntil(q.prompt)); err != nil {
				return err
			}
		}
		if q.promptShard != nil {
			q.promptShard.Release()
			q.promptShard = nil
		}
		q.stats.Release()
		q.stats = nil
		delete(h.epoch.handovers, q)
	}
	return nil
}

// startLatent begins the hand-over of one layer of latent attention. Every socket in prefill has all
// rows of the prompt, and so has the owner: no row moves. The sockets sum the attention statistics,
// which each has for its own query heads (SnapStream, arXiv 2511.03092, section 4.2).
func (h *handover) startLatent(layer int, done func(error)) {
	e := h.epoch
	units := e.geometry.Units
	floats := 0
	for _, q := range h.seqs {
		floats += kvcache.PartFloats(e.geometry, q.policy, q.prompt)
	}
	h.sum = slices.Grow(h.sum[:0], floats)[:floats]
	if floats == 0 {
		done(nil)
		return
	}
	nodes := make([][]tensor.Span, len(e.place.Slices))
	for r, s := range e.place.Slices {
		nodes[r] = tensor.Subtrees(s.KVHeads.Lo, s.KVHeads.Hi, units)
	}
	mine := nodes[e.rank]
	parts := make([][]float32, len(mine))
	for i := range parts {
		parts[i] = make([]float32, floats)
	}
	at, of := 0, make([][]float32, len(parts))
	for _, q := range h.seqs {
		n := kvcache.PartFloats(e.geometry, q.policy, q.prompt)
		for i := range parts {
			of[i] = parts[i][at : at+n]
		}
		if n > 0 && len(mine) > 0 {
			q.stats.Parts(layer, mine, of)
		}
		at += n
	}
	if len(nodes) == 1 {
		copy(h.sum, parts[0]) // with a single socket the tree has one node, the root
		done(nil)
		return
	}
	e.group.AllReduceTree(collective.OpID(h.batch.NextOp()), units, nodes, parts, h.sum, done)
}

// finishLatent lets the owners keep the rows that their policies choose.
func (h *handover) finishLatent(layer int) error {
	e, at := h.epoch, 0
	kept, stats := make([]kvcache.Kept, len(h.seqs)), make([]*kvcache.Statistics, len(h.seqs))
	sums := make([][]float32, len(h.seqs))
	for i, q := range h.seqs {
		n := kvcache.PartFloats(e.geometry, q.policy, q.prompt)
		sums[i], at = h.sum[at:at+n], at+n
	}
	e.pool.Run(len(h.seqs), func(i int) {
		if q := h.seqs[i]; q.owner == e.rank && !q.policy.KeepsAll() {
			stats[i] = kvcache.StatisticsOfSum(q.promptShard, layer, q.policy, e.score, sums[i])
			q.stats.Label(stats[i])
			kept[i] = q.policy.Keep(stats[i])
		}
	})
	for i, q := range h.seqs {
		switch {
		case q.owner != e.rank:
		case !q.policy.KeepsAll():
			if err := q.cache.Keep(q.promptShard, layer, 0, kept[i]); err != nil {
				return err
			}
			if err := h.observed(q, layer, 0, stats[i]); err != nil {
				return err
			}
		case layer == e.geometry.Layers-1: // all layers at once, after the policy's last choice
			if err := q.cache.Adopt(q.promptShard, 0); err != nil {
				return err
			}
		}
	}
	return nil
}
