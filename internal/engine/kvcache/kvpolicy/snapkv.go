package kvpolicy

import (
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/method"
)

// snapKV keeps the last obs prompt tokens, and the topk tokens before them that these attend to
// most, after pooling (SnapKV, arXiv 2404.14469). It compresses the prompt only: every generated
// token is kept, in a slot of its own. The named setting has the defaults of the authors' code
// (FasterDecoding/SnapKV, init_snapkv): 2048 slots.
var snapKV = method.Method{Name: "snapkv", Params: []method.Param{method.Size("topk", 960, 0), method.Size("obs", 64, 1),
	method.Odd("pool", 7), counted}, Parts: func(v []int) kvcache.Parts {
	of := windowVotes(v[1], v[2], v[3], 0, v[1])
	return kvcache.Parts{TopK: v[0], Recent: v[1], Compressor: of, Needs: of.needs}
}, Named: []method.Named{{Name: "paper", Settings: "topk=2016,obs=32,pool=5,votes=prefix"}}}
