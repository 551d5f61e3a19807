package topology

import (
	"math"
	"slices"
)

// Costs are the planner's estimates of a cluster.
type Costs struct {
	// Sync is the time of one small collective among the sockets, in seconds.
	Sync float64
	// Bandwidth is the rate at which one socket reads weights, in bytes a second.
	Bandwidth float64
	// WeightBytes is the bytes of one weight.
	WeightBytes float64
	// Products are the rates of the slowest socket, for which all others wait.
	Products Products
}

// Syncs are the times of small collectives that a node measured at its start, in seconds: among two
// and among four ranks of its own process. The latency between processes is extra (Node.Distance).
// Zero: not measured.
type Syncs struct{ Two, Four float64 }

// of estimates the time for a number of sockets by the line through both points, never below Two.
func (s Syncs) of(sockets int) float64 {
	return max(s.Two, s.Two+(s.Four-s.Two)/2*float64(sockets-2))
}

func (s Syncs) valid() bool { return positive(s.Two) && positive(s.Four) }

func positive(x float64) bool { return x > 0 && !math.IsInf(x, 1) }

// Defaults for sockets without measurements. They come from processes that shared two cores
// (docs/benchmarks.md, Nodes).
const (
	guessedRead = 8e9   // bytes a second
	guessedSync = 80e-6 // seconds a socket
)

// MeasuredCosts returns the costs of the nodes of one placement: medians of their measurements, and
// defaults where there are none.
func MeasuredCosts(nodes []Node, weightBytes float64) Costs {
	c := Costs{Sync: guessedSync * float64(len(nodes)), Bandwidth: guessedRead, WeightBytes: weightBytes}
	var reads, syncs []float64
	for _, n := range nodes {
		if positive(n.Read) {
			reads = append(reads, n.Read)
		}
		if n.Syncs.valid() {
			syncs = append(syncs, n.Syncs.of(len(nodes))+max(0, n.Distance))
		}
		if n.Products.valid() {
			if c.Products[0] == 0 || n.Products[0] < c.Products[0] {
				c.Products = n.Products
			}
		}
	}
	if len(reads) > 0 {
		c.Bandwidth = median(reads)
	}
	if len(syncs) > 0 {
		c.Sync = median(syncs)
	}
	return c
}

// median returns the lower median of an even number of values. It sorts x.
func median(x []float64) float64 {
	slices.Sort(x)
	return x[(len(x)-1)/2]
}

// DecodeSeconds estimates one layer of a decode step of few rows, as the mean over layers with and
// without experts: the synchronisations of the mapping, and the weights that the slowest socket
// reads.
func DecodeSeconds(m Mapping, s Shape, sockets int, c Costs) float64 {
	attention := float64(s.attentionWeights()) * c.WeightBytes / c.Bandwidth
	ffn := 3 * float64(s.Hidden) * s.width() * c.WeightBytes / c.Bandwidth
	n := float64(sockets)
	if m == Reduce {
		return (2+s.Sparse)*c.Sync + attention + ffn/n
	}
	if s.Latent > 0 {
		return 7*c.Sync + (attention+ffn)/n
	}
	return 5*c.Sync + (attention+ffn)/n
}

// attentionWeights returns the number of elements of a layer's projections. With latent attention the
// up-projections are not in the shape. Their estimated width is that of the hidden state, which is
// within a factor of two of published models.
func (s *Shape) attentionWeights() int {
	if s.Latent > 0 {
		return s.Hidden * (s.Latent + 2*s.Heads*s.HeadDim)
	}
	if s.Attention > 0 {
		return s.Attention
	}
	return s.Hidden * (2*s.Heads + 2*s.KVHeads) * s.HeadDim
}

// ChooseMapping returns the mapping with the lower estimate. The bits are the same with either. Reduce
// replicates the attention weights.
func ChooseMapping(s Shape, sockets int, c Costs) Mapping {
	if DecodeSeconds(Reduce, s, sockets, c) < DecodeSeconds(Gather, s, sockets, c) {
		return Reduce
	}
	return Gather
}

// nextMapping returns the mapping of a model in the next placement of a group. was is its previous mapping. It
// is chosen by measurements when a cluster begins or reaches a number of nodes for the first time. After a loss
// it stays, so that the remaining nodes reload the least.
func (a *Authority) nextMapping(key mappingOf, was *Placement, r *ModelRules, part []Node) Mapping {
	if r.Mapping != "" {
		return r.Mapping
	}
	if n := len(was.Slices); n > 0 && len(part) <= n {
		return was.Mapping
	}
	m, known := a.mappings[key]
	if !known {
		m = ChooseMapping(r.Shape, len(part), MeasuredCosts(part, r.WeightBytes))
		a.mappings[key] = m
	}
	return m
}
