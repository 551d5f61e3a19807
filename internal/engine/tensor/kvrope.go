package tensor

import "github.com/shoal-llm/shoal/internal/engine/tensor/kernel"

// RotateKeys copies block src to dst and rotates the keys of the first len(offsets) slots: slot i
// by offsets[i] positions; zero leaves the key unchanged. rope returns cos and sin (KDim/2) of a
// rotation by n positions.
//
// This is the re-indexing of EQUIP (figure 16) for a page of the cache. Rotations add up, so a key
// that is stored rotated at its true position needs only the rotation by the difference to its new
// position. A key is widened to float32, rotated as by [RopeRotateHalf], and rounded (or quantized)
// to the block's type as by Put.
//
// half is nil or the rotate-half cache of src (see PutHalf), from which rotate_half of a key is
// then read. The bits are the same.
//
// In a latent layout only the rope key is rotated: rope returns half of its width.
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
			kernel.Active.Rope(k, cos, sin)
		} else {
			l.getKey(half, slot, src, turned)
			straightAndTurned(k, turned, cos, sin)
		}
		l.putKey(dst, slot, k)
	}
}

// straightAndTurned computes k = k*cos + rotate_half(k)*sin, each product rounded. The bits are
// those of RopeRotateHalf, whose subtraction equals this addition of the negative.
func straightAndTurned(k, turned, cos, sin []float32) {
	h := len(cos)
	for _, at := range [2]int{0, h} {
		x, y := k[at:at+h], turned[at:at+h]
		for i, c := range cos {
			x[i] = float32(x[i]*c) + float32(y[i]*sin[i])
		}
	}
}

// HalfBytes returns the size of the rotate-half cache of one block: its keys again, panel by panel, with
// rotate_half applied. Int8 uses the scales of the block.
func (l KVLayout) HalfBytes() int {
	if l.Latent {
		return BlockSlots * l.ropeWidth() * l.elem()
	}
	return l.valuesAt()
}

// PutHalf fills a slot of the rotate-half cache from the key in the block (EQUIP, figure 17):
// (-k[d/2:], k[:d/2]), exactly.
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

// Blocks returns n buffers of size bytes each, for cache blocks whose keys are rotated for one
// read. The next call reuses them.
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

// Row returns scratch of n elements, which the next call reuses.
func (s *AttnScratch) Row(n int) []float32 {
	if cap(s.row) < n {
		s.row = make([]float32, n)
	}
	return s.row[:n]
}

// Chosen returns scratch for choosing k of n, which the next call reuses.
func (s *AttnScratch) Chosen(n, k int) (keys []uint32, places []int32) {
	if cap(s.keys) < n {
		s.keys = make([]uint32, n+n/4)
	}
	if cap(s.places) < k {
		s.places = make([]int32, k)
	}
	return s.keys[:n], s.places[:k]
}

// Mask returns scratch with a bit for each of n slots, which the next call reuses.
func (s *AttnScratch) Mask(n int) []uint64 {
	if need := (n + 63) / 64; cap(s.mask) < need {
		s.mask = make([]uint64, 2*need)
	}
	return s.mask[:(n+63)/64]
}

// Tops returns the largest numbers of groups of x: group 16*i+j has the m elements 16*m*i+j,
// 16*m*i+j+16, and so on. The rest at the end of x is in no group.
func (s *AttnScratch) Tops(x []float32, m int) []float32 {
	n := len(x) / (16 * m) * 16
	if cap(s.tops) < n {
		s.tops = make([]float32, n+n/4)
	}
	s.tops = s.tops[:n]
	for i := 0; i < n; i += 16 {
		acc := (*kernel.Lanes)(s.tops[i:])
		*acc = kernel.NegInfLanes
		kernel.Active.LaneMax(acc, x[i*m:][:16*m])
	}
	return s.tops
}
