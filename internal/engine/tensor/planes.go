package tensor

// plane is one kind of data in a cache block: row bytes of each slot from byte `at` on. Keys
// of a layout that is not latent lie in panels: only runs of 16 slots are in one piece.
type plane struct{ at, row int }

// planes of a block: keys, values, and the scales of both. Those that a layout does not have
// are empty.
func (l KVLayout) planes() (p [4]plane) {
	e := l.elem()
	p[0] = plane{0, l.KDim * e}
	if !l.Latent {
		p[1] = plane{l.valuesAt(), l.VDim * e}
	}
	if l.Type == Int8 {
		p[2], p[3] = plane{l.scalesAt(), 4}, plane{l.scalesAt() + 4*BlockSlots, 4}
	}
	return p
}
