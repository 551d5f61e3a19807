package dequant

// The k-quants: blocks of 256 in sub-blocks of 16 or 32. Their scales (and minima) are small
// integers times one (two) float16.

// sub writes n elements y = d*q - m, with each product and difference rounded.
func sub(y []float32, d, m float32, q func(i int) int) {
	for i := range y {
		y[i] = float32(d*float32(q(i))) - m
	}
}

// scaleMin unpacks the 6-bit scale and minimum of sub-block j of 8, from the 12
// bytes of Q4_K and Q5_K.
func scaleMin(s []byte, j int) (scale, minimum float32) {
	if j < 4 {
		return float32(s[j] & 63), float32(s[j+4] & 63)
	}
	return float32(s[j+4]&15 | s[j-4]>>6<<4), float32(s[j+4]>>4 | s[j]>>6<<4)
}

// dequantQ2K: scales 16 (scale low, minimum high nibble), quants 64, d, dmin.
func dequantQ2K(y *[maxBlock]float32, b []byte) {
	d, dmin := half(b, 80), half(b, 82)
	for i := range 16 { // sub-blocks of 16, in order
		s := b[i]
		q, shift := b[16+i/8*32+i%2*16:], i%8/2*2
		sub(y[i*16:(i+1)*16], d*float32(s&15), dmin*float32(s>>4), func(l int) int { return int(q[l] >> shift & 3) })
	}
}

// dequantQ3K: high bits 32, quants 64, scales 12 (16 of 6 bits, minus 32), d.
func dequantQ3K(y *[maxBlock]float32, b []byte) {
	d, packed := half(b, 108), b[96:108]
	for i := range 16 {
		low := packed[i%8] >> (i / 8 * 4) & 15
		high := packed[8+i%4] >> (i / 4 * 2) & 3
		scale := int(low|high<<4) - 32
		hm, q, shift := b[i%2*16:], b[32+i/8*32+i%2*16:], i%8/2*2
		sub(y[i*16:(i+1)*16], d*float32(scale), 0, func(l int) int {
			return int(q[l]>>shift&3) - 4*int(1^hm[l]>>(i/2)&1)
		})
	}
}

// dequantQ4K: d, dmin, scales 12, quants 128: 32 low, then 32 high nibbles.
func dequantQ4K(y *[maxBlock]float32, b []byte) {
	d, dmin := half(b, 0), half(b, 2)
	for j := range 8 {
		s, m := scaleMin(b[4:16], j)
		q, shift := b[16+j/2*32:], j%2*4
		sub(y[j*32:(j+1)*32], d*s, dmin*m, func(l int) int { return int(q[l] >> shift & 15) })
	}
}

// dequantQ5K: d, dmin, scales 12, high bits 32 (bit j of sub-block j), quants 128.
func dequantQ5K(y *[maxBlock]float32, b []byte) {
	d, dmin := half(b, 0), half(b, 2)
	for j := range 8 {
		s, m := scaleMin(b[4:16], j)
		high, q, shift := b[16:], b[48+j/2*32:], j%2*4
		sub(y[j*32:(j+1)*32], d*s, dmin*m, func(l int) int { return int(q[l]>>shift&15 | high[l]>>j&1<<4) })
	}
}

// dequantQ6K: low nibbles 128, high pairs 64, scales 16 signed, d. A half of
// 128 elements is four runs of 32, each of two sub-blocks.
func dequantQ6K(y *[maxBlock]float32, b []byte) {
	d := half(b, 208)
	for i := range 16 {
		run, h := i%8/2, i/8
		at := i % 2 * 16
		low, high, scale := b[h*64+run%2*32+at:], b[128+h*32+at:], int8(b[192+i])
		sub(y[i*16:(i+1)*16], d*float32(scale), 0, func(l int) int {
			return int(low[l]>>(run/2*4)&15|high[l]>>(run*2)&3<<4) - 32
		})
	}
}
