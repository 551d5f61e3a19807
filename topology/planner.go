package topology

// Costs are what the planner weighs a mapping by.
type Costs struct {
	// Sync is the time of one small collective among the sockets, in seconds.
	Sync float64
	// Bandwidth is the speed at which one socket reads weights, in bytes a second.
	Bandwidth float64
	// WeightBytes is the size of one weight.
	WeightBytes float64
}

// SyncGuess is the time of one small collective over the NATS mesh by number of
// sockets, for the planner before anything was measured. Of processes that share two
// cores, `shoal bench cluster --quant q4_0` waits 150 us for each of a step's 25
// with two sockets, 280 to 330 with four, 920 with sixteen, their turn on a core
// included (docs/benchmarks.md, Nodes).
func SyncGuess(sockets int) float64 { return 80e-6 * float64(sockets) }

// DecodeSeconds estimates one layer of a decode step of few rows, the mean of those
// with experts and those without: the synchronisations of the mapping and the weights that the slowest socket reads.
func DecodeSeconds(m Mapping, s Shape, sockets int, c Costs) float64 {
	attention := float64(s.attentionWeights()) * c.WeightBytes / c.Bandwidth
	width := (1-s.Sparse)*float64(s.FFN) + s.Sparse*float64(s.ActiveFFN)
	ffn := 3 * float64(s.Hidden) * width * c.WeightBytes / c.Bandwidth
	n := float64(sockets)
	if m == Reduce {
		return (2+s.Sparse)*c.Sync + attention + ffn/n
	}
	if s.Latent > 0 {
		return 7*c.Sync + (attention+ffn)/n
	}
	return 5*c.Sync + (attention+ffn)/n
}

// ChooseUnmeasured is Choose for sockets of which nothing was measured yet: eight
// GB/s.
func ChooseUnmeasured(s Shape, sockets int, weightBytes float64) Mapping {
	return Choose(s, sockets, Costs{Sync: SyncGuess(sockets), Bandwidth: 8e9, WeightBytes: weightBytes})
}

// attentionWeights are the elements of a layer's projections. Of latent attention
// those behind the latents are not in the shape; the heads' own are taken as wide as
// the hidden state, which is within a factor of two of published models.
func (s *Shape) attentionWeights() int {
	if s.Latent > 0 {
		return s.Hidden * (s.Latent + 2*s.Heads*s.HeadDim)
	}
	return s.Hidden * (2*s.Heads + 2*s.KVHeads) * s.HeadDim
}

// Choose names the mapping with the lower estimate. The bits are the same with
// either; Reduce replicates the attention weights.
func Choose(s Shape, sockets int, c Costs) Mapping {
	if DecodeSeconds(Reduce, s, sockets, c) < DecodeSeconds(Gather, s, sockets, c) {
		return Reduce
	}
	return Gather
}
