package tensor

import "unsafe"

// These views read memory in the machine's byte order. All targets of Shoal are little-endian, as
// are checkpoints and the wire format.

func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// FloatBytes views float32 values as their bytes in memory: quantized blocks, or values on the wire.
func FloatBytes(f []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(f))), 4*len(f))
}

func floats(b []byte) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

func halves(b []byte) []uint16 {
	return unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/2)
}

func int8s(b []byte) []int8 {
	return unsafe.Slice((*int8)(unsafe.Pointer(unsafe.SliceData(b))), len(b))
}

// lines returns n float32 that start at a cache line and share none with other data. Go aligns
// memory without pointers only to 8 bytes. A 64-byte vector across two lines takes twice as long to
// read, and longer to write.
func lines(n int) []float32 {
	const line = 16
	m := make([]float32, n+2*line)
	skip := -int(uintptr(unsafe.Pointer(&m[0]))/4) & (line - 1)
	return m[skip:][:n:n]
}
