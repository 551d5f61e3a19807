//go:build !linux

package tensor

type mapping struct{}

// mapMemory returns n zeroed bytes, aligned to a cache line.
func mapMemory(n int) ([]byte, mapping, error) {
	all := make([]byte, n+64)
	off := int(-addressOf(all) & 63)
	return all[off : off+n : off+n], mapping{}, nil
}

func (m mapping) free() error { return nil }
