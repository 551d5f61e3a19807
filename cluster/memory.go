package cluster

// memoryWant is what one of several models wants of the cache memory of a node.
type memoryWant struct {
	fixed    int64 // bytes that its settings give; 0: a part of the rest
	perToken int64 // bytes of a full cache for each token
}

// splitMemory divides the cache memory of a node between several models. Sizes that settings give come
// first, in their order. The other models share the rest so that each holds the same number of tokens.
func splitMemory(bytes int64, wants []memoryWant) []int64 {
	out := make([]int64, len(wants))
	rest, sum := max(bytes, 0), 0.0
	for i, w := range wants {
		if w.fixed > 0 {
			out[i] = min(w.fixed, rest)
			rest -= out[i]
		} else {
			sum += float64(max(w.perToken, 1))
		}
	}
	for i, w := range wants {
		if w.fixed == 0 {
			out[i] = int64(float64(rest) * (float64(max(w.perToken, 1)) / sum))
		}
	}
	return out
}
