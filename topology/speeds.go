package topology

import (
	"math"
	"slices"
)

// ChunkRows are the numbers of prompt tokens in a step that are chosen among.
var ChunkRows = [...]int{128, 256, 512}

// Products are multiply-adds a second of products with ChunkRows rows at once. Zero: they were
// not measured.
type Products [len(ChunkRows)]float64

func (p *Products) valid() bool {
	return !slices.ContainsFunc(p[:], func(rate float64) bool { return !positive(rate) })
}

// Speeds are what so many compute threads gave a node, while the other nodes of its machine
// did the same.
type Speeds struct {
	Threads
	Read     float64  `json:"read"` // bytes a second
	Syncs    Syncs    `json:"syncs"`
	Products Products `json:"products"`
}

// Valid says that they can have been measured.
func (s *Speeds) Valid() bool {
	return s.Threads.Valid() && positive(s.Read) && s.Syncs.valid() && s.Products.valid()
}

// usualChunk is that of sockets that have measured nothing.
const usualChunk = 256

// ChooseChunk is the number of prompt tokens of one sequence in a step, at most so many, of those
// with which a prompt takes no more than 2 % longer than with the best: the largest whose step is
// short, or else the smallest, since rows that decode wait for the whole step. The bits are the
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

// shortSeconds is a step that nobody minds waiting for: what products alone say of larger chunks
// is less than they give, since each step reads all weights, and threads sleep between two.
const shortSeconds = 0.25

// stepSeconds is what a step takes besides: its messages, and until the next one is planned
// (docs/benchmarks.md, Nodes).
const stepSeconds = 0.7e-3

// promptSeconds estimates one token of a prompt in one layer, read so many at a time:
// arithmetic, which is cut over the sockets, and its part of what a step takes however many
// rows it has.
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

// Weights are the elements of a layer that a row is multiplied by, on average.
func (s *Shape) Weights() float64 {
	return float64(s.attentionWeights()) + 3*float64(s.Hidden)*s.width()
}

// width is the inner width of a layer's FFN, on average.
func (s *Shape) width() float64 {
	return (1-s.Sparse)*float64(s.FFN) + s.Sparse*float64(s.ActiveFFN)
}
