package kvpolicy

import (
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/method"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/voting"
)

// votes scores a token by equations 1 and 2 of SnapStream: the attention that the last queries pay to it,
// pooled over its neighbours.
type votes struct {
	needs kvcache.Needs // Window queries
	pool  int           // width of the average pooling, odd; 1: none
	edge  bool          // tokens of the window give their neighbours no votes
}

// The tokens whose votes are counted. Of a prompt, all are, as Shoal did first: the last candidates also
// get votes of the window's own tokens. Of its prefix, those before the window are, as in listing 6 and in
// SnapKV's listing 1. Of candidates, those that may be evicted are, and the softmax runs over them alone
// (equation 3).
const (
	ofPrompt = iota
	ofPrefix
	ofCandidates
)

var counted = method.Param{Key: "votes", Max: 2, Optional: true,
	Words: []string{ofPrompt: "prompt", ofPrefix: "prefix", ofCandidates: "candidates"}}

// windowVotes returns the votes of the last obs queries. All tokens but the first sink and the newest recent ones
// are candidates.
func windowVotes(obs, pool, of, sink, recent int) votes {
	v := votes{needs: kvcache.Needs{Window: obs}, pool: pool, edge: of == ofPrefix}
	if of == ofCandidates {
		v.needs.Candidates = voting.Edges{Sink: sink, Recent: recent}
	}
	return v
}

func (v votes) Score(s *kvcache.Statistics) []float32 {
	of := s.WindowVotes(v.needs)
	if prefix := max(0, s.Prompt-v.needs.Window); v.edge {
		return slices.Concat(pooled(of[:prefix], v.pool), make([]float32, s.Prompt-prefix))
	}
	return pooled(of, v.pool)
}

// pooled returns the average pooling of equation 2: stride 1, zero padding, an odd kernel. The padding
// counts as in PyTorch's avg_pool1d. Sums run from the left, so the bits depend on the votes alone.
func pooled(votes []float32, kernel int) []float32 {
	if kernel <= 1 {
		return votes
	}
	out := make([]float32, len(votes))
	for i := range votes {
		sum := float32(0)
		for j := max(0, i-kernel/2); j <= min(len(votes)-1, i+kernel/2); j++ {
			sum += votes[j]
		}
		out[i] = sum / float32(kernel)
	}
	return out
}
