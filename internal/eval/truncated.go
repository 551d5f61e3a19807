package eval

import (
	"context"

	"github.com/shoal-llm/shoal/internal/engine/alone"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
)

// truncatedName is the baseline that cuts texts instead of caches: truncated/N reads the first and the last half of
// N tokens of a prompt with full attention, as LongBench (arXiv 2308.14508) and the comparisons of the papers do.
// truncated/N% reads that share of each prompt.
const truncatedName = "truncated"

// prompt returns the part of a sample's prompt that a policy reads.
func (p *Policy) prompt(all []int32) []int32 {
	if p.Family != truncatedName {
		return all
	}
	keep := p.Budget
	if p.share > 0 {
		keep = max(2, int(p.share*float64(len(all))))
	}
	return cutMiddle(all, keep, true)
}

// readTruncated reads a prompt that was cut as sequence seq, and returns the first token.
func readTruncated(ctx context.Context, a *alone.Socket, seq uint64, prompt []int32) (int32, error) {
	tokens := make([]uint32, len(prompt))
	for i, t := range prompt {
		tokens[i] = uint32(t)
	}
	first, _, _, err := a.Prefill(ctx, alone.Prompt{Seq: seq, Policy: kvcache.Full().Spec(), Tokens: tokens, Chunk: readChunk})
	return first, err
}
