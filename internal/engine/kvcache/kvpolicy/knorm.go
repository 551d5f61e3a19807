package kvpolicy

import (
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/method"
)

// knorm keeps the prompt tokens with the shortest keys, which receive most attention, and the first
// and newest tokens (A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression, arXiv
// 2406.11430). It reads only keys.
var knorm = method.Method{Name: "knorm", Params: []method.Param{method.Size("sink", 4, 0), method.Size("recent", 64, 1),
	method.Size("topk", 956, 0)}, Parts: func(v []int) kvcache.Parts {
	return kvcache.Parts{Sink: v[0], Recent: v[1], TopK: v[2], Compressor: shortKeys{}}
}}

type shortKeys struct{}

func (shortKeys) Score(s *kvcache.Statistics) []float32 {
	scores := make([]float32, s.Prompt)
	s.EachKey(func(pos int, key []float32) {
		for _, x := range key {
			scores[pos] -= float32(x * x)
		}
	})
	return scores
}
