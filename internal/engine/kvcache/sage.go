package kvcache

// sage is SAGE-KV (arXiv 2503.08879) with the slots of SnapStream: only the last prompt token
// votes, without pooling.
var sage = method{"sage", []param{size("sink", 4, 0), size("recent", 64, 1), size("topk", 956, 0)}, func(v []int) Parts {
	return snapStream.parts([]int{v[0], v[1], v[2], 1, 1})
}}
