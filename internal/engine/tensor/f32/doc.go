// Package f32 has functions of float32 that give the same bits on every machine: fused multiply-add,
// exponential, logarithm, and conversions of 16-bit floats.
package f32
