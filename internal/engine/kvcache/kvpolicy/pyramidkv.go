package kvpolicy

import (
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/method"
)

// pyramidKV is SnapKV with more tokens in lower layers than in higher ones (PyramidKV, arXiv 2406.02069,
// section 4.2; see package budget). topk is the mean over the layers. Votes count as in SnapKV's listing. The
// named setting has window, kernel and beta of the authors' code, whose pooling takes maxima.
var pyramidKV = method.Method{Name: "pyramidkv", Params: []method.Param{method.Size("topk", 960, 0), method.Size("obs", 64, 1),
	method.Odd("pool", 7), method.Beta}, Parts: func(v []int) kvcache.Parts {
	p := snapKV.Parts([]int{v[0], v[1], v[2], ofPrefix})
	p.LayerTopK = method.Pyramid(v[0], v[3])
	return p
}, Named: []method.Named{{Name: "paper", Settings: "obs=8,pool=7,beta=20"}}}
