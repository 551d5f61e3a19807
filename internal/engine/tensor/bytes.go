package tensor

import "unsafe"

// FloatBytes views float32 values as their bytes in memory: quantized blocks, or values on the wire. Every
// supported host is little-endian.
func FloatBytes(f []float32) []byte {
	if len(f) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&f[0])), 4*len(f))
}
