package dequant

import (
	"math"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/gguf"
)

// FP4NaN is the scale of a block of NaN.
const FP4NaN = 255

// FP4 has twice the values of the 16 codes.
var FP4 = [16]float32{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}

// FP4Scale is half the factor of a block.
func FP4Scale(b byte) float32 {
	if b == FP4NaN {
		return float32(math.NaN())
	}
	return float32(math.Ldexp(1, int(b)-128))
}

func dequantMXFP4(y *[maxBlock]float32, b []byte) {
	table(y[:], b[1:17], &FP4, FP4Scale(b[0]))
}

// mxNotFinite is NotFinite for blocks whose scale is a power of two.
func mxNotFinite(data []byte) (bad int64, any bool) {
	for size := gguf.MXFP4.BlockBytes(); len(data) >= size; data = data[size:] {
		if data[0] == FP4NaN {
			bad += int64(gguf.MXFP4.Block())
		}
		any = any || slices.ContainsFunc(data[1:size], func(b byte) bool { return b&0x77 != 0 })
	}
	return bad, any
}

// FP4Row writes a row from column lo on, where scales are apart from codes and consecutive elements
// share a byte, the lower half first. first is the block in which the row starts.
func FP4Row(dst []float32, codes, scales []byte, first, lo int) {
	for i := range dst {
		col := lo + i
		at := first + col/32
		dst[i] = FP4[codes[at*16+col%32/2]>>(col%2*4)&15] * FP4Scale(scales[at])
	}
}

// E4M3 is the value of every byte as float8_e4m3fn: sign, 4 bits of exponent with bias 7, 3 of mantissa.
// There is no infinity, and all ones are NaN.
var E4M3 = func() (v [256]float32) {
	for b := range v {
		exp, man := b>>3&15, float64(b&7)
		f := math.Ldexp(man, -9)
		if exp > 0 {
			f = math.Ldexp(1+man/8, exp-7)
		}
		if b&0x7f == 0x7f {
			f = math.NaN()
		}
		if b&0x80 != 0 {
			f = -f
		}
		v[b] = float32(f)
	}
	return v
}()
