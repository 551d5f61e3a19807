package kvpolicy

import "github.com/shoal-llm/shoal/internal/engine/kvcache"

// votes scores a token by equations 1 and 2 of SnapStream: the attention that the last obs queries
// pay to it, pooled over its neighbours. Needs.Window must be obs.
type votes struct {
	obs  int // queries
	pool int // width of the average pooling, odd; 1: none
}

func (v votes) Score(s *kvcache.Statistics) []float32 { return pooled(s.WindowVotes(v.obs), v.pool) }

// pooled is the average pooling of equation 2: stride 1, zero padding, an odd kernel. The padding
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
