package step

import (
	"errors"
	"slices"
	"time"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/actors/socket/caches"
	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/rowblock"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// handover moves the cache of a prompt from all sockets to the sequence's owner. An exchange has one layer, or
// several of a short prompt (joined). The owner adopts or compresses its own heads and imports the others.
type handover struct {
	epoch  *Epoch
	batch  *layer.Batch       // batch of the step, which numbers its collectives
	seqs   []*caches.Sequence // in the order of the plan, the same on every rank
	heads  topology.Range     // heads of the current layers that move
	layers tensor.Span        // of the current exchange
	chosen []chosen           // by layer of the current exchange
	rankBuffers
	sum  []float32   // latent attention: attention statistics of all sequences, summed over all sockets
	sums [][]float32 // sum per sequence

	observing, choosing time.Duration
}

// chosen holds the rows that the policies keep of one layer, per (sequence, own head).
type chosen struct {
	kept    []kvcache.Kept
	stats   []*kvcache.Statistics // nil: not observed yet
	budgets [][]int               // per sequence, the blocks of each head (budgets.go); nil: equal ones
}

// of returns the current heads that a rank has. In latent attention it has the one head of all.
func (h *handover) of(rank int) topology.Range {
	if h.epoch.Geometry.Units > 0 {
		return topology.Range{Lo: 0, Hi: 1}
	}
	has := h.epoch.Place.Slices[rank].KVHeads
	lo := min(max(has.Lo, h.heads.Lo), has.Hi)
	return topology.Range{Lo: lo, Hi: max(lo, min(has.Hi, h.heads.Hi))}
}

// observe computes the attention of the observation window in one layer, for all of this rank's heads at once.
func (h *handover) observe(layer int) {
	e, began := h.epoch, time.Now()
	mine, c := h.of(e.Rank), &h.chosen[layer-h.layers.Lo]
	c.stats = make([]*kvcache.Statistics, len(h.seqs)*mine.Len())
	e.pool.Run(len(c.stats), func(i int) {
		q, head := h.seqs[i/mine.Len()], mine.Lo+i%mine.Len()
		rule := e.Geometry.Rule(layer, q.Policy)
		switch {
		case q.Owner == e.Rank && rule.KeepsPrompt():
			return
		case e.Geometry.Units == 0:
			c.stats[i] = q.Stats.Statistics(q.PromptShard, layer, head, e.Score)
		case q.Owner == e.Rank:
			c.stats[i] = kvcache.StatisticsOfSum(q.PromptShard, layer, q.Policy, e.Score, h.sums[i])
			q.Stats.Label(c.stats[i])
		default:
			return
		}
		if !rule.Needs.Queries {
			c.stats[i].Vote(rule.Needs)
		}
	})
	h.observing += time.Since(began)
}

// choose lets the policies choose the tokens of one layer, for all of this rank's heads at once.
func (h *handover) choose(layer int) {
	if layer >= h.epoch.Geometry.Layers { // a recurrent state
		return
	}
	c, mine := &h.chosen[layer-h.layers.Lo], h.of(h.epoch.Rank)
	if c.stats == nil {
		h.observe(layer)
	}
	began := time.Now()
	c.kept = make([]kvcache.Kept, len(c.stats))
	h.epoch.pool.Run(len(c.kept), func(i int) {
		if c.stats[i] != nil {
			c.kept[i] = h.rule(i/mine.Len(), layer, mine.Lo+i%mine.Len()).Keep(c.stats[i])
			c.stats[i].ForgetRows()
		}
	})
	h.choosing += time.Since(began)
}

// selection returns the rows of one sequence in one layer that its owner gets from this rank.
func (h *handover) selection(seq, layer int) kvcache.Selection {
	q, mine, c := h.seqs[seq], h.of(h.epoch.Rank), h.chosen[layer-h.layers.Lo]
	return kvcache.Selection{From: q.PromptShard, Policy: q.Policy, Kept: func(head int) (kvcache.Kept, *kvcache.Statistics) {
		at := seq*mine.Len() + head - mine.Lo
		return c.kept[at], c.stats[at]
	}}
}

// blocks names the rows that a rank sends to the owner of a sequence: those of all its heads, or of each
// head if they have budgets of their own.
func (h *handover) blocks(seq, layer, rank int) []rowblock.Block {
	g, q, heads := h.epoch.Geometry, h.seqs[seq], tensor.Span(h.of(rank))
	if h.budget(seq, layer) == nil {
		return []rowblock.Block{kvcache.PromptBlock(g, q.Policy, q.Prompt, layer, heads)}
	}
	of := make([]rowblock.Block, 0, heads.Len())
	for head := heads.Lo; head < heads.Hi; head++ {
		of = append(of, kvcache.PromptBlock(g, h.rule(seq, layer, head), q.Prompt, layer, tensor.Span{Lo: head, Hi: head + 1}))
	}
	return of
}

// start packs the layers of divide and begins their exchange.
func (h *handover) start(layers tensor.Span, done func(error)) {
	e, n := h.epoch, len(h.epoch.Place.Slices)
	if e.Geometry.Units > 0 {
		h.startLatent(layers.Lo, done)
		return
	}
	h.reset(n, func(r int) (bytes int) {
		for i, q := range h.seqs {
			for l := layers.Lo; l < layers.Hi && q.Owner == e.Rank && r != e.Rank; l++ {
				for _, b := range h.blocks(i, l, r) {
					bytes += b.Bytes(q.Cache)
				}
			}
		}
		return bytes
	})
	for l := layers.Lo; l < layers.Hi; l++ {
		if err := h.pack(l); err != nil {
			done(err)
			return
		}
	}
	if n == 1 {
		done(nil)
		return
	}
	e.Group.AllToAll(collective.OpID(h.batch.NextOp()), h.send, h.recv, done)
}

// pack appends this rank's rows of one layer to the messages for their owners.
func (h *handover) pack(layer int) error {
	e := h.epoch
	h.choose(layer)
	for i, q := range h.seqs {
		if q.Owner == e.Rank {
			continue
		}
		for _, b := range h.blocks(i, layer, e.Rank) {
			var err error
			if h.send[q.Owner], err = b.Append(h.send[q.Owner], h.selection(i, layer)); err != nil {
				return err
			}
		}
	}
	return nil
}

// finish stores the layers in the owners' caches.
func (h *handover) finish() error {
	rows := slices.Clone(h.recv)
	for l := h.layers.Lo; l < h.layers.Hi; l++ {
		if h.epoch.Geometry.Units > 0 {
			h.choose(l)
		}
		if err := h.store(l, rows); err != nil {
			return err
		}
	}
	return nil
}

// store stores one layer, the first of the rows from each rank.
func (h *handover) store(layer int, rows [][]byte) error {
	e := h.epoch
	for i, q := range h.seqs {
		if q.Owner != e.Rank {
			continue
		}
		for r := range e.Place.Slices {
			var err error
			switch {
			case r == e.Rank:
				err = h.keepOwn(i, layer)
			case e.Geometry.Units == 0:
				for _, b := range h.blocks(i, layer, r) {
					if rows[r], err = b.Store(rows[r], q.Cache); err != nil {
						break
					}
				}
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// keepOwn stores this rank's own rows of a sequence that it owns.
func (h *handover) keepOwn(i, layer int) error {
	e, q := h.epoch, h.seqs[i]
	heads := h.of(e.Rank)
	if layer >= e.Geometry.Layers {
		return q.Cache.KeepState(q.PromptShard, layer-e.Geometry.Layers, heads)
	}
	from := h.selection(i, layer)
	moved, errs := !e.Geometry.Rule(layer, q.Policy).KeepsPrompt(), make([]error, heads.Len())
	if moved {
		e.pool.Run(heads.Len(), func(n int) {
			kept, _ := from.Kept(heads.Lo + n)
			errs[n] = q.Cache.Keep(q.PromptShard, layer, heads.Lo+n, kept)
		})
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for head := heads.Lo; head < heads.Hi; head++ {
		if q.Policy.KeepsPrompt() && layer == e.Geometry.Layers-1 { // all layers at once, after the policy's last choice
			if err := q.Cache.Adopt(q.PromptShard, head); err != nil {
				return err
			}
		}
		if moved {
			_, seen := from.Kept(head)
			if err := q.Cache.KeepQueries(seen); err != nil {
				return err
			}
		}
	}
	return nil
}

// seal ends the hand-over: it frees the prompt's full cache.
func (h *handover) seal() error {
	for _, q := range h.seqs {
		if q.Cache != nil {
			if err := q.Cache.SealOn(h.epoch.pool.Run, h.epoch.ropesUntil(q.Prompt)); err != nil {
				return err
			}
		}
		q.ReleasePrompt()
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
	floats, n := 0, make([]int, len(h.seqs))
	for i, q := range h.seqs {
		n[i] = kvcache.PartFloats(e.Geometry, q.Policy, q.Prompt)
		floats += n[i]
	}
	h.sum = slices.Grow(h.sum[:0], floats)[:floats]
	h.sums = h.sums[:0]
	for rest := h.sum; len(h.sums) < len(n); rest = rest[n[len(h.sums)-1]:] {
		h.sums = append(h.sums, rest[:n[len(h.sums)]])
	}
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
	for i, q := range h.seqs {
		for j := range parts {
			of[j] = parts[j][at : at+n[i]]
		}
		if n[i] > 0 && len(mine) > 0 {
			q.Stats.Parts(layer, mine, of)
		}
		at += n[i]
	}
	if len(nodes) == 1 {
		copy(h.sum, parts[0]) // with a single socket the tree has one node, the root
		done(nil)
		return
	}
	e.Group.AllReduceTree(collective.OpID(h.batch.NextOp()), units, nodes, parts, h.sum, done)
}
