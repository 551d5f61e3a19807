package kvcache

// snapKV keeps the last obs prompt tokens, and the topk tokens before them that these attend to
// most, after pooling (SnapKV, arXiv 2404.14469). It compresses the prompt only: every generated
// token is kept, in a slot of its own.
var snapKV = method{"snapkv", []param{size("topk", 960, 0), size("obs", 64, 1), odd("pool", 7)}, func(v []int) Parts {
	return Parts{TopK: v[0], Recent: v[1], Compressor: votes{v[1], v[2]}, Needs: Needs{Window: v[1]}}
}}
