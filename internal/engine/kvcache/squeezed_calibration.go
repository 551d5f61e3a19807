package kvcache

import (
	"errors"
	"fmt"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Index does a piece of the owner's index before Seal, which does all remaining ones: piece number
// piece of the hand-over of [Clustering], for layers whose rows have arrived.
func (s *Store) Index(piece int, run func(n int, f func(i int))) error {
	if s.sealed || s.pending == 0 || piece != s.indexed || s.policy.Arranger == nil {
		return fmt.Errorf("kvcache: piece %d of an index after %d, of a store that is open: %v", piece, s.indexed, s.pending > 0)
	}
	s.indexed++
	return s.policy.Arranger.finish(s, piece, run)
}

// finish implements Arranger.
func (c clusters) finish(s *Store, piece int, run func(n int, f func(i int))) error {
	k := s.calibration
	if k == nil {
		k = &calibration{clusters: c, g: s.g, window: min(c.obs, s.prompt)}
		for i := range s.tables {
			if t := &s.tables[i]; t.rule.Arranger != nil {
				k.tables = append(k.tables, t)
			}
		}
		k.heads, s.calibration = make([]headShares, len(k.tables)), k
	}
	layer, heads, moved := s.g.Moved(piece)
	if !moved {
		layer, heads = piece-s.g.Layers*quarters, s.heads
	}
	lo := slices.IndexFunc(k.tables, func(t *table) bool { return t.Layer == layer && t.Index >= heads.Lo })
	hi := lo
	for lo >= 0 && hi < len(k.tables) && k.tables[hi].Layer == layer && k.tables[hi].Index < heads.Hi {
		hi++
	}
	switch {
	case moved:
		errs := make([]error, hi-lo)
		run(len(errs), func(i int) { errs[i] = k.heads[lo+i].build(k, k.tables[lo+i], c.arranged(s.prompt)) })
		return errors.Join(errs...)
	case len(k.tables) == 0 || k.tables[0].queries == nil:
	case c.coarse > 0 && layer < s.g.Layers:
		if layer == 0 {
			k.bound = k.quantile(500, func(h *headShares) (int, []float32) { return 0, h.coarse })
		}
		run(hi-lo, func(i int) { k.heads[lo+i].prune(k, k.bound) })
	default:
		k.thresholds()
	}
	return nil
}

// note implements Arranger. The number of a cluster's first key is its coarse cluster, counted from
// 1, which is in the index until Seal. After the clusters, in a cache that was moved, even slots
// carry one threshold and odd slots the other.
func (c clusters) note(t *table, s *Store, slot int, number float32) {
	keys := c.arranged(s.prompt)
	switch {
	case slot >= keys:
		t.bounds[slot%2] = number
	case number > 0 && t.groupsReceived < c.most(0, keys):
		x := c.index(s.g.Layout, t.planes[indexPlane].blocks)
		x.setPlace(t.groupsReceived, uint32(slot), uint32(number)-1)
		t.groupsReceived++
	}
}

// notes implements Arranger.
func (c clusters) notes(t *table, s *Store) func(slot int) float32 {
	groups, bounds, keys := map[int]float32{}, [2]float32{}, c.arranged(s.prompt)
	if blocks := t.planes[indexPlane].blocks; len(blocks) > 0 && keys > 0 {
		x := c.index(s.g.Layout, blocks)
		bounds = [2]float32{x.bound(fineBound), x.bound(coarseBound)}
		coarse, fine := int(x.words()[coarseWord]), int(x.words()[fineWord])
		for j := range coarse {
			for i, end := x.begin(j), x.end(j, coarse, fine); i < end; i++ {
				groups[x.begin(i)] = float32(1 + j)
			}
		}
	}
	return func(slot int) float32 {
		if slot < keys {
			return groups[slot]
		}
		return bounds[slot%2]
	}
}

// coarseOf returns the coarse clusters of the clusters that start at begins, as received.
func (t *table) coarseOf(c clusters, x squeezedIndex, begins []int) ([]int32, error) {
	came := make(map[int]int32, t.groupsReceived)
	for k := range t.groupsReceived {
		came[x.begin(k)] = int32(x.keys(k))
	}
	groups, most := make([]int32, len(begins)), int32(c.groups(len(begins)))
	for i, slot := range begins {
		group, ok := came[slot]
		if !ok || group < 0 || group >= most || len(came) != len(begins) {
			return nil, fmt.Errorf("%d of %d clusters have a coarse cluster; the one at slot %d has number %d of %d", len(came), len(begins), slot, group, most)
		}
		groups[i] = group
	}
	return groups, nil
}

// calibration computes the thresholds of all heads.
type calibration struct {
	clusters
	g      Geometry
	window int
	tables []*table
	heads  []headShares // of each table
	bound  float32      // threshold of the coarse centroids
}

// headShares are the centroids of one head, and their shares by the calibrating queries.
type headShares struct {
	x            squeezedIndex
	queries      []float32
	score        tensor.Score
	coarse, fine []float32 // the largest mean share over the query heads
	sizes        []int     // number of keys of each centroid, the coarse ones first
}

// build fills the index of a head except for its thresholds.
func (h *headShares) build(k *calibration, t *table, keys int) error {
	begins, err := runsOf(t.Positions, keys)
	if err != nil {
		return fmt.Errorf("%w: layer %d, head %d: %w", ErrRows, t.Layer, t.Index, err)
	}
	l, fine := k.g.Layout, len(begins)
	if most := keys * k.share / 1000; fine > max(1, most) {
		return fmt.Errorf("%w: layer %d, head %d: %d clusters of %d keys, at most %d are possible", ErrRows, t.Layer, t.Index, fine, keys, most)
	}
	h.x, h.queries, h.score = k.index(l, t.planes[indexPlane].blocks), t.queries, t.score
	size := func(i int) int {
		if i+1 < fine {
			return begins[i+1] - begins[i]
		}
		return keys - begins[i]
	}
	var groups []int32
	if k.coarse > 0 {
		if groups, err = t.coarseOf(k.clusters, h.x, begins); err != nil {
			return fmt.Errorf("%w: layer %d, head %d: %w", ErrRows, t.Layer, t.Index, err)
		}
	}
	means, key := make([]float32, fine*l.KDim), make([]float32, l.KDim)
	for i, begin := range begins {
		l.MeanKey(means[i*l.KDim:][:l.KDim], t.rows(), begin, begin+size(i), key)
	}
	coarse, order := h.group(k, means, groups, size)
	for j, i := range order {
		h.x.put(coarse+j, means[int(i)*l.KDim:][:l.KDim], size(int(i)), begins[i])
		h.sizes = append(h.sizes, size(int(i)))
	}
	words := h.x.words()
	words[coarseWord], words[fineWord], words[keysWord] = uint64(coarse), uint64(fine), uint64(keys)
	switch first := k.tables[0]; {
	case (t.queries == nil) != (first.queries == nil):
		return fmt.Errorf("%w: some heads have the queries that set the threshold, layer %d, head %d or the first has none", ErrRows, t.Layer, t.Index)
	case t.queries == nil: // of a cache that was moved
		h.x.set(fineBound, t.bounds[0])
		h.x.set(coarseBound, t.bounds[1])
	case coarse > 0: // prune fills fine
		h.coarse, h.fine = h.shares(k, []int32{0, int32(coarse)}), make([]float32, fine)
	default:
		h.fine = h.shares(k, []int32{0, int32(fine)})
	}
	return nil
}

// group stores the coarse centroids. order is the order of the fine ones after them.
func (h *headShares) group(k *calibration, means []float32, groups []int32, size func(i int) int) (coarse int, order []int32) {
	d, fine := k.g.Layout.KDim, len(means)/k.g.Layout.KDim
	if groups == nil {
		for i := range fine {
			order = append(order, int32(i))
		}
		return 0, order
	}
	members := make([][]int32, k.groups(fine))
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

// shares are the shares of the centroids in runs by the calibrating queries: the mean over the
// queries of each query head, the largest over the heads, times the number of queries.
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
		scores, _ := h.x.score(runs, Queries{h.queries[w*width:][:width], g, h.score}, s)
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

// thresholds sets the thresholds of all heads.
func (k *calibration) thresholds() {
	fine := k.quantile(k.sparsity, func(h *headShares) (int, []float32) { return len(h.sizes) - len(h.fine), h.fine })
	window := tensor.Log(float32(k.window))
	for i := range k.heads {
		x := k.heads[i].x
		x.set(coarseBound, tensor.Log(k.bound)-window)
		x.set(fineBound, tensor.Log(fine)-window)
	}
}

// quantile is the quantile of the shares that of returns for each head, with the index of the first
// centroid that has one.
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

// quantile is the lowest share that is not below those of that many thousandths of the keys.
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
