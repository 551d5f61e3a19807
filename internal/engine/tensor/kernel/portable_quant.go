package kernel

import (
	"encoding/binary"
	"math"
	"unsafe"

	"github.com/shoal-llm/shoal/internal/engine/tensor/f32"
)

// A quantized block of a token is 32 int8, the float32 scale, and an int32 where the integer sum
// starts: minus the offset of the stored weights times the sum of the int8.
const (
	QuantBlockBytes = 40
	QuantBlockScale = 32
	quantBlockStart = 36
)

// portableQuantize rounds whole blocks of a token to quantized blocks: scale = max|x|/127, q =
// x*(1/scale) to the nearest integer, ties to even. A block of zeros (or of numbers too small to
// have an inverse scale) has scale 0. A block with NaN or an infinity has scale NaN, so that the
// product is NaN too.
func portableQuantize(dst []byte, x []float32, start int32) {
	for b := 0; b < len(dst)/QuantBlockBytes; b++ {
		rec, v := dst[b*QuantBlockBytes:][:QuantBlockBytes], x[b*BlockWidth:][:BlockWidth]
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
		binary.LittleEndian.PutUint32(rec[QuantBlockScale:], math.Float32bits(scale))
		binary.LittleEndian.PutUint32(rec[quantBlockStart:], uint32(start*sum))
	}
}

func dotTable(of *codeTable) func(block unsafe.Pointer, lane int, x *[BlockWidth]int8) int32 {
	return func(block unsafe.Pointer, lane int, x *[BlockWidth]int8) int32 {
		w := (*[BlockWidth / 2 * PanelRows]byte)(block)
		sum := int32(0)
		for k, v := range x {
			sum += int32(of.plus[w[k%16/4*4*PanelRows+lane*4+k%4]>>(k/16*4)&15]) * int32(v)
		}
		return sum
	}
}

func dotQ8(block unsafe.Pointer, lane int, x *[BlockWidth]int8) int32 {
	w := (*[BlockWidth * PanelRows]byte)(block)
	sum := int32(0)
	for k, v := range x {
		sum += int32(w[k/4*4*PanelRows+lane*4+k%4]) * int32(v)
	}
	return sum
}

func dotQ4(block unsafe.Pointer, lane int, x *[BlockWidth]int8) int32 {
	w := (*[BlockWidth / 2 * PanelRows]byte)(block)
	sum := int32(0)
	for k, v := range x {
		sum += int32(w[k%16/4*4*PanelRows+lane*4+k%4]>>(k/16*4)&15) * int32(v)
	}
	return sum
}

// portableQuantTile returns the reference for every quantized tile kernel. dot is the sum of stored
// weights times token bytes for one row of a block.
func portableQuantTile(dot func(block unsafe.Pointer, lane int, x *[BlockWidth]int8) int32) func(*TileArgs) {
	return func(a *TileArgs) {
		portableBlocks(a, 2*PanelRows, func(block, _ unsafe.Pointer, lane int, x *[BlockWidth]int8, start int32) int32 {
			return start + dot(block, lane, x)
		})
	}
}

// portableInt4Tile is the reference of the Int4 kernels: start is -128 times the sum of x.
func portableInt4Tile(a *TileArgs) {
	portableBlocks(a, Int4Scales, func(block, scales unsafe.Pointer, lane int, x *[BlockWidth]int8, start int32) int32 {
		zero := *(*uint8)(unsafe.Add(scales, 2*PanelRows+lane))
		return int32(zero)*(start/128) + dotQ4(block, lane, x)
	})
}

// portableBlocks multiplies block by block. sum is the integer sum of one row of a block. stride
// is the distance between the scales of successive panels.
func portableBlocks(a *TileArgs, stride uintptr, sum func(block, scales unsafe.Pointer, lane int, x *[BlockWidth]int8, start int32) int32) {
	steps := unsafe.Slice(a.Steps, a.NSteps)
	for p := range a.Panels {
		w := unsafe.Add(a.W, uintptr(p)*a.Panel)
		scales := unsafe.Add(a.Scales, uintptr(p)*stride)
		offset, level := uintptr(0), uintptr(0)
		var acc [MaxTileTokens]Lanes
		for i, s := range steps {
			acc = [MaxTileTokens]Lanes{}
			for range s.K / BlockWidth {
				ws := (*[PanelRows]uint16)(scales)
				for t := range a.Tokens {
					x := unsafe.Add(a.X, uintptr(t)*a.LdX+offset)
					xs := *(*float32)(unsafe.Add(x, QuantBlockScale))
					start := *(*int32)(unsafe.Add(x, quantBlockStart))
					for lane := range PanelRows {
						n := sum(w, scales, lane, (*[BlockWidth]int8)(x), start)
						acc[t][lane] = f32.FMA(float32(n), float32(f32.FromF16(ws[lane])*xs), acc[t][lane])
					}
				}
				w, scales = unsafe.Add(w, a.Advance), unsafe.Add(scales, a.Advance)
				offset += QuantBlockBytes
			}
			a.merge(p, s.Merges, &level, &acc, i == len(steps)-1)
		}
		for t := range a.Tokens {
			*(*Lanes)(unsafe.Add(a.Out, uintptr(t)*a.LdOut+uintptr(p)*64)) = acc[t]
		}
	}
}
