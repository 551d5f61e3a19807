package tensor

// plane is one kind of data in a cache block: row bytes for each slot, from byte at on. Keys of a
// layout that is not latent are in panels, so only runs of 16 slots are contiguous.
type plane struct{ at, row int }

// planes returns the planes of a block: keys, values, and the scales of both. Planes that a layout
// lacks are empty.
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
