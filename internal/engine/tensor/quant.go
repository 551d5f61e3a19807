package tensor

import (
	"math"

	"github.com/shoal-llm/shoal/internal/engine/tensor/f32"
	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
)

// Quantized products follow GGUF's Q8_0, Q4_0 and IQ4_NL: weights of a row share a float16 scale
// per block of 32. The tokens are also rounded to int8 per block, once per product, so that a block
// is an exact integer sum. Then
//
//	acc = fma(float32(sum of w*x), weight scale * token scale, acc)
//
// in block order.

// quantBlockStartOf returns the factor of a block's sum of int8 in its start: minus the offset of
// weights of a type.
func quantBlockStartOf(dt DType) int32 {
	if dt == Q4_0 {
		return -8
	}
	return -128
}

// sameTokens reports whether products with weights of two types take the same tokens.
func sameTokens(a, b DType) bool {
	return a == b || kernel.Quantized(a) && kernel.Quantized(b) && quantBlockStartOf(a) == quantBlockStartOf(b)
}

// putQ8 quantizes one block of one row into a panel's block and returns the scale: max|x|/127, with
// values rounded to nearest, ties away from zero, as in GGUF.
func putQ8(block []byte, lane int, x *[BlockWidth]float32) uint16 {
	top := float32(0)
	for _, v := range x {
		top = max(top, float32(math.Abs(float64(v))))
	}
	d := top / 127
	inv := 1 / d
	if !(inv <= math.MaxFloat32) || inv == 0 { // d is 0, not finite, or has no inverse
		inv = 0
	}
	for k, v := range x {
		q := 0
		if inv != 0 {
			q = int(math.Round(float64(float32(v * inv))))
		}
		block[k/4*4*kernel.PanelRows+lane*4+k%4] = byte(q + 128)
	}
	return f32.ToF16(d)
}

// largest returns the element of the largest magnitude, the first of several; or the first NaN.
func largest(x *[BlockWidth]float32) float32 {
	top, signed := float32(0), float32(0)
	for _, v := range x {
		if a := float32(math.Abs(float64(v))); a > top || v != v {
			top, signed = a, v
		}
		if v != v {
			break
		}
	}
	return signed
}

// putQ4 is putQ8 for 4 bits: the element of the largest magnitude becomes -8.
func putQ4(block []byte, lane int, x *[BlockWidth]float32) uint16 {
	signed := largest(x)
	d := signed / -8
	inv := 1 / d
	if !(math.Abs(float64(inv)) <= math.MaxFloat32) || inv == 0 {
		inv = 0
	}
	for k, v := range x {
		q := 8
		if inv != 0 {
			q = min(15, int(float32(float32(v*inv)+8.5)))
		}
		at := &block[k%16/4*4*kernel.PanelRows+lane*4+k%4]
		if k < 16 {
			*at = *at&0xf0 | byte(q)
		} else {
			*at = *at&0x0f | byte(q)<<4
		}
	}
	return f32.ToF16(d)
}

// nearest is the index in NonLinear of the value nearest to i-128; of two, the lower one.
var nearest = func() (at [257]uint8) {
	for i := range at {
		best := 0
		for j, v := range kernel.NonLinear {
			if d, b := i-128-int(v), i-128-int(kernel.NonLinear[best]); d*d < b*b {
				best = j
			}
		}
		at[i] = uint8(best)
	}
	return at
}()

// iq4Tops are the table values that the block's largest element may become.
var iq4Tops = [...]float32{-127, -104, -83, 113, 89, 69}

// putIQ4 is putQ8 for IQ4_NL. It tries a few scales, which map the largest element to one of the
// table's outer values. It takes the scale with the smallest squared error after optimisation (sum
// of x*v over sum of v*v).
func putIQ4(block []byte, lane int, x *[BlockWidth]float32) uint16 {
	signed := largest(x)
	d, gain := signed/iq4Tops[0], float32(-1)
	var code [BlockWidth]uint8
	for _, t := range iq4Tops {
		if !iq4Codes(&code, x, signed/t) {
			continue
		}
		var xv, vv float32
		for i, v := range x {
			q := float32(kernel.NonLinear[code[i]])
			xv += float32(v * q)
			vv += float32(q * q)
		}
		if g := float32(xv*xv) / vv; g > gain {
			d, gain = xv/vv, g
		}
	}
	half := f32.ToF16(d)
	if !iq4Codes(&code, x, f32.FromF16(half)) && f32.FromF16(half) == 0 {
		half = 0
	}
	for k := range BlockWidth / 2 {
		block[k/4*4*kernel.PanelRows+lane*4+k%4] = code[k] | code[k+BlockWidth/2]<<4
	}
	return half
}

// iq4Codes finds the nearest code of every element. It returns false if the scale has no inverse.
func iq4Codes(code *[BlockWidth]uint8, x *[BlockWidth]float32, d float32) bool {
	inv := 1 / d
	if !(math.Abs(float64(inv)) <= math.MaxFloat32) || inv == 0 {
		clear(code[:])
		return false
	}
	for i, v := range x {
		code[i] = nearest[int(min(256, max(0, float32(v*inv)+128.5)))]
	}
	return true
}
