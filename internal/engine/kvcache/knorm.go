package kvcache

// knorm keeps the prompt tokens with the shortest keys, which receive most attention, and the first
// and newest tokens (A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression, arXiv
// 2406.11430). It reads only keys.
var knorm = compressor("knorm", shortKeys{}, 4, 64, 956)

type shortKeys struct{}

func (shortKeys) Score(s *Statistics) []float32 {
	scores := make([]float32, s.Prompt)
	s.EachKey(func(pos int, key []float32) {
		for _, x := range key {
			scores[pos] -= float32(x * x)
		}
	})
	return scores
}
