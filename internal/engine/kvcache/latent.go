package kvcache

import (
	"github.com/shoal-llm/shoal/internal/engine/kvcache/voting"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Latent attention (DeepSeek-V2, arXiv 2405.04434) keeps one row per token for all query heads, so
// a policy decides once for all of them, by statistics summed over all query heads. Sockets divide
// the heads of a prompt by units, and the sum has one order. Within a unit it is, per token of the
// cache, one chain over the queries and the unit's heads ([tensor.AttentionMass]). Over the units
// it is the canonical tree ([tensor.CombineTree]). So sockets may own any units (SnapStream, arXiv
// 2511.03092, section 4.2: scores are all-reduced).

// count is Observe for one unit of latent attention: q[i*ldq:] is [Group/Units][KDim].
func (o *Observation) count(layer, unit, pos, n int, q []float32, ldq int, score tensor.Score, blocks [][]byte, s *tensor.AttnScratch) {
	at, g := o.index(layer, unit)*o.prompt, o.g.group()/o.g.Units
	if o.attention != nil {
		tensor.AttentionMass(o.attention[at:][:o.prompt], q, ldq, n, pos, g, score, o.g.Layout, blocks, s)
	}
	if skip := max(0, o.first-pos); o.votes != nil && skip < n {
		voting.Count(o.votes[at:][:o.prompt], q[skip*ldq:], ldq, n-skip, pos+skip, g, score, o.g.Layout, blocks, o.among, s)
	}
}

// PartFloats returns the number of floats in one result of [Observation.Parts]. The sockets sum these
// results for each layer, before the owner applies the policy.
func PartFloats(g Geometry, p *Policy, prompt int) int {
	n, floats := p.Needs, 0
	switch {
	case g.Units > 0 && n.Queries:
		floats += min(n.Window, prompt) * g.group() * g.Layout.KDim
	case g.Units > 0 && n.Window > 0:
		floats += prompt
	}
	if g.Units > 0 && n.PromptAttention {
		floats += prompt
	}
	return floats
}

// Parts writes the sum over the units of each of this socket's tree nodes (from tensor.Subtrees)
// into parts, PartFloats each: votes, then attention.
func (o *Observation) Parts(layer int, nodes []tensor.Span, parts [][]float32) {
	for i, node := range nodes {
		at := 0
		if o.queries != nil {
			at = o.scatter(parts[i], layer, node)
		}
		for _, of := range [][]float32{o.votes, o.attention} {
			if of == nil {
				continue
			}
			units := make([][]float32, node.Len())
			for u := range units {
				units[u] = of[o.index(layer, node.Lo+u)*o.prompt:][:o.prompt]
			}
			tensor.CombineTree(parts[i][at:][:o.prompt], tensor.Leaves(node.Len()), units, node.Len())
			at += o.prompt
		}
	}
}

// scatter copies the queries of a node's units to their places among those of all units,
// [window][Group][KDim], and returns the number of elements of all.
func (o *Observation) scatter(part []float32, layer int, node tensor.Span) int {
	width, all := o.g.queryHeads()*o.g.Layout.KDim, o.g.group()*o.g.Layout.KDim
	for u := node.Lo; u < node.Hi; u++ {
		for i, from := 0, o.window(layer, u); i*width < len(from); i++ {
			copy(part[i*all+u*width:][:width], from[i*width:])
		}
	}
	return (o.prompt - o.first) * all
}

// StatisticsOfSum returns the statistics of a layer of latent attention: the prompt's rows in from,
// and the sum of all sockets' Parts (nil if p needs none).
func StatisticsOfSum(from *Store, layer int, p *Policy, score tensor.Score, sum []float32) *Statistics {
	e, n := StatisticsOf(from, layer, 0), p.Needs
	e.Score = score
	switch queries := min(n.Window, e.Prompt) * e.Group * e.Layout.KDim; {
	case n.Queries:
		e.Queries, sum = sum[:queries], sum[queries:]
	case n.Window > 0:
		e.Votes, sum = sum[:e.Prompt], sum[e.Prompt:]
	}
	if n.PromptAttention {
		e.Attention = sum[:e.Prompt]
	}
	return e
}

// Weigh records the attention that the newest token's query, q (group, KDim), pays to each slot. In
// latent attention it sums over all heads, in the order of the units and their tree.
func (s *Store) Weigh(layer, head int, q []float32, score tensor.Score, rope Rope, scratch *tensor.AttnScratch) {
	n, blocks := s.Len(layer, head), s.ReadBlocks(layer, head, rope, scratch)
	units := make([][]float32, max(1, s.g.Units))
	for u := range units {
		units[u] = make([]float32, n)
	}
	if s.g.Units > 0 {
		tensor.AttentionMasses(units, q, 0, 1, n-1, s.g.group(), score, s.g.Layout, blocks, scratch)
		tensor.CombineTree(units[0], tensor.Leaves(s.g.Units), units, s.g.Units)
	} else {
		tensor.AttentionMass(units[0], q, 0, 1, n-1, s.g.group(), s.g.scoreOf(layer, head, score), s.g.Layout, blocks, scratch)
	}
	s.Observe(layer, head, units[0])
}
