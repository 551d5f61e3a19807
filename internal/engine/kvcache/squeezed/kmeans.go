package squeezed

import (
	"math"
	"slices"
	"sync"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// kMeansRounds is the maximum number of rounds in which centres move.
const kMeansRounds = 8

// kMeans assigns n vectors of d elements to c clusters by cosine and returns the cluster of each.
// Some clusters may be empty. It scales the vectors to length 1. The result does not depend on any
// order: the centres start as the vectors at j*n/c, a vector goes to the first of the nearest
// centres, and sums are chains in the order of the vectors. A centre without vectors stays where it
// is.
func kMeans(x []float32, d, c int) []int32 {
	m := newMeans(x, d, c)
	for !m.done {
		m.next(inTurn)
	}
	return m.labels
}

var scratches = sync.Pool{New: func() any { return new(tensor.AttnScratch) }}

func inTurn(n int, f func(i int)) {
	for i := range n {
		f(i)
	}
}

// means is the state of k-means between two rounds.
type means struct {
	x, centres     []float32 // [n][d], [c][d]
	d, c, round    int
	layout         tensor.KVLayout
	index          [][]byte
	labels, counts []int32 // [n], [c]
	done           bool
}

func newMeans(x []float32, d, c int) *means {
	n := len(x) / d
	for i := range n {
		unit(x[i*d:][:d])
	}
	m := &means{x: x, d: d, c: c, centres: make([]float32, c*d), layout: tensor.KVLayout{Type: tensor.F32, KDim: d},
		labels: make([]int32, n), counts: make([]int32, c)}
	m.index = make([][]byte, (c+tensor.BlockSlots-1)/tensor.BlockSlots)
	for i := range m.index {
		m.index[i] = make([]byte, m.layout.LandmarkBytes(tensor.F32)+256)
	}
	for j := range c {
		copy(m.centres[j*d:][:d], x[j*n/c*d:])
	}
	return m
}

// next does a round. The vectors find their centres by run, which calls f with each of 0 to n-1 in
// any order, possibly concurrently.
func (m *means) next(run func(n int, f func(i int))) {
	const each, together = 512, 32
	c, d, n := m.c, m.d, len(m.labels)
	for j := range c {
		m.layout.SetLandmark(tensor.F32, m.index[j/tensor.BlockSlots], j%tensor.BlockSlots, m.centres[j*d:][:d])
	}
	moved := make([]bool, (n+each-1)/each)
	run(len(moved), func(part int) {
		s := scratches.Get().(*tensor.AttnScratch)
		defer scratches.Put(s)
		moved[part] = m.round == 0
		end := min(n, (part+1)*each)
		for first := part * each; first < end; first += together {
			g := min(together, end-first)
			scores := s.ScoreLandmarks(m.layout, tensor.F32, m.index, c, m.x[first*d:][:g*d], g)
			for i := range g {
				near := int32(tensor.ArgMax(scores[i*c:][:c]))
				moved[part] = moved[part] || near != m.labels[first+i]
				m.labels[first+i] = near
			}
		}
	})
	if m.round++; !slices.Contains(moved, true) || m.round > kMeansRounds {
		m.done = true
		return
	}
	clear(m.counts)
	for i, label := range m.labels {
		centre := m.centres[int(label)*d:][:d]
		if m.counts[label]++; m.counts[label] == 1 {
			clear(centre)
		}
		for e, v := range m.x[i*d:][:d] {
			centre[e] += v
		}
	}
	for j, count := range m.counts {
		if count > 0 {
			unit(m.centres[j*d:][:d])
		}
	}
}

// unit scales a vector to length 1; a zero vector stays 0. The squares are exact in float64, so
// fusing them changes nothing.
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
