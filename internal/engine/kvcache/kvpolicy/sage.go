package kvpolicy

import (
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/method"
)

// sage is SAGE-KV (arXiv 2503.08879) with the slots of SnapStream: only the last prompt token
// votes, without pooling.
var sage = method.Method{Name: "sage", Params: []method.Param{method.Size("sink", 4, 0), method.Size("recent", 64, 1),
	method.Size("topk", 956, 0)}, Parts: func(v []int) kvcache.Parts {
	return snapStream.Parts([]int{v[0], v[1], v[2], 1, 1, ofPrompt})
}}
