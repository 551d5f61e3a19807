package tensor

import (
	"encoding/binary"
	"math"
)

// Store writes x to dst in a checkpoint's format of dt, rounded as by Round: F32, BF16 or F16.
func Store(dst []byte, x []float32, dt DType) {
	for i, f := range x {
		switch dt {
		case BF16:
			binary.LittleEndian.PutUint16(dst[2*i:], toBF16(f))
		case F16:
			binary.LittleEndian.PutUint16(dst[2*i:], toF16(f))
		default:
			binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(f))
		}
	}
}

// Round rounds f to dt: nearest, ties to even; F32, BF16 or F16.
func Round(dt DType, f float32) float32 {
	switch dt {
	case BF16:
		return fromBF16(toBF16(f))
	case F16:
		return fromF16(toF16(f))
	}
	return f
}

// toBF16 rounds to the nearest bfloat16, ties to even; NaN stays NaN.
func toBF16(f float32) uint16 {
	b := math.Float32bits(f)
	if f != f {
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

func fromBF16(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// toF16 rounds to the nearest float16, ties to even, with subnormals. Too large values become
// infinity.
func toF16(f float32) uint16 {
	b := math.Float32bits(f)
	sign := uint16(b >> 16 & 0x8000)
	abs := b & 0x7fffffff
	switch {
	case abs > 0x7f800000:
		return sign | 0x7e00
	case abs >= 0x47800000: // 65536
		return sign | 0x7c00
	case abs < 0x38800000: // below the smallest normal 2^-14: the float32 adder rounds
		return sign | uint16(math.Float32bits(math.Float32frombits(abs)+0.5)-0x3f000000)
	}
	abs += 0xfff + abs>>13&1
	return sign | uint16((abs-0x38000000)>>13)
}

func fromF16(h uint16) float32 {
	sign, exp, man := uint32(h&0x8000)<<16, uint32(h>>10&31), uint32(h&0x3ff)
	switch exp {
	case 0:
		f := float32(man) * (1.0 / (1 << 24))
		return math.Float32frombits(sign | math.Float32bits(f))
	case 31:
		if man != 0 {
			man |= 0x200 // quiet, as the hardware conversion does
		}
		return math.Float32frombits(sign | 0x7f800000 | man<<13)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | man<<13)
}
