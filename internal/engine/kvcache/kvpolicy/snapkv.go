package kvpolicy

import (
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/method"
)

// snapKV keeps the last obs prompt tokens, and the topk tokens before them that these attend to
// most, after pooling (SnapKV, arXiv 2404.14469). It compresses the prompt only: every generated
// token is kept, in a slot of its own.
var snapKV = method.Method{Name: "snapkv", Params: []method.Param{method.Size("topk", 960, 0), method.Size("obs", 64, 1), method.Odd("pool", 7)}, Parts: func(v []int) kvcache.Parts {
	return kvcache.Parts{TopK: v[0], Recent: v[1], Compressor: votes{v[1], v[2]}, Needs: kvcache.Needs{Window: v[1]}}
}}
