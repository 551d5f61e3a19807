package tensor

// RotateKeys copies block src to dst, the keys of some slots rotated further:
// slot i by offsets[i] positions, as many slots as offsets has; zero leaves the
// key as it is. rope gives cos and sin (KDim/2) of a rotation by n positions.
//
// This is the re-indexing of EQUIP (figure 16) on a page of the cache: rotations
// add up, so a key that is stored rotated at its true position needs only the
// rotation by the difference to the position that it is given now. A key is
// widened to float32, rotated as [RopeRotateHalf] does, and rounded (or quantised)
// to the type of the block as Put does.
//
// half is nil, or the rotate-half cache of src (see PutHalf): then rotate_half of
// a key is read there instead of being taken from the key. The bits are the same.
//
// Of a latent layout only the rope key turns: rope gives half of its width.
//
// row is scratch of 2*KDim elements.
func (l KVLayout) RotateKeys(dst, src, half []byte, offsets []int32, rope func(n int) (cos, sin []float32), row []float32) {
	copy(dst[:l.BlockBytes()], src[:l.BlockBytes()])
	if l.Latent {
		l.rotateLatent(dst, src, half, offsets, rope, row)
		return
	}
	k, turned := row[:l.KDim], row[l.KDim:2*l.KDim]
	for slot, n := range offsets {
		if n == 0 {
			continue
		}
		cos, sin := rope(int(n))
		l.getKey(src, slot, src, k)
		if half == nil {
			active.rope(k, cos, sin)
		} else {
			l.getKey(half, slot, src, turned)
			straightAndTurned(k, turned, cos, sin)
		}
		l.putKey(dst, slot, k)
	}
}

// straightAndTurned is k = k*cos + rotate_half(k)*sin, each product rounded: the
// bits of RopeRotateHalf, whose subtraction is this addition of the negative.
func straightAndTurned(k, turned, cos, sin []float32) {
	h := len(cos)
	for _, at := range [2]int{0, h} {
		x, y := k[at:at+h], turned[at:at+h]
		for i, c := range cos {
			x[i] = float32(x[i]*c) + float32(y[i]*sin[i])
		}
	}
}

// HalfBytes is the size of the rotate-half cache of one block: its keys again,
// panel by panel, with rotate_half applied. Scales of Int8 are those of the block.
func (l KVLayout) HalfBytes() int {
	if l.Latent {
		return BlockSlots * l.ropeWidth() * l.elem()
	}
	return l.valuesAt()
}

// PutHalf fills a slot of the rotate-half cache from the key that lies in the
// block (EQUIP, figure 17): (-k[d/2:], k[:d/2]), exactly.
func (l KVLayout) PutHalf(half, block []byte, slot int) {
	l.check(block, slot)
	h := l.KDim / 2
	switch l.Type {
	case F32:
		turn(floats(half), floats(block), l, slot, h, func(x float32) float32 { return -x })
	case BF16:
		turn(halves(half), halves(block), l, slot, h, func(x uint16) uint16 { return x ^ 0x8000 })
	case Int8:
		turn(int8s(half), int8s(block), l, slot, h, func(x int8) int8 { return -x })
	}
}

func turn[T any](dst, src []T, l KVLayout, slot, h int, negative func(T) T) {
	if l.Latent {
		turnLatent(dst, src, l, slot, negative)
		return
	}
	for i := range h {
		dst[l.at(slot, i)] = negative(src[l.at(slot, h+i)])
		dst[l.at(slot, h+i)] = src[l.at(slot, i)]
	}
}

// Blocks are n buffers of size bytes each that live as long as s: cache blocks
// whose keys were rotated for one reading. The next call reuses them.
func (s *AttnScratch) Blocks(n, size int) [][]byte {
	for len(s.blocks) < n {
		s.blocks = append(s.blocks, nil)
	}
	for i, b := range s.blocks[:n] {
		if cap(b) < size {
			b = make([]byte, size+63)
			b = b[-addressOf(b)&63:]
		}
		s.blocks[i] = b[:size]
	}
	return s.blocks[:n]
}

// Row is scratch of n elements that the next call reuses.
func (s *AttnScratch) Row(n int) []float32 {
	if cap(s.row) < n {
		s.row = make([]float32, n)
	}
	return s.row[:n]
}

// Chosen is scratch for choosing k of n, which the next call reuses.
func (s *AttnScratch) Chosen(n, k int) (keys []uint32, places []int32) {
	if cap(s.keys) < n {
		s.keys = make([]uint32, n+n/4)
	}
	if cap(s.places) < k {
		s.places = make([]int32, k)
	}
	return s.keys[:n], s.places[:k]
}

// Mask is scratch for a bit per slot of n slots, which the next call reuses.
func (s *AttnScratch) Mask(n int) []uint64 {
	if need := (n + 63) / 64; cap(s.mask) < need {
		s.mask = make([]uint64, 2*need)
	}
	return s.mask[:(n+63)/64]
}

// Tops are the largest numbers of groups of x: group 16*i+j has the elements 16*m*i+j, 16*m*i+j+16,
// and so on, m of them. What is left at the end of x is in no group.
func (s *AttnScratch) Tops(x []float32, m int) []float32 {
	n := len(x) / (16 * m) * 16
	if cap(s.tops) < n {
		s.tops = make([]float32, n+n/4)
	}
	s.tops = s.tops[:n]
	for i := 0; i < n; i += 16 {
		acc := (*lanes)(s.tops[i:])
		*acc = negInfLanes
		active.laneMax(acc, x[i*m:][:16*m])
	}
	return s.tops
}
