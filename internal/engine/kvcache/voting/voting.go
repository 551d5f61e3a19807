// Package voting counts the votes of an observation window, and finds the tokens with the most votes.
package voting

import (
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Edges are the first and the newest tokens of a prompt.
type Edges struct{ Sink, Recent int }

// Between returns the span of a prompt's tokens between the edges, over which the softmax of votes runs. Without
// edges it is empty: the softmax runs over all tokens.
func (e Edges) Between(prompt int) tensor.Span {
	if e == (Edges{}) {
		return tensor.Span{}
	}
	return tensor.Span{Lo: e.Sink, Hi: prompt - e.Recent}
}

// Count adds to votes[slot] the attention that slot receives from n successive query tokens of g heads,
// the first at position first; q[i*ldq:] is [g][KDim]. The softmax runs over all slots up to the
// token's own. With a non-empty span it runs over those of the span only, which alone get votes.
func Count(votes, q []float32, ldq, n, first, g int, score tensor.Score, l tensor.KVLayout, blocks [][]byte,
	among tensor.Span, s *tensor.AttnScratch) {
	if among.Len() <= 0 {
		tensor.AttentionMass(votes, q, ldq, n, first, g, score, l, blocks, s)
		return
	}
	// Each row of the softmax is divided by its sum over the span. A sink of the model is a factor of
	// the whole row, so the sink of any head gives the same quotient.
	row := make([]float32, first+n)
	for i := range n {
		hi := min(among.Hi, first+i+1)
		if hi <= among.Lo { // the token is before the span
			continue
		}
		for h := range g {
			clear(row)
			tensor.AttentionMass(row[:first+i+1], q[i*ldq+h*l.KDim:], ldq, 1, first+i, 1, score, l, blocks, s)
			sum := 0.0
			for _, x := range row[among.Lo:hi] {
				sum += float64(x)
			}
			if sum == 0 { // none is seen, or their shares are too small for float32
				continue
			}
			for j := among.Lo; j < hi; j++ {
				votes[j] += float32(float64(row[j]) / sum)
			}
		}
	}
}

// Top returns the positions of the k largest votes in [lo, hi), ascending. The earlier token wins
// a tie.
func Top(votes []float32, lo, hi, k int) []int32 {
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
