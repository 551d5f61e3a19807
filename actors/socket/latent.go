package socket

import (
	"slices"

	"shoal/collective"
	"shoal/kvcache"
	"shoal/tensor"
	"shoal/topology"
)

// startLatent begins the hand-over of one layer of latent attention. Every socket
// that read the prompt holds its rows already, the owner too, so no row moves: what
// is summed over the sockets is what the policies look at, which each socket found
// for its own query heads (SnapStream, arXiv 2511.03092, section 4.2).
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
			q.seen.Parts(layer, mine, of)
		}
		at += n
	}
	if len(nodes) == 1 {
		copy(h.sum, parts[0]) // of one socket there is one node, the root
		done(nil)
		return
	}
	e.group.AllReduceTree(collective.OpID(h.batch.NextOp()), units, nodes, parts, h.sum, done)
}

// finishLatent lets the owners keep what their policies choose from their own rows.
func (h *handover) finishLatent(layer int) error {
	e, at := h.epoch, 0
	kept := make([]kvcache.Kept, len(h.seqs))
	sums := make([][]float32, len(h.seqs))
	for i, q := range h.seqs {
		n := kvcache.PartFloats(e.geometry, q.policy, q.prompt)
		sums[i], at = h.sum[at:at+n], at+n
	}
	e.pool.Run(len(h.seqs), func(i int) {
		if q := h.seqs[i]; q.owner == e.rank && !q.policy.KeepsAll() {
			kept[i] = q.policy.Keep(kvcache.StatisticsOfSum(q.part, layer, q.policy, e.scale, sums[i]))
		}
	})
	for i, q := range h.seqs {
		switch {
		case q.owner != e.rank:
		case !q.policy.KeepsAll():
			if err := q.own.Keep(q.part, layer, 0, kept[i]); err != nil {
				return err
			}
		case layer == e.geometry.Layers-1: // all layers at once, when no policy chooses from them any more
			if err := q.own.Adopt(q.part, 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// promptHeads are the KV heads of a prompt whose rows a socket keeps.
func (e *epoch) promptHeads(owner int) tensor.Span {
	mine := e.place.Slices[e.rank].KVHeads
	if e.geometry.Units == 0 {
		return tensorSpan(mine)
	}
	return tensor.Span{Lo: 0, Hi: e.geometry.PromptHeads(mine.Len(), owner == e.rank)}
}

func tensorSpan(r topology.Range) tensor.Span { return tensor.Span{Lo: r.Lo, Hi: r.Hi} }
