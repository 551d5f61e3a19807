// Package dequant reads the block formats of GGUF, as ggml defines them (ggml-quants.c,
// dequantize_row_*): products and sums in float32, each rounded. The conversions prevent fused
// multiply-add, so every machine reads the same weights.
package dequant

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/gguf"
)

// maxBlock is the largest number of elements in a block.
const maxBlock = 256

// dequant dequantizes one block.
var dequant = map[gguf.Type]func(y *[maxBlock]float32, b []byte){
	gguf.Q4_0: dequantQ4_0, gguf.Q4_1: dequantQ4_1, gguf.Q5_0: dequantQ5_0, gguf.Q5_1: dequantQ5_1, gguf.Q8_0: dequantQ8_0,
	gguf.MXFP4: dequantMXFP4, gguf.NVFP4: dequantNVFP4, gguf.IQ4_NL: dequantIQ4NL, gguf.IQ4_XS: dequantIQ4XS,
	gguf.IQ2_XXS: dequantIQ2XXS, gguf.IQ2_XS: dequantIQ2XS, gguf.IQ2_S: dequantIQ2S, gguf.IQ3_XXS: dequantIQ3XXS, gguf.IQ3_S: dequantIQ3S,
	gguf.IQ1_S: dequantIQ1S, gguf.IQ1_M: dequantIQ1M, gguf.TQ1_0: dequantTQ1, gguf.TQ2_0: dequantTQ2,
	gguf.Q2_K: dequantQ2K, gguf.Q3_K: dequantQ3K, gguf.Q4_K: dequantQ4K, gguf.Q5_K: dequantQ5K, gguf.Q6_K: dequantQ6K,
}

// blockScales are the offsets of a block's float16 scales. A block is finite if they are.
var blockScales = map[gguf.Type][]int{
	gguf.Q4_0: {0}, gguf.Q4_1: {0, 2}, gguf.Q5_0: {0}, gguf.Q5_1: {0, 2}, gguf.Q8_0: {0},
	gguf.MXFP4:  nil, // a power of two of 8 bits, see mxNotFinite
	gguf.NVFP4:  nil, // every scale is finite
	gguf.IQ1_M:  nil, // in four parts, see scaleIQ1M
	gguf.IQ4_NL: {0}, gguf.IQ4_XS: {0}, gguf.IQ2_XXS: {0}, gguf.IQ2_XS: {0}, gguf.IQ2_S: {0},
	gguf.IQ3_XXS: {0}, gguf.IQ3_S: {0}, gguf.IQ1_S: {0},
	gguf.TQ1_0: {52}, gguf.TQ2_0: {64},
	gguf.Q2_K: {80, 82}, gguf.Q3_K: {108}, gguf.Q4_K: {0, 2}, gguf.Q5_K: {0, 2}, gguf.Q6_K: {208},
}

// Row writes columns [lo, hi) of a row of blocks.
func Row(dst []float32, row []byte, t gguf.Type, lo, hi int) {
	n, size, f := t.Block(), t.BlockBytes(), dequant[t]
	var y [maxBlock]float32
	for at := lo; at < hi; {
		b := at / n
		f(&y, row[b*size:(b+1)*size])
		end := min(hi, (b+1)*n)
		copy(dst[at-lo:], y[at-b*n:end-b*n])
		at = end
	}
}

func half(b []byte, at int) float32 { return F16(binary.LittleEndian.Uint16(b[at:])) }

// Blocks of 32: d (and m), then quants; the low nibbles are the first half.

func dequantQ4_0(y *[maxBlock]float32, b []byte) {
	d := half(b, 0)
	for j, q := range b[2:18] {
		y[j] = float32(int(q&15)-8) * d
		y[j+16] = float32(int(q>>4)-8) * d
	}
}

func dequantQ4_1(y *[maxBlock]float32, b []byte) {
	d, m := half(b, 0), half(b, 2)
	for j, q := range b[4:20] {
		y[j] = float32(float32(q&15)*d) + m
		y[j+16] = float32(float32(q>>4)*d) + m
	}
}

func dequantQ5_0(y *[maxBlock]float32, b []byte) {
	d, high := half(b, 0), binary.LittleEndian.Uint32(b[2:])
	for j, q := range b[6:22] {
		y[j] = float32(int(fifth(q&15, high, j))-16) * d
		y[j+16] = float32(int(fifth(q>>4, high, j+16))-16) * d
	}
}

func dequantQ5_1(y *[maxBlock]float32, b []byte) {
	d, m, high := half(b, 0), half(b, 2), binary.LittleEndian.Uint32(b[4:])
	for j, q := range b[8:24] {
		y[j] = float32(float32(fifth(q&15, high, j))*d) + m
		y[j+16] = float32(float32(fifth(q>>4, high, j+16))*d) + m
	}
}

// fifth adds bit i of high as fifth bit to four bits.
func fifth(low byte, high uint32, i int) byte { return low | byte(high>>i&1)<<4 }

func dequantQ8_0(y *[maxBlock]float32, b []byte) {
	d := half(b, 0)
	for j, q := range b[2:34] {
		y[j] = float32(int8(q)) * d
	}
}

// F16 moves the exponent from bias 15 to 127 by a product, which is exact and handles
// subnormals. Infinity and NaN become 65536 or more, above every number, and then get their
// exponent back; a NaN's payload stays.
func F16(h uint16) float32 {
	b := math.Float32bits(math.Float32frombits(uint32(h&0x7fff)<<13) * 0x1p112)
	if b >= 0x47800000 {
		b |= 0x7f800000
	}
	return math.Float32frombits(b | uint32(h&0x8000)<<16)
}

// F16s is F16 of all elements.
func F16s(dst []float32, src []byte) {
	for len(dst) >= 4 && len(src) >= 8 {
		w := binary.LittleEndian.Uint64(src)
		dst[0] = F16(uint16(w))
		dst[1] = F16(uint16(w >> 16))
		dst[2] = F16(uint16(w >> 32))
		dst[3] = F16(uint16(w >> 48))
		dst, src = dst[4:], src[8:]
	}
	for i := range dst {
		dst[i] = F16(binary.LittleEndian.Uint16(src[2*i:]))
	}
}

// NotFinite counts the elements of blocks whose scale is not finite.
func NotFinite(data []byte, t gguf.Type) (bad int64, any bool) {
	if t == gguf.MXFP4 {
		return mxNotFinite(data)
	}
	const exponent = 0x7c00
	for size := t.BlockBytes(); len(data) >= size; data = data[size:] {
		for _, at := range blockScales[t] {
			if binary.LittleEndian.Uint16(data[at:])&exponent == exponent {
				bad += int64(t.Block())
				break
			}
		}
		if t == gguf.IQ1_M && scaleIQ1M(data)&exponent == exponent {
			bad += int64(t.Block())
		}
		any = any || slices.ContainsFunc(data[:size], func(b byte) bool { return b != 0 })
	}
	return bad, any
}
