package tensor

import (
	"encoding/binary"
	"math"

	"github.com/shoal-llm/shoal/internal/engine/tensor/f32"
)

// Store writes x to dst in a checkpoint's format of dt, rounded as by Round: F32, BF16 or F16.
func Store(dst []byte, x []float32, dt DType) {
	for i, f := range x {
		switch dt {
		case BF16:
			binary.LittleEndian.PutUint16(dst[2*i:], f32.ToBF16(f))
		case F16:
			binary.LittleEndian.PutUint16(dst[2*i:], f32.ToF16(f))
		default:
			binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(f))
		}
	}
}

// Round rounds f to dt: nearest, ties to even; F32, BF16 or F16.
func Round(dt DType, f float32) float32 {
	switch dt {
	case BF16:
		return f32.FromBF16(f32.ToBF16(f))
	case F16:
		return f32.FromF16(f32.ToF16(f))
	}
	return f
}
