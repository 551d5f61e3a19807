package sampler

import "math/bits"

// philox is Philox 4x32-10: ten rounds that turn a counter into four random words. It has no state,
// so a replayed position draws the same number. Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011.
func philox(counter [4]uint32, key [2]uint32) [4]uint32 {
	const m0, m1 = 0xD2511F53, 0xCD9E8D57
	const w0, w1 = 0x9E3779B9, 0xBB67AE85
	for range 10 {
		hi0, lo0 := bits.Mul32(m0, counter[0])
		hi1, lo1 := bits.Mul32(m1, counter[2])
		counter = [4]uint32{hi1 ^ counter[1] ^ key[0], lo1, hi0 ^ counter[3] ^ key[1], lo0}
		key[0] += w0
		key[1] += w1
	}
	return counter
}

// draw returns 64 uniform bits for one position of the sequence with this seed.
func draw(seed uint64, position int) uint64 {
	c := uint64(position)
	r := philox([4]uint32{uint32(c), uint32(c >> 32)}, [2]uint32{uint32(seed), uint32(seed >> 32)})
	return uint64(r[1])<<32 | uint64(r[0])
}
