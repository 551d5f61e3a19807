package topology

import (
	"math"
	"slices"
)

// ChunkRows are the possible numbers of prompt tokens in a step.
var ChunkRows = [...]int{128, 256, 512}

// Products are multiply-adds a second of matrix products with ChunkRows rows. Zero: not measured.
type Products [len(ChunkRows)]float64

func (p *Products) valid() bool {
	return !slices.ContainsFunc(p[:], func(rate float64) bool { return !positive(rate) })
}

// Speeds are a node's measurements with the given numbers of compute threads, while the other nodes
// of its machine measured too.
type Speeds struct {
	Threads
	Read     float64  `json:"read"` // bytes a second
	Syncs    Syncs    `json:"syncs"`
	Products Products `json:"products"`
}

// Valid reports whether the values are plausible measurements.
func (s *Speeds) Valid() bool {
	return s.Threads.Valid() && positive(s.Read) && s.Syncs.valid() && s.Products.valid()
}

// usualChunk is the chunk of sockets without measurements.
const usualChunk = 256

// ChooseChunk returns the number of prompt tokens of one sequence in a step, up to most. Candidates
// are those that prolong a prompt by at most 2 % over the best. It takes the largest one with a
// short step, otherwise the smallest, since decode rows wait for the whole step. The bits are the
// same with any.
func ChooseChunk(m Mapping, s Shape, sockets int, c Costs, most int) int {
	if most <= ChunkRows[0] || c.Products[0] == 0 {
		return min(usualChunk, most)
	}
	best := math.Inf(1)
	for i, rows := range ChunkRows {
		if rows <= most {
			best = min(best, promptSeconds(m, s, sockets, c, i))
		}
	}
	chunk := 0
	for i, rows := range ChunkRows {
		if t := promptSeconds(m, s, sockets, c, i); rows <= most && t <= 1.02*best && (chunk == 0 || t*float64(rows*s.Layers) <= shortSeconds) {
			chunk = rows
		}
	}
	return chunk
}

// shortSeconds is the longest step that counts as short. Larger chunks gain more than the products
// alone predict: each step reads all weights, and threads sleep between steps.
const shortSeconds = 0.25

// stepSeconds is the fixed overhead of a step: its messages and the planning of the next
// (docs/benchmarks.md, Nodes).
const stepSeconds = 0.7e-3

// promptSeconds estimates one token of a prompt in one layer, for a chunk size: arithmetic, which
// is divided over the sockets, and the token's part of the fixed cost of a step.
func promptSeconds(m Mapping, s Shape, sockets int, c Costs, chunk int) float64 {
	step := stepSeconds / float64(max(1, s.Layers))
	if sockets > 1 {
		syncs := 7.0
		if m == Reduce {
			syncs = 4
		}
		step += syncs * c.Sync
	}
	return s.Weights()/float64(sockets)/c.Products[chunk] + step/float64(ChunkRows[chunk])
}

// Weights returns the mean number of weight elements per layer by which a row is multiplied.
func (s *Shape) Weights() float64 {
	return float64(s.attentionWeights()) + 3*float64(s.Hidden)*s.width()
}

// width returns the inner width of a layer's FFN, on average.
func (s *Shape) width() float64 {
	return (1-s.Sparse)*float64(s.FFN) + s.Sparse*float64(s.ActiveFFN)
}
