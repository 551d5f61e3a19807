package kvcache

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/shoal-llm/shoal/tensor"
)

// squeezed keeps every token and reads few (Squeezed Attention, arXiv 2411.09688). At the end of
// prefill the keys of the context but for its last `obs` tokens are clustered, per KV head, and
// lie cluster behind cluster. A step compares its queries with the centroids, and attends exactly
// to the keys of clusters whose estimated share of the softmax (equation 1) is above one
// threshold, and to all tokens behind them. The threshold is the same in all layers and heads:
// that by which the last obs queries of the context, averaged, leave `sparsity` of the keys
// unread (appendix C).
//
// The last `tail` tokens of a prompt are the user's input: they are read as what is generated is,
// each choosing for itself, so that no cut of the prompt changes a bit. (The paper averages the
// choices of an input's tokens.) With levels=2 a fifth as many centroids of centroids are
// compared first: half of the keys, by their threshold, are ruled out (equations 2 and 3).
//
// All query heads of a KV head read what any of them chooses, so thresholds are set on the
// largest share of a group: then it is `sparsity` of the bytes that stay unread. Contexts
// longer than `segment` are clustered in equal parts of about that, which makes the time of
// clustering linear; the choice is made among all clusters.
var squeezed = method{"squeezed", []param{share("clusters", 50, 5, 500), {key: "levels", value: 1, least: 1, most: 2}, share("sparsity", 900, 0, 999),
	size("tail", 64, 1), size("obs", 100, 1), size("segment", 8192, 64)}, func(v []int) Parts {
	c := clusters{share: v[0], sparsity: v[2], tail: v[3], obs: v[4], segment: v[5]}
	if v[1] == 2 {
		c.coarse = max(1, v[0]/5)
	}
	return Parts{Arranger: c, Selector: c, Needs: Needs{Window: v[4], Queries: true}, Tail: v[3]}
}}

// clusters arranges a prompt, and selects from it.
type clusters struct {
	share, coarse, sparsity int // thousandths of keys; coarse 0: one level
	tail, obs, segment      int // tokens
}

// few is the least number of keys that are clustered.
func (c clusters) few() int { return (999+c.lowest())/c.lowest() + c.tail }

// lowest is the share of the smaller number of centroids.
func (c clusters) lowest() int {
	if c.coarse > 0 {
		return c.coarse
	}
	return c.share
}

// clustered is how many keys of a context are clustered: the first.
func (c clusters) clustered(context int) int {
	if n := context - c.obs; n >= c.few() {
		return n
	}
	return 0
}

// Arrange implements Arranger: clusters one behind the other, of each the tokens in order. The
// cluster that begins with the latest token comes first, so a new one begins where a position is
// lower than that before it.
func (c clusters) Arrange(s *Statistics) []int32 {
	n := c.clustered(s.Prompt)
	kept := make([]int32, 0, s.Prompt)
	if n > 0 {
		labels, found := make([]int32, n), int32(0)
		parts := max(1, (n+c.segment/2)/c.segment)
		v := make([]float32, s.Layout.VDim)
		for i := range parts {
			lo, hi, d := i*n/parts, (i+1)*n/parts, s.Layout.KDim
			keys := make([]float32, (hi-lo)*d)
			for pos := lo; pos < hi; pos++ {
				s.Layout.Get(s.Blocks[pos/tensor.BlockSlots], pos%tensor.BlockSlots, keys[(pos-lo)*d:][:d], v)
			}
			most := max(1, (hi-lo)*c.share/1000)
			for j, label := range kMeans(keys, d, most) {
				labels[lo+j] = found + label
			}
			found += int32(most)
		}
		members := make([][]int32, found)
		for pos, label := range labels {
			members[label] = append(members[label], int32(pos))
		}
		members = slices.DeleteFunc(members, func(m []int32) bool { return len(m) == 0 })
		slices.SortFunc(members, func(a, b []int32) int { return int(b[0] - a[0]) })
		for _, m := range members {
			kept = append(kept, m...)
		}
	}
	return span(kept, n, s.Prompt)
}

// Page implements Selector: tokens are chosen one by one.
func (c clusters) Page() int { return 1 }

// Reads implements Selector, as far as the threshold does what it was set for.
func (c clusters) Reads(slots int) int {
	behind := min(slots, c.obs+c.tail)
	return behind + (slots-behind)*(1000-c.sparsity)/1000
}

// kind is the type of the centroids.
func (c clusters) kind(l tensor.KVLayout) tensor.DType { return landmarks{}.kind(l) }

// Index implements Selector: centroids, the coarse ones first, of each the logarithm of the keys
// that it stands for, and where what it stands for begins.
func (c clusters) Index(l tensor.KVLayout) (bytes, slots int) {
	return l.LandmarkBytes(c.kind(l)) + placeBytes*tensor.BlockSlots, 1000 * tensor.BlockSlots / (c.share + c.coarse)
}

// Update implements Selector: what comes after the prompt is not indexed.
func (clusters) Update(tensor.KVLayout, [][]byte, [][]byte, int, int, *tensor.AttnScratch) {}

// squeezedIndex is the index of one head.
type squeezedIndex struct {
	l      tensor.KVLayout
	kind   tensor.DType
	blocks [][]byte
}

func (c clusters) index(l tensor.KVLayout, blocks [][]byte) squeezedIndex {
	return squeezedIndex{l, c.kind(l), blocks}
}

// The words of the first block: the numbers of centroids, coarse and fine, of clustered keys, and
// the logarithms of the thresholds.
const (
	coarseWord = iota
	fineWord
	keysWord
	coarseBound
	fineBound
)

func (x squeezedIndex) words() []uint64       { return x.l.LandmarkWords(x.kind, x.blocks[0]) }
func (x squeezedIndex) bound(i int) float32   { return math.Float32frombits(uint32(x.words()[i])) }
func (x squeezedIndex) set(i int, to float32) { x.words()[i] = uint64(math.Float32bits(to)) }
func (x squeezedIndex) logs(block int) []float32 {
	return x.l.LandmarkNumbers(x.kind, x.blocks[block])
}

// placeBytes are two numbers.
const placeBytes = 8

func (x squeezedIndex) place(i int) []byte {
	return x.blocks[i/tensor.BlockSlots][x.l.LandmarkBytes(x.kind)+i%tensor.BlockSlots*placeBytes:]
}

// begin is where what centroid i stands for begins: a slot, or of a coarse one a fine centroid.
func (x squeezedIndex) begin(i int) int { return int(binary.LittleEndian.Uint32(x.place(i))) }

// put makes centroid i stand for n keys from `begin` on.
func (x squeezedIndex) put(i int, key []float32, n, begin int) {
	x.l.SetLandmark(x.kind, x.blocks[i/tensor.BlockSlots], i%tensor.BlockSlots, key)
	x.logs(i / tensor.BlockSlots)[i%tensor.BlockSlots] = tensor.Log(float32(n))
	binary.LittleEndian.PutUint32(x.place(i), uint32(begin))
	binary.LittleEndian.PutUint32(x.place(i)[4:], uint32(n))
}

// SelectSlots implements slotSelector.
func (c clusters) SelectSlots(l tensor.KVLayout, index [][]byte, n int, q Queries, s *tensor.AttnScratch) []uint64 {
	if len(index) == 0 {
		return nil
	}
	x := c.index(l, index)
	coarse, fine, keys := int(x.words()[coarseWord]), int(x.words()[fineWord]), int(x.words()[keysWord])
	if keys == 0 {
		return nil
	}
	_, runs := s.Chosen(0, max(2, 2*coarse))
	runs = append(runs[:0], int32(coarse), int32(coarse+fine))
	if coarse > 0 {
		runs = x.survivors(coarse, fine, q, x.bound(coarseBound), s)
	}
	mask := s.Mask(n)
	clear(mask)
	scores, m := x.score(runs, q, s)
	for r := range q.Heads {
		row := scores[r*m:][:m]
		least := x.weigh(runs, row, s) + x.bound(fineBound)
		at := 0
		for k := 0; k < len(runs); k += 2 {
			for i := int(runs[k]); i < int(runs[k+1]); i++ {
				if row[at] > least {
					x.mark(mask, i)
				}
				at++
			}
		}
	}
	markSpan(mask, keys, n)
	return mask
}

// survivors are the runs of fine centroids whose coarse one any query head chooses.
func (x squeezedIndex) survivors(coarse, fine int, q Queries, bound float32, s *tensor.AttnScratch) []int32 {
	keys, runs := s.Chosen(coarse, 2*coarse)
	clear(keys)
	all := [2]int32{0, int32(coarse)}
	scores, m := x.score(all[:], q, s)
	for r := range q.Heads {
		row := scores[r*m:][:m]
		least := x.weigh(all[:], row, s) + bound
		for i, z := range row {
			if z > least {
				keys[i] = 1
			}
		}
	}
	return x.expand(keys, coarse, fine, runs)
}

// expand lists the runs of fine centroids of the coarse ones that have a key above 0.
func (x squeezedIndex) expand(keys []uint32, coarse, fine int, runs []int32) []int32 {
	runs = runs[:0]
	for i, chosen := range keys {
		if chosen == 0 {
			continue
		}
		lo, hi := x.begin(i), coarse+fine
		if i+1 < coarse {
			hi = x.begin(i + 1)
		}
		if k := len(runs); k > 0 && int(runs[k-1]) == lo {
			runs[k-1] = int32(hi)
		} else {
			runs = append(runs, int32(lo), int32(hi))
		}
	}
	return runs
}

// score are the logits of the queries to the centroids in runs, [Heads][n].
func (x squeezedIndex) score(runs []int32, q Queries, s *tensor.AttnScratch) (scores []float32, n int) {
	scores, n = s.ScoreLandmarkRuns(x.l, x.kind, x.blocks, runs, q.Rows, q.Heads)
	tensor.Scale(scores, q.Scale)
	return scores, n
}

// weigh is the logarithm of the denominator of equations 1 to 3: of one query head's logits, each
// as often as its centroid has keys.
func (x squeezedIndex) weigh(runs []int32, row []float32, s *tensor.AttnScratch) float32 {
	z := s.Row(len(row))
	copy(z, row)
	at := 0
	for k := 0; k < len(runs); k += 2 {
		for lo, hi := int(runs[k]), int(runs[k+1]); lo < hi; {
			in := lo % tensor.BlockSlots
			some := min(hi-lo, tensor.BlockSlots-in)
			tensor.Add(z[at:at+some], x.logs(lo / tensor.BlockSlots)[in:in+some])
			lo, at = lo+some, at+some
		}
	}
	return tensor.LogSumExp(z)
}

// mark sets the bits of the slots of fine centroid i.
func (x squeezedIndex) mark(mask []uint64, i int) {
	lo := x.begin(i)
	markSpan(mask, lo, lo+int(binary.LittleEndian.Uint32(x.place(i)[4:])))
}

// markSpan sets the bits [lo, hi).
func markSpan(mask []uint64, lo, hi int) {
	for lo < hi {
		in := lo % 64
		some := min(hi-lo, 64-in)
		mask[lo/64] |= ^uint64(0) >> (64 - some) << in
		lo += some
	}
}

// cluster is the part of Seal that makes the index of a policy of clusters: it needs all heads.
func (s *Store) cluster(run func(n int, f func(i int))) error {
	c, tables, observed := clusters{}, []*table(nil), 0
	for i := range s.tables {
		if x, ok := s.tables[i].rule.Selector.(clusters); ok {
			c, tables = x, append(tables, &s.tables[i])
			if s.tables[i].queries != nil {
				observed++
			}
		}
	}
	if len(tables) == 0 || c.clustered(s.prompt) == 0 {
		return nil
	}
	if observed > 0 && observed < len(tables) {
		return fmt.Errorf("%w: %d heads of %d have the queries that set the threshold", ErrRows, observed, len(tables))
	}
	keys := c.clustered(s.prompt)
	k := calibration{clusters: c, heads: make([]headShares, len(tables)), g: s.g, window: min(c.obs, s.prompt)}
	errs := make([]error, len(tables))
	run(len(tables), func(i int) { errs[i] = k.heads[i].build(&k, tables[i], keys) })
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if tables[0].queries != nil {
		k.thresholds(run)
		return nil
	}
	for i, t := range tables { // of a cache that was moved
		k.heads[i].x.set(fineBound, t.bounds[0])
		k.heads[i].x.set(coarseBound, t.bounds[1])
	}
	return nil
}

// boundsOf are the thresholds of a head, 0 before there are any.
func (s *Store) boundsOf(t *table) (bounds [2]float32) {
	c, blocks := t.rule.Selector.(clusters), t.planes[indexPlane].blocks
	if len(blocks) > 0 && c.clustered(s.prompt) > 0 {
		x := c.index(s.g.Layout, blocks)
		bounds = [2]float32{x.bound(fineBound), x.bound(coarseBound)}
	}
	return bounds
}

// calibration finds the thresholds of all heads.
type calibration struct {
	clusters
	g      Geometry
	window int
	heads  []headShares
}

// headShares are the centroids of one head, and what the calibrating queries give them.
type headShares struct {
	x            squeezedIndex
	queries      []float32
	scale        float32
	coarse, fine []float32 // the largest mean share of a query head
	sizes        []int     // keys of each centroid, the coarse ones first
}

// build fills the index of a head but for its thresholds.
func (h *headShares) build(k *calibration, t *table, keys int) error {
	begins, err := runsOf(t.Positions, keys)
	if err != nil {
		return fmt.Errorf("%w: layer %d, head %d: %w", ErrRows, t.Layer, t.Index, err)
	}
	l, fine := k.g.Layout, len(begins)
	if most := keys * k.share / 1000; fine > max(1, most) {
		return fmt.Errorf("%w: layer %d, head %d: %d clusters of %d keys, at most %d are possible", ErrRows, t.Layer, t.Index, fine, keys, most)
	}
	h.x, h.queries, h.scale = k.index(l, t.planes[indexPlane].blocks), t.queries, t.scale
	size := func(i int) int {
		if i+1 < fine {
			return begins[i+1] - begins[i]
		}
		return keys - begins[i]
	}
	means, key := make([]float32, fine*l.KDim), make([]float32, l.KDim)
	for i, begin := range begins {
		l.MeanKey(means[i*l.KDim:][:l.KDim], t.rows(), begin, begin+size(i), key)
	}
	coarse, order := 0, make([]int32, fine)
	for i := range order {
		order[i] = int32(i)
	}
	if k.coarse > 0 {
		coarse, order = h.group(k, means, size)
	}
	for j, i := range order {
		h.x.put(coarse+j, means[int(i)*l.KDim:][:l.KDim], size(int(i)), begins[i])
		h.sizes = append(h.sizes, size(int(i)))
	}
	words := h.x.words()
	words[coarseWord], words[fineWord], words[keysWord] = uint64(coarse), uint64(fine), uint64(keys)
	if t.queries == nil {
		return nil
	}
	h.fine = h.shares(k, []int32{int32(coarse), int32(coarse + fine)})
	if coarse > 0 {
		h.coarse = h.shares(k, []int32{0, int32(coarse)})
	}
	return nil
}

// group clusters the centroids and puts the coarse ones: order is that of the fine ones behind
// them.
func (h *headShares) group(k *calibration, means []float32, size func(i int) int) (coarse int, order []int32) {
	d, fine := k.g.Layout.KDim, len(means)/k.g.Layout.KDim
	most := min(fine, max(1, fine*k.clusters.coarse/k.share))
	unit := slices.Clone(means)
	members := make([][]int32, most)
	for i, label := range kMeans(unit, d, most) {
		members[label] = append(members[label], int32(i))
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

// shares are what the calibrating queries give the centroids in runs: the mean of each query head,
// of these the largest, times the queries.
func (h *headShares) shares(k *calibration, runs []int32) []float32 {
	s := scratches.Get().(*tensor.AttnScratch)
	defer scratches.Put(s)
	g, width := k.g.group(), k.g.group()*k.g.Layout.KDim
	n := 0
	for i := 0; i < len(runs); i += 2 {
		n += int(runs[i+1] - runs[i])
	}
	sums := make([]float32, g*n)
	for w := range k.window {
		scores, _ := h.x.score(runs, Queries{h.queries[w*width:][:width], g, h.scale}, s)
		for r := range g {
			row := scores[r*n:][:n]
			least := h.x.weigh(runs, row, s)
			for i, z := range row {
				sums[r*n+i] += tensor.Exp(z - least)
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

// thresholds sets those of all heads.
func (k *calibration) thresholds(run func(n int, f func(i int))) {
	var all []weighted
	coarse := float32(0)
	if k.clusters.coarse > 0 {
		for i := range k.heads {
			all = k.heads[i].weighted(all, 0, k.heads[i].coarse)
		}
		coarse = quantile(all, 500)
		run(len(k.heads), func(i int) { k.heads[i].prune(k, coarse) })
	}
	all = all[:0]
	for i := range k.heads {
		all = k.heads[i].weighted(all, len(k.heads[i].coarse), k.heads[i].fine)
	}
	fine := quantile(all, k.sparsity)
	window := tensor.Log(float32(k.window))
	for i := range k.heads {
		x := k.heads[i].x
		x.set(coarseBound, tensor.Log(coarse)-window)
		x.set(fineBound, tensor.Log(fine)-window)
	}
}

// prune makes the shares of fine centroids those of equation 3: of centroids whose coarse one is
// at most the threshold they are 0.
func (h *headShares) prune(k *calibration, bound float32) {
	coarse, keys := len(h.coarse), make([]uint32, len(h.coarse))
	for i, share := range h.coarse {
		if share > bound {
			keys[i] = 1
		}
	}
	runs := h.x.expand(keys, coarse, len(h.fine), make([]int32, 0, 2*coarse))
	left, at := h.shares(k, runs), 0
	clear(h.fine)
	for i := 0; i < len(runs); i += 2 {
		at += copy(h.fine[int(runs[i])-coarse:int(runs[i+1])-coarse], left[at:])
	}
}

// weighted is a share of so many keys.
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

// quantile is the lowest share that is not below those of so many thousandths of the keys.
func quantile(all []weighted, thousandths int) float32 {
	slices.SortFunc(all, func(a, b weighted) int {
		switch x, y := ordered(a.share), ordered(b.share); {
		case x < y:
			return -1
		case x > y:
			return 1
		}
		return 0
	})
	total, below := 0, 0
	if thousandths == 0 {
		return 0 // all are read
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

// runsOf is where the clusters of the first n slots begin. Their positions must be [0, n), each
// once, and slots behind them hold the token of their place.
func runsOf(positions []int32, n int) (begins []int, err error) {
	seen := make([]uint64, (n+63)/64)
	for slot, pos := range positions[:n] {
		if pos < 0 || int(pos) >= n || seen[pos/64]>>(pos%64)&1 != 0 {
			return nil, fmt.Errorf("slot %d of %d clustered ones has position %d", slot, n, pos)
		}
		seen[pos/64] |= 1 << (pos % 64)
		if slot == 0 || pos < positions[slot-1] {
			begins = append(begins, slot)
		}
	}
	return begins, nil
}
