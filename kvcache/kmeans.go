package kvcache

import (
	"math"

	"github.com/shoal-llm/shoal/tensor"
)

// kMeansRounds is how often centres move at most.
const kMeansRounds = 8

// kMeans puts n vectors of d elements into c clusters by cosine, and gives the cluster of each;
// some may be empty. The vectors are scaled to length 1. Everything has one order: the centres begin as the vectors
// at j*n/c, a vector goes to the first of the nearest centres, and sums are chains in the order
// of the vectors. A centre that nothing is nearest to stays.
func kMeans(x []float32, d, c int) []int32 {
	n := len(x) / d
	for i := range n {
		unit(x[i*d:][:d])
	}
	s := scratches.Get().(*tensor.AttnScratch)
	defer scratches.Put(s)
	layout := tensor.KVLayout{Type: tensor.F32, KDim: d}
	index, centres := make([][]byte, (c+tensor.BlockSlots-1)/tensor.BlockSlots), make([]float32, c*d)
	for i := range index {
		index[i] = make([]byte, layout.LandmarkBytes(tensor.F32)+256)
	}
	for j := range c {
		copy(centres[j*d:][:d], x[j*n/c*d:])
	}
	labels, counts := make([]int32, n), make([]int32, c)
	for round := 0; ; round++ {
		for j := range c {
			layout.SetLandmark(tensor.F32, index[j/tensor.BlockSlots], j%tensor.BlockSlots, centres[j*d:][:d])
		}
		moved := round == 0
		const together = 32
		for first := 0; first < n; first += together {
			g := min(together, n-first)
			scores := s.ScoreLandmarks(layout, tensor.F32, index, c, x[first*d:][:g*d], g)
			for i := range g {
				near := int32(tensor.ArgMax(scores[i*c:][:c]))
				moved = moved || near != labels[first+i]
				labels[first+i] = near
			}
		}
		if !moved || round == kMeansRounds {
			return labels
		}
		clear(counts)
		for i, label := range labels {
			centre := centres[int(label)*d:][:d]
			if counts[label]++; counts[label] == 1 {
				clear(centre)
			}
			for e, v := range x[i*d:][:d] {
				centre[e] += v
			}
		}
		for j, count := range counts {
			if count > 0 {
				unit(centres[j*d:][:d])
			}
		}
	}
}

// unit scales a vector to length 1; one without a length becomes 0. The squares are exact in
// float64, so that fusing them changes nothing.
func unit(x []float32) {
	square := 0.0
	for _, v := range x {
		square += float64(v) * float64(v)
	}
	by := 1 / math.Sqrt(square)
	if !(by > 0) || math.IsInf(by, 0) {
		clear(x)
		return
	}
	for i, v := range x {
		x[i] = float32(float64(v) * by)
	}
}
