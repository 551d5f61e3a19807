package kvcache

// knorm keeps the prompt tokens whose keys are shortest: they receive most attention (A Simple
// and Effective L2 Norm-Based Strategy for KV Cache Compression, arXiv 2406.11430), the first
// ones and the newest ones whole. It reads nothing but keys.
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
