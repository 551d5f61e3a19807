package dequant

import (
	"encoding/binary"
	"math/bits"
)

// The i-quants of ggml: blocks of 256 whose elements are looked up in groups of 4 or 8 in a grid.
// Signs are bits of a byte, bit j for element j of a group of 8. Seven bits of signs have the eighth
// as their parity. Scales are small integers times the block's float16.

func word(b []byte, at int) uint32  { return binary.LittleEndian.Uint32(b[at:]) }
func short(b []byte, at int) uint32 { return uint32(binary.LittleEndian.Uint16(b[at:])) }

// nibble is half i of the bytes from at on, the lower half of a byte first.
func nibble(b []byte, at, i int) int { return int(b[at+i/2] >> (i % 2 * 4) & 15) }

// parity adds the eighth sign to seven.
func parity(s uint32) uint32 { return s&127 | uint32(bits.OnesCount32(s&127)&1)<<7 }

// look writes an entry of a grid times d; bit j of signs negates element j.
func look(y []float32, entry []float32, d float32, signs uint32) {
	for j, v := range entry {
		if y[j] = d * v; signs>>j&1 != 0 {
			y[j] = -y[j]
		}
	}
}

// dequantIQ2XXS: d, then for each 32 four indexes of 8 elements, and a word of four signs of 7 bits
// and the scale.
func dequantIQ2XXS(y *[maxBlock]float32, b []byte) {
	d, grid := half(b, 0), grids()[gridIQ2XXS]
	for i := range 8 {
		w := word(b, 2+i*8+4)
		s := d * (0.5 + float32(w>>28)) * 0.25
		for j := range 4 {
			look(y[i*32+j*8:], grid.entry(uint32(b[2+i*8+j])), s, parity(w>>(7*j)))
		}
	}
}

// dequantIQ2XS: d, 32 words of 9 bits of index and 7 of signs, and a nibble of scale for each 16.
func dequantIQ2XS(y *[maxBlock]float32, b []byte) {
	d, grid := half(b, 0), grids()[gridIQ2XS]
	for i := range 32 {
		w := short(b, 2+i*2)
		s := d * (0.5 + float32(nibble(b, 66, i/2))) * 0.25
		look(y[i*8:], grid.entry(w&511), s, parity(w>>9))
	}
}

// dequantIQ2S: d, 32 indexes, 32 bytes of signs, two more bits for each index, and a nibble of scale
// for each 16.
func dequantIQ2S(y *[maxBlock]float32, b []byte) {
	d, grid := half(b, 0), grids()[gridIQ2S]
	for i := range 32 {
		at := uint32(b[2+i]) | uint32(b[66+i/4]>>(i%4*2)&3)<<8
		s := d * (0.5 + float32(nibble(b, 74, i/2))) * 0.25
		look(y[i*8:], grid.entry(at), s, uint32(b[34+i]))
	}
}

// dequantIQ3XXS: d, 64 indexes of 4 elements, and for each 32 a word of four signs and the scale.
func dequantIQ3XXS(y *[maxBlock]float32, b []byte) {
	d, grid := half(b, 0), grids()[gridIQ3XXS]
	for i := range 64 {
		w := word(b, 66+i/8*4)
		s := d * (0.5 + float32(w>>28)) * 0.5
		look(y[i*4:], grid.entry(uint32(b[2+i])), s, parity(w>>(i%8/2*7))>>(i%2*4))
	}
}

// dequantIQ3S: d, 64 indexes, a ninth bit for each, 32 bytes of signs, and a nibble of scale for
// each 32.
func dequantIQ3S(y *[maxBlock]float32, b []byte) {
	d, grid := half(b, 0), grids()[gridIQ3S]
	for i := range 64 {
		at := uint32(b[2+i]) | uint32(b[66+i/8]>>(i%8)&1)<<8
		s := d * float32(1+2*nibble(b, 106, i/8))
		look(y[i*4:], grid.entry(at), s, uint32(b[74+i/2])>>(i%2*4))
	}
}

// shifted writes an entry of IQ1's grid, plus an eighth or minus one, times d.
func shifted(y, entry []float32, d float32, minus bool) {
	delta := float32(0.125)
	if minus {
		delta = -delta
	}
	for j, v := range entry {
		y[j] = d * (v + delta)
	}
}

// dequantIQ1S: d, 32 indexes of 8 elements, and for each 32 a word of four times three bits of
// index, the scale and the sign of the shift.
func dequantIQ1S(y *[maxBlock]float32, b []byte) {
	d, grid := half(b, 0), grids()[gridIQ1S]
	for i := range 32 {
		w := short(b, 34+i/4*2)
		at := uint32(b[2+i]) | w>>(i%4*3)&7<<8
		shifted(y[i*8:], grid.entry(at), d*float32(2*(w>>12&7)+1), w>>15 != 0)
	}
}

// scaleIQ1M returns the bits of the float16 of a block of IQ1_M: the upper nibbles of its four words of
// scales.
func scaleIQ1M(b []byte) uint16 {
	return uint16(short(b, 48)>>12 | short(b, 50)>>12<<4 | short(b, 52)>>12<<8 | short(b, 54)>>12<<12)
}

// dequantIQ1M: 32 indexes, a nibble for each (three bits of index, the sign of the shift), and three
// bits of scale for each 16.
func dequantIQ1M(y *[maxBlock]float32, b []byte) {
	d, grid := F16(scaleIQ1M(b)), grids()[gridIQ1S]
	for i := range 32 {
		h := nibble(b, 32, i)
		s := short(b, 48+i/8*2) >> (i % 8 / 2 * 3) & 7
		shifted(y[i*8:], grid.entry(uint32(b[i])|uint32(h&7)<<8), d*float32(2*s+1), h&8 != 0)
	}
}

// nonLinear holds the values of IQ4_NL and IQ4_XS.
var nonLinear = [16]float32{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}

// table writes 2*len(q) elements: those of the low halves, then those of the high ones.
func table(y []float32, q []byte, of *[16]float32, d float32) {
	for j, c := range q {
		y[j] = of[c&15] * d
		y[j+len(q)] = of[c>>4] * d
	}
}

func dequantIQ4NL(y *[maxBlock]float32, b []byte) { table(y[:], b[2:18], &nonLinear, half(b, 0)) }

// dequantIQ4XS: d, the upper two bits and the lower four of a scale for each 32, and 128 bytes of
// two elements.
func dequantIQ4XS(y *[maxBlock]float32, b []byte) {
	for i := range 8 {
		table(y[i*32:], b[8+i*16:][:16], &nonLinear, scaleIQ4XS(b, i))
	}
}

// scaleIQ4XS returns the scale of 32 elements of a block.
func scaleIQ4XS(b []byte, i int) float32 {
	s := nibble(b, 4, i) | int(short(b, 2)>>(2*i)&3)<<4
	return half(b, 0) * float32(s-32)
}

// dequantNVFP4: four scales of 16 elements as unsigned float8, and eight bytes of two elements for
// each.
func dequantNVFP4(y *[maxBlock]float32, b []byte) {
	for i := range 4 {
		d := float32(0)
		if b[i]&0x7f != 0x7f { // NaN counts as zero
			d = E4M3[b[i]&0x7f] / 2
		}
		table(y[i*16:], b[4+i*8:][:8], &FP4, d)
	}
}

// dequantTQ1: base 3. Five digits for each of 48 bytes, first 32 and then 16 elements at a time, and
// four digits for each of 4; then d.
func dequantTQ1(y *[maxBlock]float32, b []byte) {
	d, at := half(b, 52), 0
	for _, run := range []struct{ from, n, digits int }{{0, 32, 5}, {32, 16, 5}, {48, 4, 4}} {
		power := byte(1)
		for range run.digits {
			for _, c := range b[run.from:][:run.n] {
				y[at] = float32(int(uint16(c*power)*3>>8)-1) * d
				at++
			}
			power *= 3
		}
	}
}

// dequantTQ2: two bits an element, 32 elements at a time; then d.
func dequantTQ2(y *[maxBlock]float32, b []byte) {
	d := half(b, 64)
	for i := range y {
		y[i] = float32(int(b[i/128*32+i%32]>>(i%128/32*2)&3)-1) * d
	}
}
