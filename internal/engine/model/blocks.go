package model

import (
	"encoding/binary"

	"github.com/shoal-llm/shoal/internal/engine/gguf"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Block formats of GGUF, dequantized as ggml defines them (ggml-quants.c, dequantize_row_*):
// products and sums in float32, each rounded. The conversions prevent fused multiply-add, so every
// machine reads the same weights.

// maxBlock is the largest number of elements in a block.
const maxBlock = 256

// dequant dequantizes one block.
var dequant = map[gguf.Type]func(y *[maxBlock]float32, b []byte){
	gguf.Q4_0: dequantQ4_0, gguf.Q4_1: dequantQ4_1, gguf.Q5_0: dequantQ5_0, gguf.Q5_1: dequantQ5_1, gguf.Q8_0: dequantQ8_0,
	gguf.MXFP4: dequantMXFP4,
	gguf.Q2_K:  dequantQ2K, gguf.Q3_K: dequantQ3K, gguf.Q4_K: dequantQ4K, gguf.Q5_K: dequantQ5K, gguf.Q6_K: dequantQ6K,
}

// blockScales are the offsets of a block's float16 scales. A block is finite if they are.
var blockScales = map[gguf.Type][]int{
	gguf.Q4_0: {0}, gguf.Q4_1: {0, 2}, gguf.Q5_0: {0}, gguf.Q5_1: {0, 2}, gguf.Q8_0: {0},
	gguf.Q2_K: {80, 82}, gguf.Q3_K: {108}, gguf.Q4_K: {0, 2}, gguf.Q5_K: {0, 2}, gguf.Q6_K: {208},
}

// heldAs is the type in which the tensors of a GGUF file are held. All block formats are held as Q8_0.
// That is exact for Q8_0, and within 1/254 of a block's largest element for the others (half a step
// of Q4_0 is 1/16). So a file of several types, as most are, needs only one type in memory.
func heldAs(t gguf.Type) tensor.DType {
	switch t {
	case gguf.F32:
		return tensor.F32
	case gguf.F16:
		return tensor.F16
	case gguf.BF16:
		return tensor.BF16
	}
	return tensor.Q8_0
}

// dequantRow writes columns [lo, hi) of a row of blocks.
func dequantRow(dst []float32, row []byte, t gguf.Type, lo, hi int) {
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

func half(b []byte, at int) float32 { return widenF16(binary.LittleEndian.Uint16(b[at:])) }

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
