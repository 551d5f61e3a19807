package kvpolicy

import (
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/method"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/subspace"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/topk"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// loki keeps every token and reads few (Loki, arXiv 2406.02542, algorithm 1). The principal components of
// a head's keys, after RoPE, give a basis. A step scores all tokens by the leading components of key and
// query, and attends to the budget tokens with the highest scores by their whole keys. dims is the share
// of components (the paper's d_f), and budget the number of tokens (its k_f of all).
//
// The paper computes the basis once per model, from calibration text. Here each head has its own, of the
// first calib tokens of the sequence; until these are stored, a step reads all tokens. The paper chooses
// for each query head. Here all query heads of a KV head read the same tokens: those with the highest
// share of any of their softmaxes. The newest token is always included, and the earlier wins a tie. The
// named setting has the factors of section 6.2.
var loki = method.Method{Name: "loki", Params: []method.Param{method.Size("budget", 1024, 2), method.Share("dims", 250, 1, 1000),
	calibration}, Parts: func(v []int) kvcache.Parts {
	return kvcache.Parts{Selector: leadingScores{subspace.Keys{Calibration: v[2], Share: v[1], Centred: true}, v[0]}}
}, Named: []method.Named{{Name: "paper", Settings: "budget=25%,dims=0.25"}}}

// calibration is the number of a sequence's first tokens whose keys give a basis.
var calibration = method.Param{Key: "calib", Value: 1024, Min: 16, Max: 4096, PowerOfTwo: true}

// leadingScores selects tokens by subspace.Keys.
type leadingScores struct {
	subspace.Keys
	budget int
}

// Reads implements kvcache.Selector.
func (x leadingScores) Reads(slots int) int {
	if slots < x.Calibration {
		return slots
	}
	return min(slots, x.budget)
}

// SelectSlots chooses the slots of the highest scores.
func (x leadingScores) SelectSlots(l tensor.KVLayout, index [][]byte, n int, q kvcache.Queries, s *tensor.AttnScratch) []uint64 {
	if n <= max(x.Calibration-1, x.budget) {
		return nil
	}
	best := highest(x.Scores(l, index, n, q, s), n, q, s, func(row []float32, head int) float32 { return q.Score.LogSum(row, head) })
	best[n-1] = topk.NaN
	return chosen(best, x.budget-1, s)
}

// highest returns for each slot the highest of its scores [Heads][n]. The result of by for a head is
// subtracted from the head's scores before.
func highest(scores []float32, n int, q kvcache.Queries, s *tensor.AttnScratch, by func(row []float32, head int) float32) []float32 {
	best := s.Row(n)
	for i := range best {
		best[i] = topk.NegInf
	}
	for r := range q.Heads {
		row := scores[r*n:][:n]
		q.Score.Of(row)
		if less := by(row, r); less > topk.NegInf {
			tensor.Raise(best, row, less)
		}
	}
	return best
}

// chosen is a bit for each of the k highest scores, and for the newest slot.
func chosen(scores []float32, k int, s *tensor.AttnScratch) []uint64 {
	n := len(scores)
	mask := s.Mask(n)
	clear(mask)
	topk.Highest(scores, k, mask, s)
	mask[(n-1)/64] |= 1 << ((n - 1) % 64)
	return mask
}
