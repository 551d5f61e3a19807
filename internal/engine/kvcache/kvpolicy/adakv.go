package kvpolicy

import (
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/method"
)

// adaKV is SnapKV whose heads have unequal numbers of tokens (Ada-KV, arXiv 2407.11550, algorithm 1; see
// package budget). topk is the mean over the heads of a layer, and floor the share of the mean in each
// budget (the authors' floor_alpha). Votes count as in SnapKV's listing. Budgets move between heads in
// blocks of 64 tokens, those of the paper in tokens. The named setting has window, kernel and floor of the
// authors' code, whose pooling takes maxima.
var adaKV = method.Method{Name: "adakv", Params: []method.Param{
	method.Size("topk", 960, 0), method.Size("obs", 64, 1), method.Odd("pool", 7), method.Floor,
}, Parts: func(v []int) kvcache.Parts {
	p := snapKV.Parts([]int{v[0], v[1], v[2], ofPrefix})
	p.HeadBudget = method.HeadBudget(v[3])
	return p
}, Named: []method.Named{{Name: "paper", Settings: "obs=32,pool=7,floor=0.2"}}}
