package layer

import (
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// Share is the part of a step that one rank of several computes.
type Share struct {
	Slice     topology.Slice
	Decode    topology.Range    // decode rows of the sequences that the rank owns
	Prompts   topology.Range    // all prompt rows, of which it attends with the heads of Slice
	Owned     [2]topology.Range // rows that it projects and sums
	QKV       [3]topology.Range // with mapping Gather: its columns of queries, keys and values
	Heads     [3]topology.Range // columns of QKV that attention with the heads of Slice reads
	Nodes     []tensor.Span     // with mapping Reduce: tree nodes of its units of the down projection
	Quantized bool              // outputs of attention and FFN are quantized before their exchange
}

// Share returns the part of this batch's rank.
func (b *Batch) Share() Share {
	s, own := b.Place.Slices[b.Rank], b.ownParts(b.Rank)
	heads := b.headParts(s.KVHeads)
	return Share{
		Slice: s, Decode: b.decodeRows(b.Rank), Prompts: topology.Range{Lo: b.decode, Hi: b.T}, Owned: b.owned(b.Rank),
		QKV: [3]topology.Range(own[:3]), Heads: [3]topology.Range(heads[:3]),
		Nodes: b.allNodes(tensor.Units(b.Dims.FFN))[b.Rank], Quantized: b.step.quantized,
	}
}
