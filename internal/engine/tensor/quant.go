package tensor

import (
	"encoding/binary"
	"math"
	"unsafe"
)

// Quantized products follow GGUF's Q8_0, Q4_0 and IQ4_NL: weights of a row share a float16 scale
// per block of 32. The tokens are also rounded to int8 per block, once per product, so that a block
// is an exact integer sum. Then
//
//	acc = fma(float32(sum of w*x), weight scale * token scale, acc)
//
// in block order.

// A quantized block of a token is 32 int8, the float32 scale, and an int32 where the integer sum
// starts: minus the offset of the stored weights times the sum of the int8.
const (
	quantBlockBytes = 40
	quantBlockScale = 32
	quantBlockStart = 36
)

// quantBlockStartOf is the factor of a block's sum of int8 in its start: minus the offset of
// weights of a type.
func quantBlockStartOf(dt DType) int32 {
	if dt == Q4_0 {
		return -8
	}
	return -128
}

// sameTokens reports whether products with weights of two types take the same tokens.
func sameTokens(a, b DType) bool {
	return a == b || Quantised(a) && Quantised(b) && quantBlockStartOf(a) == quantBlockStartOf(b)
}

// portableQuantise rounds whole blocks of a token to quantized blocks: scale = max|x|/127, q =
// x*(1/scale) to the nearest integer, ties to even. A block of zeros (or of numbers too small to
// have an inverse scale) has scale 0. A block with NaN or an infinity has scale NaN, so that the
// product is NaN too.
func portableQuantise(dst []byte, x []float32, start int32) {
	for b := 0; b < len(dst)/quantBlockBytes; b++ {
		rec, v := dst[b*quantBlockBytes:][:quantBlockBytes], x[b*BlockWidth:][:BlockWidth]
		top := uint32(0)
		for _, f := range v {
			top = max(top, math.Float32bits(f)&0x7fffffff)
		}
		scale := math.Float32frombits(top) / 127
		inv := 1 / scale
		switch {
		case top >= 0x7f800000:
			scale, inv = float32(math.NaN()), 0
		case math.IsInf(float64(inv), 0):
			scale, inv = 0, 0
		}
		sum := int32(0)
		for i, f := range v {
			q := int8(0)
			if inv != 0 {
				q = int8(math.RoundToEven(float64(float32(f * inv))))
			}
			rec[i] = byte(q)
			sum += int32(q)
		}
		binary.LittleEndian.PutUint32(rec[quantBlockScale:], math.Float32bits(scale))
		binary.LittleEndian.PutUint32(rec[quantBlockStart:], uint32(start*sum))
	}
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
		block[k/4*4*panelRows+lane*4+k%4] = byte(q + 128)
	}
	return toF16(d)
}

// largest is the element of the largest magnitude, the first of several; or the first NaN.
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
		at := &block[k%16/4*4*panelRows+lane*4+k%4]
		if k < 16 {
			*at = *at&0xf0 | byte(q)
		} else {
			*at = *at&0x0f | byte(q)<<4
		}
	}
	return toF16(d)
}

// nearest is the index in nonLinear of the value nearest to i-128; of two, the lower one.
var nearest = func() (at [257]uint8) {
	for i := range at {
		best := 0
		for j, v := range nonLinear {
			if d, b := i-128-int(v), i-128-int(nonLinear[best]); d*d < b*b {
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
			q := float32(nonLinear[code[i]])
			xv += float32(v * q)
			vv += float32(q * q)
		}
		if g := float32(xv*xv) / vv; g > gain {
			d, gain = xv/vv, g
		}
	}
	half := toF16(d)
	if !iq4Codes(&code, x, fromF16(half)) && fromF16(half) == 0 {
		half = 0
	}
	for k := range BlockWidth / 2 {
		block[k/4*4*panelRows+lane*4+k%4] = code[k] | code[k+BlockWidth/2]<<4
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

func dotTable(of *codeTable) func(block unsafe.Pointer, lane int, x *[BlockWidth]int8) int32 {
	return func(block unsafe.Pointer, lane int, x *[BlockWidth]int8) int32 {
		w := (*[BlockWidth / 2 * panelRows]byte)(block)
		sum := int32(0)
		for k, v := range x {
			sum += int32(of.plus[w[k%16/4*4*panelRows+lane*4+k%4]>>(k/16*4)&15]) * int32(v)
		}
		return sum
	}
}

func dotQ8(block unsafe.Pointer, lane int, x *[BlockWidth]int8) int32 {
	w := (*[BlockWidth * panelRows]byte)(block)
	sum := int32(0)
	for k, v := range x {
		sum += int32(w[k/4*4*panelRows+lane*4+k%4]) * int32(v)
	}
	return sum
}

func dotQ4(block unsafe.Pointer, lane int, x *[BlockWidth]int8) int32 {
	w := (*[BlockWidth / 2 * panelRows]byte)(block)
	sum := int32(0)
	for k, v := range x {
		sum += int32(w[k%16/4*4*panelRows+lane*4+k%4]>>(k/16*4)&15) * int32(v)
	}
	return sum
}

// portableQuantTile is the reference of every quantized tile kernel. dot is the sum of stored
// weights times token bytes for one row of a block.
func portableQuantTile(dot func(block unsafe.Pointer, lane int, x *[BlockWidth]int8) int32) func(*tileArgs) {
	return func(a *tileArgs) {
		portableBlocks(a, 2*panelRows, func(block, _ unsafe.Pointer, lane int, x *[BlockWidth]int8, start int32) int32 {
			return start + dot(block, lane, x)
		})
	}
}

// portableInt4Tile is that of Int4: start is -128 times the sum of x.
func portableInt4Tile(a *tileArgs) {
	portableBlocks(a, int4Scales, func(block, scales unsafe.Pointer, lane int, x *[BlockWidth]int8, start int32) int32 {
		zero := *(*uint8)(unsafe.Add(scales, 2*panelRows+lane))
		return int32(zero)*(start/128) + dotQ4(block, lane, x)
	})
}

// portableBlocks multiplies block by block. sum is the integer sum of one row of a block, and stride
// is from the scales of a panel to those of the next.
func portableBlocks(a *tileArgs, stride uintptr, sum func(block, scales unsafe.Pointer, lane int, x *[BlockWidth]int8, start int32) int32) {
	steps := unsafe.Slice(a.steps, a.nsteps)
	for p := range a.panels {
		w := unsafe.Add(a.w, uintptr(p)*a.panel)
		scales := unsafe.Add(a.scales, uintptr(p)*stride)
		offset, level := uintptr(0), uintptr(0)
		var acc [maxTileTokens]lanes
		for i, s := range steps {
			acc = [maxTileTokens]lanes{}
			for range s.k / BlockWidth {
				ws := (*[panelRows]uint16)(scales)
				for t := range a.tokens {
					x := unsafe.Add(a.x, uintptr(t)*a.ldx+offset)
					xs := *(*float32)(unsafe.Add(x, quantBlockScale))
					start := *(*int32)(unsafe.Add(x, quantBlockStart))
					for lane := range panelRows {
						n := sum(w, scales, lane, (*[BlockWidth]int8)(x), start)
						acc[t][lane] = fma32(float32(n), float32(fromF16(ws[lane])*xs), acc[t][lane])
					}
				}
				w, scales = unsafe.Add(w, a.advance), unsafe.Add(scales, a.advance)
				offset += quantBlockBytes
			}
			a.merge(p, s.merges, &level, &acc, i == len(steps)-1)
		}
		for t := range a.tokens {
			*(*lanes)(unsafe.Add(a.out, uintptr(t)*a.ldout+uintptr(p)*64)) = acc[t]
		}
	}
}
