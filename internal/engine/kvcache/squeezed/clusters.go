package squeezed

import (
	"encoding/binary"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Arrange implements kvcache.PromptIndex: cluster after cluster, and in each the tokens in text
// order. Clusters are sorted by their first token, the latest first. So a new cluster starts where a
// position is lower than the one before it. With two levels, the index that goes to the owner has
// the coarse clusters.
func (c clusters) Arrange(s *kvcache.Statistics) (kept kvcache.Kept) {
	n := c.arranged(s.Prompt)
	if n > 0 {
		members := membersOf(c.labels(s, n))
		kept.Index = make([]byte, c.movedBytes(n))
		for i, group := range c.grouped(s, members) {
			binary.LittleEndian.PutUint32(kept.Index[boundBytes+4*i:], uint32(1+group))
		}
		kept.Positions = make([]int32, 0, s.Prompt)
		for _, m := range members {
			kept.Positions = append(kept.Positions, m...)
		}
	}
	kept.Positions = kvcache.Positions(kept.Positions, n, s.Prompt)
	return kept
}

// labels returns the clusters of the first n tokens. It computes those that were not found before.
func (c clusters) labels(s *kvcache.Statistics, n int) []int32 {
	state := preparedOf(s.Prepared)
	prepared := state.segments
	if prepared == c.parts(n) || state.recalled[[2]int{s.Layer, s.Head}] {
		return s.Labels[:n]
	}
	labels := make([]int32, n)
	for i := range c.parts(n) {
		if lo, hi := c.part(n, i); i < prepared {
			copy(labels[lo:hi], s.Labels[lo:hi])
		} else {
			c.label(labels, n, i, kMeans(c.keys(s, lo, hi), s.Layout.KDim, c.most(lo, hi)))
		}
	}
	return labels
}

// label numbers the clusters of a segment after those of the segments before it.
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

// membersOf returns the tokens of each cluster, ascending. The cluster with the latest first token
// comes first. Labels are cluster numbers, or the results of regroup.
func membersOf(labels []int32) (members [][]int32) {
	of := make([]int32, len(labels)) // label -> cluster, counted from 1
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

// grouped returns the coarse cluster of each cluster; nil: there is one level.
func (c clusters) grouped(s *kvcache.Statistics, members [][]int32) []int32 {
	switch {
	case c.coarse == 0:
		return nil
	case len(s.Labels) == 0 || s.Labels[0] >= 0:
		return kMeans(c.centroids(s, members), s.Layout.KDim, c.groups(len(members)))
	}
	groups := make([]int32, len(members))
	for i, m := range members {
		groups[i] = -1 - s.Labels[m[0]]
	}
	return groups
}

// regroup encodes the coarse clusters in the labels: a cluster's first token gets -1 minus its
// coarse cluster, the others get the position of the first.
func regroup(labels []int32, members [][]int32, groups []int32) {
	for i, m := range members {
		for _, pos := range m {
			labels[pos] = m[0]
		}
		labels[m[0]] = -1 - groups[i]
	}
}

// groups returns the number of coarse centroids for a number of clusters.
func (c clusters) groups(fine int) int { return min(fine, max(1, fine*c.coarse/c.share)) }

// centroids returns the means of the keys of each cluster.
func (c clusters) centroids(s *kvcache.Statistics, members [][]int32) []float32 {
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

// parts returns the number of segments of n clustered keys: at most that of all clusters, of which each segment has
// at least one. part is the range of one of them.
func (c clusters) parts(n int) int            { return max(1, min((n+c.segment/2)/c.segment, c.most(0, n))) }
func (c clusters) part(n, i int) (lo, hi int) { return i * n / c.parts(n), (i + 1) * n / c.parts(n) }

// most returns the maximum number of centroids of a segment.
func (c clusters) most(lo, hi int) int { return max(1, (hi-lo)*c.share/1000) }

// keys returns the stored keys of positions [lo, hi) of one head.
func (c clusters) keys(s *kvcache.Statistics, lo, hi int) []float32 {
	d := s.Layout.KDim
	keys, v := make([]float32, (hi-lo)*d), make([]float32, s.Layout.VDim)
	for pos := lo; pos < hi; pos++ {
		s.Layout.Get(s.Blocks[pos/tensor.BlockSlots], pos%tensor.BlockSlots, keys[(pos-lo)*d:][:d], v)
	}
	return keys
}
