package shadowkv

// Stored results (package results): the factors of a layer on its owner, that is the basis of each head
// and then the blocks of coefficients, in the form that they have in memory.

const factorsKind = "factors"

// parts returns the memory of a layer's factors, in the order in which they are stored.
func (f *factored) parts(layer int) (all [][]byte) {
	for _, h := range f.layers[layer] {
		all = append(all, h.basis)
	}
	return append(all, f.layers[layer][0].coeffs...)
}

// storedBytes returns the size of a layer's factors.
func (f *factored) storedBytes(layer int) (n int) {
	for _, b := range f.parts(layer) {
		n += len(b)
	}
	return n
}

// recall fills the factors of a layer with those that were computed before. It returns false if there
// are none.
func (f *factored) recall(layer int) bool {
	size := f.storedBytes(layer)
	src := f.s.Results.Recall(factorsKind, layer, 0, size)
	if len(src) != size {
		return false
	}
	for _, b := range f.parts(layer) {
		src = src[copy(b, src):]
	}
	return true
}

// keep stores the factors of a layer. They are copied when the disk is ready, if the cache still exists.
func (f *factored) keep(layer int) {
	f.s.Results.Keep(factorsKind, layer, 0, f.storedBytes(layer), func(dst []byte) []byte {
		if f.layers == nil {
			return nil
		}
		for _, b := range f.parts(layer) {
			dst = append(dst, b...)
		}
		return dst
	})
}
