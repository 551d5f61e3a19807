package collective

import "unsafe"

// floatBytes views floats as bytes, in memory order (Validate refuses big-endian machines). The
// reverse view is never used, since bytes need not be aligned for floats.
func floatBytes(f []float32) []byte {
	if len(f) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(f))), 4*len(f))
}
