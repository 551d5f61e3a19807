package kvcache

import (
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/voting"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// WindowVotes is equation 1 of SnapStream (SnapKV, arXiv 2404.14469). It returns the attention that
// each prompt token receives from the last n.Window queries, summed over these and the query heads of the
// group. The softmax runs over all tokens up to the query's, as in the layer itself, or over
// n.Candidates. No window x prompt matrix is stored.
//
// n are the policy's Needs. Latent attention has counted its votes already.
func (s *Statistics) WindowVotes(n Needs) []float32 {
	if s.Votes != nil {
		return slices.Clone(s.Votes)
	}
	window := min(n.Window, s.Prompt)
	if s.votes != nil && s.voted == n {
		return s.votes
	}
	width := s.Group * s.Layout.KDim
	have := len(s.Queries) / width
	votes := make([]float32, s.Prompt)
	queries, before, among := s.Queries[(have-window)*width:], s.Prompt-window, n.Candidates.Between(s.Prompt)
	voting.Count(votes, queries, width, window, before, s.Group, s.Score, s.Layout, s.Rows(), among, new(tensor.AttnScratch))
	return votes
}

// Vote computes the attention of an observation window before Keep, which then only chooses. So the
// cost of each can be measured.
func (s *Statistics) Vote(n Needs) {
	if n.Window > 0 {
		s.votes, s.voted = s.WindowVotes(n), n
	}
}
