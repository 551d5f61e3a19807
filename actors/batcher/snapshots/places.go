// Package snapshots decides where the prefix cache keeps snapshots of recurrent states.
package snapshots

import (
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// The bounds of Stride. A shorter stride would cut the chunks of prompts.
const (
	minStride = 256
	maxStride = 1024
)

// Stride returns the distance of regular snapshots in tokens: a power of two, chosen so that snapshots
// take about as many bytes as the rows between them, within bounds.
func Stride(g *kvcache.Geometry) int {
	n := minStride
	for n < maxStride && int64(n)*g.TokenBytes() < kvcache.StateBytes(*g, g.KVHeads) {
		n *= 2
	}
	return n
}

// At returns the next place, after the first from tokens of a prompt, where a snapshot is worth keeping;
// 0: none. The places are multiples of the stride, branch, and the end of the last block that another
// prompt can reuse. branch is where an earlier text left the prompt's; 0: nowhere.
func At(g *kvcache.Geometry, p *kvcache.Policy, prompt, from, branch int) int {
	last := p.ReusableTokens(prompt) / tensor.BlockSlots * tensor.BlockSlots
	if g.Recurrent.Layers == 0 || last <= from {
		return 0
	}
	if branch > from {
		last = min(last, branch)
	}
	n := Stride(g)
	return min(last, (from/n+1)*n)
}
