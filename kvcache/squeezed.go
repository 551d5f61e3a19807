package kvcache

import (
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
	size("tail", 64, 1), size("obs", 100, 2), size("segment", 8192, 64)}, func(v []int) Parts {
	c := clusters{share: v[0], sparsity: v[2], tail: v[3], obs: v[4], segment: v[5]}
	if v[1] == 2 {
		c.coarse = max(1, v[0]/5)
	}
	return Parts{Arranger: c, Selector: c, Needs: Needs{Window: v[4], Queries: true, Labels: true}, Tail: v[3]}
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
// lower than that before it. With two levels the score of a cluster's first token is its coarse
// cluster, counted from 1.
func (c clusters) Arrange(s *Statistics) (kept Kept) {
	n := c.clustered(s.Prompt)
	if n > 0 {
		members := membersOf(c.labels(s, n))
		groups := c.grouped(s, members)
		if groups != nil {
			kept.Scores = make([]float32, s.Prompt)
		}
		kept.Positions = make([]int32, 0, s.Prompt)
		for i, m := range members {
			if groups != nil {
				kept.Scores[len(kept.Positions)] = float32(1 + groups[i])
			}
			kept.Positions = append(kept.Positions, m...)
		}
	}
	kept.Positions = span(kept.Positions, n, s.Prompt)
	return kept
}

// labels are the clusters of the first n tokens, those that were not found before found now.
func (c clusters) labels(s *Statistics, n int) []int32 {
	if s.labelled == c.parts(n) {
		return s.labels[:n]
	}
	labels := make([]int32, n)
	for i := range c.parts(n) {
		if lo, hi := c.part(n, i); i < s.labelled {
			copy(labels[lo:hi], s.labels[lo:hi])
		} else {
			c.label(labels, n, i, kMeans(c.keys(s, lo, hi), s.Layout.KDim, c.most(lo, hi)))
		}
	}
	return labels
}

// label notes the clusters of a segment behind those of the segments before it.
func (c clusters) label(labels []int32, n, segment int, found []int32) {
	first := int32(0)
	for i := range segment {
		first += int32(c.most(c.part(n, i)))
	}
	lo, _ := c.part(n, segment)
	for i, label := range found {
		labels[lo+i] = first + label
	}
}

// membersOf are the tokens of each cluster, in order, that with the latest first token in front.
// Labels are numbers of clusters, or what regroup made of them.
func membersOf(labels []int32) (members [][]int32) {
	of := make([]int32, len(labels)) // of each label the cluster, counted from 1
	for pos, label := range labels {
		if label < 0 {
			label = int32(pos)
		}
		if of[label] == 0 {
			members = append(members, nil)
			of[label] = int32(len(members))
		}
		members[of[label]-1] = append(members[of[label]-1], int32(pos))
	}
	slices.Reverse(members)
	return members
}

// grouped is the coarse cluster of each cluster; nil: there is one level.
func (c clusters) grouped(s *Statistics, members [][]int32) []int32 {
	switch {
	case c.coarse == 0:
		return nil
	case len(s.labels) == 0 || s.labels[0] >= 0:
		return kMeans(c.centroids(s, members), s.Layout.KDim, c.groups(len(members)))
	}
	groups := make([]int32, len(members))
	for i, m := range members {
		groups[i] = -1 - s.labels[m[0]]
	}
	return groups
}

// regroup notes the coarse clusters among the labels: a cluster's first token has -1 less its
// coarse cluster, others the place of the first.
func regroup(labels []int32, members [][]int32, groups []int32) {
	for i, m := range members {
		for _, pos := range m {
			labels[pos] = m[0]
		}
		labels[m[0]] = -1 - groups[i]
	}
}

// groups is how many coarse centroids so many clusters have.
func (c clusters) groups(fine int) int { return min(fine, max(1, fine*c.coarse/c.share)) }

// centroids are the means of the keys of each cluster.
func (c clusters) centroids(s *Statistics, members [][]int32) []float32 {
	d := s.Layout.KDim
	means, key, v := make([]float32, len(members)*d), make([]float32, d), make([]float32, s.Layout.VDim)
	for i, m := range members {
		mean := means[i*d:][:d]
		for _, pos := range m {
			s.Layout.Get(s.Blocks[pos/tensor.BlockSlots], int(pos)%tensor.BlockSlots, key, v)
			for e, x := range key {
				mean[e] += x
			}
		}
		for e := range mean {
			mean[e] /= float32(len(m))
		}
	}
	return means
}

// parts is how many segments n clustered keys have, and part which keys are in one of them.
func (c clusters) parts(n int) int            { return max(1, (n+c.segment/2)/c.segment) }
func (c clusters) part(n, i int) (lo, hi int) { return i * n / c.parts(n), (i + 1) * n / c.parts(n) }

// most is how many centroids a segment has.
func (c clusters) most(lo, hi int) int { return max(1, (hi-lo)*c.share/1000) }

// keys are those of the positions [lo, hi) of one head, as they are stored.
func (c clusters) keys(s *Statistics, lo, hi int) []float32 {
	d := s.Layout.KDim
	keys, v := make([]float32, (hi-lo)*d), make([]float32, s.Layout.VDim)
	for pos := lo; pos < hi; pos++ {
		s.Layout.Get(s.Blocks[pos/tensor.BlockSlots], pos%tensor.BlockSlots, keys[(pos-lo)*d:][:d], v)
	}
	return keys
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
