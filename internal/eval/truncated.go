package eval

import (
	"context"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/alone"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
)

// truncatedName is the baseline that cuts texts instead of caches: truncated/N reads the first and the last half of
// N tokens of a prompt with full attention, as LongBench (arXiv 2308.14508) and the comparisons of the papers do.
const truncatedName = "truncated"

// prompt is what a policy reads of a sample's prompt.
func (p *Policy) prompt(all []int32) []int32 {
	if p.Family != truncatedName || len(all) <= p.Budget {
		return all
	}
	return slices.Concat(all[:p.Budget/2], all[len(all)-(p.Budget-p.Budget/2):])
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
