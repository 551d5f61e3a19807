package kvpolicy

import (
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/method"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/subspace"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/topk"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// infiniGen keeps every token and reads those that matter to a step (InfiniGen, arXiv 2406.19707, section
// 4). Keys and queries are turned by singular vectors, so that few columns have most of their length. A
// step scores all tokens by these columns alone. It attends to the tokens whose score is within alpha of
// the highest, at most a share of all: the highest. So the number of tokens follows the step. dims is the
// paper's partial weight ratio.
//
// The paper takes the singular vectors of a sample's queries, and the columns with the largest sums in the
// prompt. It speculates with the input of the layer before, to fetch tokens from host memory in time, and
// all heads of a layer fetch equally many. Here the vectors are those of the head's keys, of the first
// calib tokens of the sequence, and the columns their leading ones; until these are stored, a step reads
// all tokens. The query is that of the layer itself, since all tokens are in memory. Each KV head has its
// own number: all query heads of a KV head read what any of them selects. The newest token is always
// included, and the earlier wins a tie. The named setting is that of section 5.1, with alpha for Llama.
var infiniGen = method.Method{Name: "infinigen", Params: []method.Param{method.Share("alpha", 4000, 1, 1_000_000),
	method.Share("most", 200, 1, 1000), method.Share("dims", 300, 1, 1000), calibration}, Parts: func(v []int) kvcache.Parts {
	return kvcache.Parts{Selector: nearHighest{subspace.Keys{Calibration: v[3], Share: v[2]}, v[0], v[1]}}
}, Named: []method.Named{{Name: "paper", Settings: "alpha=5,most=0.2,dims=0.3"}}}

// nearHighest selects tokens by subspace.Keys.
type nearHighest struct {
	subspace.Keys
	alpha, most int // thousandths
}

// Reads implements kvcache.Selector. A step may read fewer.
func (x nearHighest) Reads(slots int) int {
	if slots < x.Calibration {
		return slots
	}
	return min(slots, 1+int(int64(slots)*int64(x.most)/1000))
}

// SelectSlots chooses the slots whose score is close to the highest.
func (x nearHighest) SelectSlots(l tensor.KVLayout, index [][]byte, n int, q kvcache.Queries, s *tensor.AttnScratch) []uint64 {
	if n < x.Calibration {
		return nil
	}
	best := highest(x.Scores(l, index, n, q, s), n, q, s, func(row []float32, _ int) float32 { return slices.Max(row) })
	least, near := -float32(x.alpha)/1000, 0
	for i, score := range best {
		if !(score > least) {
			best[i] = topk.NaN
		} else {
			near++
		}
	}
	best[n-1] = topk.NaN
	return chosen(best, max(1, min(near, x.Reads(n)-1)), s)
}
