package kvcache

import (
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// WindowVotes is equation 1 of SnapStream (SnapKV, arXiv 2404.14469). It returns the attention that
// each prompt token receives from the last window queries, summed over these and the query heads of the
// group. The softmax runs over all tokens that a query sees, as in the layer itself. No window
// x prompt matrix is stored.
//
// window is the policy's Needs.Window. Latent attention has counted its votes already.
func (s *Statistics) WindowVotes(window int) []float32 {
	if s.Votes != nil {
		return slices.Clone(s.Votes)
	}
	window = min(window, s.Prompt)
	if s.votes != nil && s.voted == window {
		return s.votes
	}
	width := s.Group * s.Layout.KDim
	have := len(s.Queries) / width
	votes := make([]float32, s.Prompt)
	tensor.AttentionMass(votes, s.Queries[(have-window)*width:], width, window, s.Prompt-window, s.Group, s.Score, s.Layout, s.Blocks, new(tensor.AttnScratch))
	return votes
}

// Vote computes the attention of an observation window before Keep, which then only chooses. So the
// cost of each can be measured.
func (s *Statistics) Vote(window int) {
	if window > 0 {
		s.votes, s.voted = s.WindowVotes(window), min(window, s.Prompt)
	}
}

// topK returns the positions of the k largest votes in [lo, hi), ascending. The earlier token wins
// a tie.
func topK(votes []float32, lo, hi, k int) []int32 {
	k = max(0, min(k, hi-lo))
	order := make([]int32, 0, max(0, hi-lo))
	for pos := lo; pos < hi; pos++ {
		order = append(order, int32(pos))
	}
	slices.SortFunc(order, func(a, b int32) int {
		switch {
		case votes[a] > votes[b]:
			return -1
		case votes[a] < votes[b]:
			return 1
		}
		return int(a - b)
	})
	order = order[:k]
	slices.Sort(order)
	return order
}
