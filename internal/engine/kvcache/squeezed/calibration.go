package squeezed

import (
	"errors"
	"fmt"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/rowblock"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/topk"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/engine/tensor/f32"
)

// built is the index of a store.
type built struct {
	clusters
	s    *kvcache.Store
	keys int // clustered keys of a head
	*calibration
	recalled *[2]float32 // thresholds that were computed before, the coarse one first; nil: none
}

// calibration computes the thresholds of all heads. It is dropped with the last piece.
type calibration struct {
	window int
	tables [][2]int // layer and head
	heads  []headShares
	bound  float32 // threshold of the coarse centroids
}

// Open implements kvcache.PromptIndex.
func (c clusters) Open(s *kvcache.Store, _ bool) (kvcache.StoreIndex, error) {
	return &built{clusters: c, s: s, keys: c.arranged(s.Prompt())}, nil
}

// begin lists the heads with an index.
func (b *built) begin() {
	b.calibration = &calibration{window: min(b.obs, b.s.Prompt())}
	g := b.s.Geometry()
	for layer := range g.Layers {
		for head := 0; head < g.KVHeads && b.s.Rule(layer).Index != nil; head++ {
			b.tables = append(b.tables, [2]int{layer, head})
		}
	}
	b.heads = make([]headShares, len(b.tables))
	if b.calibrates() {
		b.recallThresholds()
	}
}

// Build implements kvcache.StoreIndex.
func (b *built) Build(piece int, run kvcache.Run, _ kvcache.Ropes) error {
	if b.keys == 0 {
		return nil
	}
	if b.calibration == nil {
		b.begin()
	}
	g := b.s.Geometry()
	layer, heads, moved := g.Moved(piece)
	if !moved {
		layer, heads = piece-g.Layers*kvcache.Quarters, tensor.Span{Lo: 0, Hi: g.KVHeads}
	}
	lo := slices.IndexFunc(b.tables, func(t [2]int) bool { return t[0] == layer && t[1] >= heads.Lo })
	hi := lo
	for lo >= 0 && hi < len(b.tables) && b.tables[hi][0] == layer && b.tables[hi][1] < heads.Hi {
		hi++
	}
	switch {
	case moved:
		errs := make([]error, hi-lo)
		run(len(errs), func(i int) { errs[i] = b.build(lo + i) })
		return errors.Join(errs...)
	case b.coarse > 0 && layer < g.Layers:
		if !b.calibrates() || b.recalled != nil {
			return nil
		}
		if layer == 0 {
			b.bound = b.quantile(500, func(h *headShares) (int, []float32) { return 0, h.coarse })
		}
		run(hi-lo, func(i int) { b.prune(&b.heads[lo+i]) })
		return nil
	}
	switch {
	case b.recalled != nil:
		b.set(b.recalled[0], b.recalled[1])
	case b.calibrates():
		b.thresholds()
	}
	b.calibration = nil
	return nil
}

// headShares are the centroids of one head, and their shares by the calibrating queries.
type headShares struct {
	x            index
	queries      []float32
	score        tensor.Score
	coarse, fine []float32 // the largest mean share over the query heads
	sizes        []int     // number of keys of each centroid, the coarse ones first
}

// calibrates reports whether the hand-over brought the queries that set the thresholds. The index of
// a cache that was moved has them already.
func (b *built) calibrates() bool {
	return len(b.tables) > 0 && b.s.Queries(b.tables[0][0], b.tables[0][1]) != nil
}

// build fills the index of a head except for its thresholds.
func (b *built) build(table int) error {
	layer, head := b.tables[table][0], b.tables[table][1]
	bad := func(err error) error {
		return fmt.Errorf("%w: layer %d, head %d: %w", rowblock.Err, layer, head, err)
	}
	begins, err := runsOf(b.s.Head(layer, head).Positions, b.keys)
	if err != nil {
		return bad(err)
	}
	h, l, fine := &b.heads[table], b.s.Layout(), len(begins)
	if most := b.most(0, b.keys); fine > most {
		return bad(fmt.Errorf("%d clusters of %d keys, at most %d are possible", fine, b.keys, most))
	}
	h.x, h.queries = b.indexOf(l, b.s.IndexBlocks(layer, head)), b.s.Queries(layer, head)
	h.score = b.s.ScoreOf(layer, head)
	if (h.queries != nil) != b.calibrates() {
		return bad(errors.New("only some heads have the queries that set the threshold"))
	}
	size := func(i int) int {
		if i+1 < fine {
			return begins[i+1] - begins[i]
		}
		return b.keys - begins[i]
	}
	var groups []int32
	if b.coarse > 0 {
		if groups, err = h.x.received(fine, b.groups(fine)); err != nil {
			return bad(err)
		}
	}
	means, key := make([]float32, fine*l.KDim), make([]float32, l.KDim)
	for i, begin := range begins {
		l.MeanKey(means[i*l.KDim:][:l.KDim], b.s.Blocks(layer, head), begin, begin+size(i), key)
	}
	coarse, order := h.group(b, means, groups, size)
	for j, i := range order {
		h.x.put(coarse+j, means[int(i)*l.KDim:][:l.KDim], size(int(i)), begins[i])
		h.sizes = append(h.sizes, size(int(i)))
	}
	words := h.x.words()
	words[coarseWord], words[fineWord], words[keysWord] = uint64(coarse), uint64(fine), uint64(b.keys)
	switch {
	case h.queries == nil || b.recalled != nil:
	case coarse > 0: // prune fills fine
		h.coarse, h.fine = b.shares(h, []int32{0, int32(coarse)}), make([]float32, fine)
	default:
		h.fine = b.shares(h, []int32{0, int32(fine)})
	}
	return nil
}

// group stores the coarse centroids. order is the order of the fine ones after them.
func (h *headShares) group(b *built, means []float32, groups []int32, size func(i int) int) (coarse int, order []int32) {
	d := b.s.Layout().KDim
	fine := len(means) / d
	if groups == nil {
		for i := range fine {
			order = append(order, int32(i))
		}
		return 0, order
	}
	members := make([][]int32, b.groups(fine))
	for i, group := range groups {
		members[group] = append(members[group], int32(i))
	}
	members = slices.DeleteFunc(members, func(m []int32) bool { return len(m) == 0 })
	coarse = len(members)
	for j, m := range members {
		keys, mean := 0, make([]float32, d)
		for _, i := range m {
			keys += size(int(i))
			for e, x := range means[int(i)*d:][:d] {
				mean[e] += x
			}
		}
		for e := range mean {
			mean[e] /= float32(len(m))
		}
		h.x.put(j, mean, keys, coarse+len(order))
		h.sizes = append(h.sizes, keys)
		order = append(order, m...)
	}
	return coarse, order
}

// shares returns the share of attention that the calibrating queries give to each centroid in runs.
// It averages over the queries of each query head, takes the largest value of the heads, and
// multiplies it by the number of queries.
func (b *built) shares(h *headShares, runs []int32) []float32 {
	s := scratches.Get().(*tensor.AttnScratch)
	defer scratches.Put(s)
	g := max(1, b.s.Geometry().Group)
	width := g * b.s.Layout().KDim
	n := 0
	for i := 0; i < len(runs); i += 2 {
		n += int(runs[i+1] - runs[i])
	}
	sums := make([]float32, g*n)
	for w := range b.window {
		scores, _ := h.x.score(runs, kvcache.Queries{Rows: h.queries[w*width:][:width], Heads: g, Score: h.score}, s)
		for r := range g {
			row := scores[r*n:][:n]
			least := h.x.weigh(runs, row, h.score, r, s.Row(n))
			for i, z := range row {
				sums[r*n+i] += f32.Exp(z - least)
			}
		}
	}
	best := sums[:n]
	for r := 1; r < g; r++ {
		for i, x := range sums[r*n:][:n] {
			best[i] = max(best[i], x)
		}
	}
	return best
}

// thresholds sets the thresholds of all heads.
func (b *built) thresholds() {
	fine := b.quantile(b.sparsity, func(h *headShares) (int, []float32) { return len(h.sizes) - len(h.fine), h.fine })
	window := f32.Log(float32(b.window))
	coarseLog, fineLog := f32.Log(b.bound)-window, f32.Log(fine)-window
	b.set(coarseLog, fineLog)
	b.keepThresholds(coarseLog, fineLog)
}

// set stores the thresholds in the indexes of all heads.
func (b *built) set(coarse, fine float32) {
	for i := range b.heads {
		b.heads[i].x.set(coarseBound, coarse)
		b.heads[i].x.set(fineBound, fine)
	}
}

// quantile returns the quantile of the shares of all heads. For one head, of returns the shares of
// successive centroids and the index of the first of these.
func (k *calibration) quantile(thousandths int, of func(h *headShares) (first int, shares []float32)) float32 {
	var all []weighted
	for i := range k.heads {
		first, shares := of(&k.heads[i])
		all = k.heads[i].weighted(all, first, shares)
	}
	return quantile(all, thousandths)
}

// prune computes the shares of fine centroids by equation 3. They are 0 if the share of the coarse
// centroid is at most the threshold.
func (b *built) prune(h *headShares) {
	coarse, keys := len(h.coarse), make([]uint32, len(h.coarse))
	for i, share := range h.coarse {
		if share > b.bound {
			keys[i] = 1
		}
	}
	runs := h.x.expand(keys, coarse, len(h.fine), make([]int32, 0, 2*coarse))
	left, at := b.shares(h, runs), 0
	clear(h.fine)
	for i := 0; i < len(runs); i += 2 {
		at += copy(h.fine[int(runs[i])-coarse:int(runs[i+1])-coarse], left[at:])
	}
}

// weighted is the share of a number of keys.
type weighted struct {
	share float32
	keys  int
}

// weighted appends the shares of the centroids from first on.
func (h *headShares) weighted(all []weighted, first int, shares []float32) []weighted {
	for i, share := range shares {
		all = append(all, weighted{share, h.sizes[first+i]})
	}
	return all
}

// quantile returns the lowest share that is at least as high as those of the given thousandths of the keys.
func quantile(all []weighted, thousandths int) float32 {
	slices.SortFunc(all, func(a, b weighted) int {
		switch x, y := topk.Ordered(a.share), topk.Ordered(b.share); {
		case x < y:
			return -1
		case x > y:
			return 1
		}
		return 0
	})
	total, below := 0, 0
	if thousandths == 0 {
		return 0 // every key is read
	}
	for _, w := range all {
		total += w.keys
	}
	for _, w := range all {
		if below += w.keys; below*1000 >= total*thousandths {
			return w.share
		}
	}
	return 0
}
