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
	Threads  int      `json:"threads"`
	Read     float64  `json:"read"` // bytes a second
	Syncs    Syncs    `json:"syncs"`
	Products Products `json:"products"`
}

// Valid says that they can have been measured.
func (s *Speeds) Valid() bool {
	return s.Threads > 0 && positive(s.Read) && s.Syncs.valid() && s.Products.valid()
}

// ThreadChoices are the numbers of compute threads of each of so many nodes of one machine that
// are chosen among, the most first: an even part of the processors, half of it and a quarter.
// Of four processors or more a node leaves one to messages: threads that wait for work spin, and
// a step that waits for a message behind them has waited for all nodes.
func ThreadChoices(processors, nodes int) []int {
	t, least := max(1, processors/max(1, nodes)), 1
	if nodes <= 1 {
		least = min(t, 2)
	}
	least = max(least, t/4)
	if t >= 4 {
		t--
	}
	out := []int{t}
	for t = (t + 1) / 2; t >= least && t < out[len(out)-1]; t = (t + 1) / 2 {
		out = append(out, t)
	}
	return out
}

// RehearsedRows are the rows of a step of one sequence, of a batch, and of a prompt.
var RehearsedRows = [...]int{1, 16, 128}

// Rehearsal is what products of a layer's part and the exchange after them took a node with so
// many threads, while the other nodes of its machine did the same: seconds, by RehearsedRows.
type Rehearsal struct {
	Threads int                         `json:"threads"`
	Seconds [len(RehearsedRows)]float64 `json:"seconds"`
}

const (
	nearlyAll    = 1.15 // of the fastest's time, on one node
	spared       = 0.10 // more of it, of several nodes, for each doubling of processors that are left to messages
	fewerThreads = 0.95 // of the time of more threads, where none are nearly as fast with all rows
)

// ChooseThreads takes, of what was rehearsed with the most threads first on so many nodes, the
// fewest that are nearly as fast as any with every number of rows: a step has more messages than a
// rehearsal, and over processes each takes longer, the more so the fewer processors are left to
// them. Where there are none it takes the fastest: a step of one row, one of many, and a prompt
// count alike.
func ChooseThreads(of []Rehearsal, nodes int) int {
	var fastest Rehearsal
	for i := range fastest.Seconds {
		fastest.Seconds[i] = math.Inf(1)
		for _, r := range of {
			fastest.Seconds[i] = min(fastest.Seconds[i], r.Seconds[i])
		}
	}
	best := &of[0]
	for i := range of {
		if of[i].mean() < fewerThreads*best.mean() {
			best = &of[i]
		}
	}
	for i := range of {
		most := nearlyAll
		if nodes > 1 {
			most = 1 + spared*math.Log2(float64(1+of[0].Threads-of[i].Threads))
		}
		if of[i].nearly(&fastest, most) {
			best = &of[i]
		}
	}
	return best.Threads
}

func (r *Rehearsal) nearly(fastest *Rehearsal, most float64) bool {
	for i, s := range r.Seconds {
		if s > most*fastest.Seconds[i] {
			return false
		}
	}
	return true
}

// mean is the geometric one.
func (r *Rehearsal) mean() float64 {
	product := 1.0
	for _, s := range r.Seconds {
		product *= s
	}
	return math.Cbrt(product)
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
