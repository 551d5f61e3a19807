package collective

import "unsafe"

// floatBytes views floats as bytes, in memory order (Validate refuses
// big-endian machines). Only this direction is ever used: bytes have no
// alignment that a float view could break.
func floatBytes(f []float32) []byte {
	if len(f) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(f))), 4*len(f))
}
