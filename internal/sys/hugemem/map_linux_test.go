package hugemem

import "testing"

// TestMapSizes: memory of any size can be mapped, written to its end, and unmapped.
func TestMapSizes(t *testing.T) {
	for _, bytes := range []int{1, 4096, 4097, hugePage - 1, hugePage, hugePage + 1, hugePage + 4096, 3*hugePage + 1234} {
		mem, err := Map(bytes)
		if err != nil {
			t.Errorf("%d bytes: %v", bytes, err)
			continue
		}
		if len(mem) != bytes || mem[bytes-1] != 0 {
			t.Errorf("%d bytes: %d mapped, the last is %d", bytes, len(mem), mem[bytes-1])
		}
		mem[0], mem[bytes-1] = 1, 1
		if err := Unmap(mem); err != nil {
			t.Errorf("%d bytes: %v", bytes, err)
		}
	}
}
