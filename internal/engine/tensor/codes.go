package tensor

import (
	"math"

	"github.com/shoal-llm/shoal/internal/engine/tensor/f32"
	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
)

// Codes are the weights of a block of a row as integers: element i is (Q[i]-Zero)*Scale.
type Codes struct {
	Q     [BlockWidth]int16
	Zero  int16
	Scale float32
}

// scaleBytes returns the size of the scales of a block of 16 rows.
func scaleBytes(dt DType) int {
	if dt == Int4 {
		return kernel.Int4Scales
	}
	return 2 * kernel.PanelRows
}

// putBlock quantizes a block of one row.
func putBlock(dt DType, block, scales []byte, lane int, x *[BlockWidth]float32) {
	scale := &halves(scales)[lane]
	switch dt {
	case Q8_0:
		*scale = putQ8(block, lane, x)
	case Q4_0:
		*scale = putQ4(block, lane, x)
	case Int4:
		*scale, scales[2*kernel.PanelRows+lane] = putQ4(block, lane, x), 8
	case MXFP4:
		*scale = putFP4(block, lane, x)
	default:
		*scale = putIQ4(block, lane, x)
	}
}

// scaleError is the largest relative error of a scale that is rounded to float16: half a unit of 11
// bits. Codes with such a scale are nearer to the block than new codes would be.
const scaleError = 1.0 / (1 << 11)

// putCodes stores the codes of a block of one row, and its scale as float16. It returns false, and stores
// nothing, if the type does not have the codes, or float16 not the scale.
func putCodes(dt DType, block, scales []byte, lane int, c *Codes) bool {
	half := f32.ToF16(c.Scale)
	if e := float64(f32.FromF16(half)) - float64(c.Scale); !(math.Abs(e) <= scaleError*math.Abs(float64(c.Scale))) ||
		math.IsInf(float64(c.Scale), 0) {
		return false
	}
	var q [BlockWidth]uint8
	zero, ok := uint8(0), false
	switch dt {
	case Q8_0:
		if ok = c.fit(&q, c.Zero-128, 0, 255); ok {
			for k, v := range q {
				block[k/4*4*kernel.PanelRows+lane*4+k%4] = v
			}
			halves(scales)[lane] = half
		}
		return ok
	case Q4_0:
		ok = c.fit(&q, c.Zero-8, 0, 15)
	case Int4:
		least := c.Zero
		for _, v := range c.Q {
			least = min(least, v)
		}
		zero = uint8(min(16, c.Zero-least))
		ok = zero < 16 && c.fit(&q, least, 0, 15)
	default:
		ok = c.look(&q, &inverses[dt])
	}
	if !ok {
		return false
	}
	for k := range BlockWidth / 2 {
		block[k/4*4*kernel.PanelRows+lane*4+k%4] = q[k] | q[k+BlockWidth/2]<<4
	}
	halves(scales)[lane] = half
	if dt == Int4 {
		scales[2*kernel.PanelRows+lane] = zero
	}
	return true
}

// fit writes the codes minus an offset, or returns false if one is outside of [lo, hi].
func (c *Codes) fit(q *[BlockWidth]uint8, offset, lo, hi int16) bool {
	for k, v := range c.Q {
		if v -= offset; v < lo || v > hi {
			return false
		}
		q[k] = uint8(v)
	}
	return true
}

// noCode marks a value that a table does not have.
const noCode = 255

// inverses are the codes of the values -128 to 127.
var inverses = func() (out [kernel.WeightTypes][256]uint8) {
	for dt, t := range kernel.Tables {
		for i := range out[dt] {
			out[dt][i] = noCode
		}
		for code := 15; t != nil && code >= 0; code-- { // of two zeros, the first
			out[dt][int(t.Values[code])+128] = uint8(code)
		}
	}
	return out
}()

func (c *Codes) look(q *[BlockWidth]uint8, codes *[256]uint8) bool {
	for k, v := range c.Q {
		v -= c.Zero
		if v < -128 || v > 127 || codes[v+128] == noCode {
			return false
		}
		q[k] = codes[v+128]
	}
	return true
}

// putFP4 is putQ8 for MXFP4: the scale is the power of two with which the largest element is below 8
// (OCP Microscaling Formats 1.0, section 6.3), and elements become the nearest value, of two the
// smaller.
func putFP4(block []byte, lane int, x *[BlockWidth]float32) uint16 {
	top := math.Abs(float64(largest(x)))
	half := f32.ToF16(float32(math.NaN()))
	if top <= math.MaxFloat32 {
		_, exp := math.Frexp(top)      // top < 2^exp
		exp = min(15, max(-24, exp-4)) // of half a unit
		if half = f32.ToF16(float32(math.Ldexp(1, exp))); top == 0 {
			half = 0
		}
	}
	d := f32.FromF16(half)
	inv := 1 / d
	if !(inv <= math.MaxFloat32) {
		inv = 0
	}
	for k, v := range x {
		code, a := uint8(0), float32(math.Abs(float64(v)))*inv
		for code < 7 && a > float32(kernel.Floats4[code]+kernel.Floats4[code+1])/2 {
			code++
		}
		if v < 0 && code > 0 {
			code |= 8
		}
		at := &block[k%16/4*4*kernel.PanelRows+lane*4+k%4]
		*at = *at&^(15<<(k/16*4)) | code<<(k/16*4)
	}
	return half
}
