package step

import (
	"errors"
	"slices"
	"time"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/actors/socket/caches"
	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// handover moves the cache of a prompt from all sockets to the sequence's owner, one layer per
// exchange, to limit the bytes in flight. The owner adopts or compresses its own heads and
// imports the others.
type handover struct {
	epoch *Epoch
	batch *layer.Batch       // batch of the step, which numbers its collectives
	seqs  []*caches.Sequence // in the order of the plan, the same on every rank
	heads topology.Range     // heads of the current layer that move
	kept  []kvcache.Kept     // choice per (sequence, own head) of the current layer
	stats []*kvcache.Statistics
	rankBuffers
	sum []float32 // latent attention: attention statistics of all sequences, summed over all sockets

	observing, choosing time.Duration
}

// of returns the current heads that a rank has.
func (h *handover) of(rank int) topology.Range {
	has := h.epoch.Place.Slices[rank].KVHeads
	lo := min(max(has.Lo, h.heads.Lo), has.Hi)
	return topology.Range{Lo: lo, Hi: max(lo, min(has.Hi, h.heads.Hi))}
}

// choose lets the policies choose the tokens of one layer, for all of this rank's heads at once. It
// computes the attention of the observation window first.
func (h *handover) choose(layer int) {
	began := time.Now()
	e := h.epoch
	mine := h.of(e.Rank)
	h.kept = make([]kvcache.Kept, len(h.seqs)*mine.Len())
	h.stats = make([]*kvcache.Statistics, len(h.kept))
	e.pool.Run(len(h.kept), func(i int) {
		q, head := h.seqs[i/mine.Len()], mine.Lo+i%mine.Len()
		if rule := e.Geometry.Rule(layer, q.Policy); q.Owner != e.Rank || !rule.KeepsAll() {
			h.stats[i] = q.Stats.Statistics(q.PromptShard, layer, head, e.score)
			if !rule.Needs.Queries {
				h.stats[i].Vote(rule.Needs.Window)
			}
		}
	})
	voted := time.Now()
	e.pool.Run(len(h.kept), func(i int) {
		if h.stats[i] != nil {
			h.kept[i] = e.Geometry.Rule(layer, h.seqs[i/mine.Len()].Policy).Keep(h.stats[i])
		}
	})
	h.observing += voted.Sub(began)
	h.choosing += time.Since(voted)
}

// keep returns the choice for one head.
func (h *handover) keep(seq, head int) kvcache.Kept {
	mine := h.of(h.epoch.Rank)
	return h.kept[seq*mine.Len()+head-mine.Lo]
}

// queries returns the query statistics of one head that the owner gets.
func (h *handover) queries(seq, head int) *kvcache.Statistics {
	mine := h.of(h.epoch.Rank)
	return h.stats[seq*mine.Len()+head-mine.Lo]
}

// rowBytes returns the size of the heads of a layer on the wire to the owner: their rows, and the query
// statistics if the policy needs them on the owner.
func (h *handover) rowBytes(q *caches.Sequence, layer int, heads topology.Range) int {
	g := h.epoch.Geometry
	rule := g.Rule(layer, q.Policy)
	return heads.Len() * (rule.Slots(q.Prompt, q.Prompt)*kvcache.RowBytes(g, layer, rule) + kvcache.QueryBytes(g, rule, q.Prompt))
}

// start packs one layer and begins its exchange.
func (h *handover) start(layer int, done func(error)) {
	e, n := h.epoch, len(h.epoch.Place.Slices)
	if e.Geometry.Units > 0 {
		h.startLatent(layer, done)
		return
	}
	h.reset(n, func(r int) (bytes int) {
		for _, q := range h.seqs {
			if q.Owner == e.Rank && r != e.Rank {
				bytes += h.rowBytes(q, layer, h.of(r))
			}
		}
		return bytes
	})
	mine := h.of(e.Rank)
	h.choose(layer)
	for i, q := range h.seqs {
		if q.Owner == e.Rank {
			continue
		}
		for head := mine.Lo; head < mine.Hi; head++ {
			rule := e.Geometry.Rule(layer, q.Policy)
			h.send[q.Owner] = q.PromptShard.Export(h.send[q.Owner], rule, layer, head, h.keep(i, head))
			h.send[q.Owner] = kvcache.ExportQueries(h.send[q.Owner], rule, h.queries(i, head))
		}
	}
	if n == 1 {
		done(nil)
		return
	}
	e.Group.AllToAll(collective.OpID(h.batch.NextOp()), h.send, h.recv, done)
}

// finish stores one layer in the owners' caches.
func (h *handover) finish(layer int) error {
	e := h.epoch
	if e.Geometry.Units > 0 {
		return h.finishLatent(layer)
	}
	at := make([]int, len(e.Place.Slices))
	for i, q := range h.seqs {
		if q.Owner != e.Rank {
			continue
		}
		for r := range e.Place.Slices {
			if r == e.Rank {
				if err := h.keepOwn(i, layer, h.of(r)); err != nil {
					return err
				}
				continue
			}
			size := h.rowBytes(q, layer, topology.Range{Lo: 0, Hi: 1})
			rows := size - kvcache.QueryBytes(e.Geometry, e.Geometry.Rule(layer, q.Policy), q.Prompt)
			for head := h.of(r).Lo; head < h.of(r).Hi; head++ {
				in := h.recv[r][at[r] : at[r]+size]
				if err := q.Cache.Import(layer, head, 0, in[:rows]); err != nil {
					return err
				}
				if err := q.Cache.ImportQueries(layer, head, e.score, in[rows:]); err != nil {
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
	moved, errs := !e.Geometry.Rule(layer, q.Policy).KeepsAll(), make([]error, heads.Len())
	if moved {
		e.pool.Run(heads.Len(), func(n int) { errs[n] = q.Cache.Keep(q.PromptShard, layer, heads.Lo+n, h.keep(i, heads.Lo+n)) })
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for head := heads.Lo; head < heads.Hi; head++ {
		if q.Policy.KeepsAll() && layer == e.Geometry.Layers-1 { // all layers at once, after the policy's last choice
			if err := q.Cache.Adopt(q.PromptShard, head); err != nil {
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
func (h *handover) observed(q *caches.Sequence, layer, head int, s *kvcache.Statistics) error {
	return q.Cache.ImportQueries(layer, head, h.epoch.score, kvcache.ExportQueries(nil, h.epoch.Geometry.Rule(layer, q.Policy), s))
}

// seal ends the hand-over: it frees the prompt's full cache.
func (h *handover) seal() error {
	for _, q := range h.seqs {
		if q.Cache != nil {
			if err := q.Cache.SealOn(h.epoch.pool.Run, h.epoch.ropesUntil(q.Prompt)); err != nil {
				return err
			}
		}
		if q.PromptShard != nil {
			q.PromptShard.Release()
			q.PromptShard = nil
		}
		q.Stats.Release()
		q.Stats = nil
		delete(h.epoch.handovers, q)
	}
	return nil
}

// startLatent begins the hand-over of one layer of latent attention. Every socket in prefill has all
// rows of the prompt, and so has the owner: no row moves. The sockets sum the attention statistics,
// which each has for its own query heads (SnapStream, arXiv 2511.03092, section 4.2).
func (h *handover) startLatent(layer int, done func(error)) {
	e := h.epoch
	units := e.Geometry.Units
	floats := 0
	for _, q := range h.seqs {
		floats += kvcache.PartFloats(e.Geometry, q.Policy, q.Prompt)
	}
	h.sum = slices.Grow(h.sum[:0], floats)[:floats]
	if floats == 0 {
		done(nil)
		return
	}
	nodes := make([][]tensor.Span, len(e.Place.Slices))
	for r, s := range e.Place.Slices {
		nodes[r] = tensor.Subtrees(s.KVHeads.Lo, s.KVHeads.Hi, units)
	}
	mine := nodes[e.Rank]
	parts := make([][]float32, len(mine))
	for i := range parts {
		parts[i] = make([]float32, floats)
	}
	at, of := 0, make([][]float32, len(parts))
	for _, q := range h.seqs {
		n := kvcache.PartFloats(e.Geometry, q.Policy, q.Prompt)
		for i := range parts {
			of[i] = parts[i][at : at+n]
		}
		if n > 0 && len(mine) > 0 {
			q.Stats.Parts(layer, mine, of)
		}
		at += n
	}
	if len(nodes) == 1 {
		copy(h.sum, parts[0]) // with a single socket the tree has one node, the root
		done(nil)
		return
	}
	e.Group.AllReduceTree(collective.OpID(h.batch.NextOp()), units, nodes, parts, h.sum, done)
}

// finishLatent lets the owners keep the rows that their policies choose.
func (h *handover) finishLatent(layer int) error {
	e, at := h.epoch, 0
	kept, stats := make([]kvcache.Kept, len(h.seqs)), make([]*kvcache.Statistics, len(h.seqs))
	sums := make([][]float32, len(h.seqs))
	for i, q := range h.seqs {
		n := kvcache.PartFloats(e.Geometry, q.Policy, q.Prompt)
		sums[i], at = h.sum[at:at+n], at+n
	}
	e.pool.Run(len(h.seqs), func(i int) {
		if q := h.seqs[i]; q.Owner == e.Rank && !q.Policy.KeepsAll() {
			stats[i] = kvcache.StatisticsOfSum(q.PromptShard, layer, q.Policy, e.score, sums[i])
			q.Stats.Label(stats[i])
			kept[i] = q.Policy.Keep(stats[i])
		}
	})
	for i, q := range h.seqs {
		switch {
		case q.Owner != e.Rank:
		case !q.Policy.KeepsAll():
			if err := q.Cache.Keep(q.PromptShard, layer, 0, kept[i]); err != nil {
				return err
			}
			if err := h.observed(q, layer, 0, stats[i]); err != nil {
				return err
			}
		case layer == e.Geometry.Layers-1: // all layers at once, after the policy's last choice
			if err := q.Cache.Adopt(q.PromptShard, 0); err != nil {
				return err
			}
		}
	}
	return nil
}
