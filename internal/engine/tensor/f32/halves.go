package f32

import "math"

// ToBF16 rounds to the nearest bfloat16, ties to even; NaN stays NaN.
func ToBF16(f float32) uint16 {
	b := math.Float32bits(f)
	if f != f {
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

func FromBF16(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// ToF16 rounds to the nearest float16, ties to even, with subnormals. Too large values become
// infinity.
func ToF16(f float32) uint16 {
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

func FromF16(h uint16) float32 {
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
