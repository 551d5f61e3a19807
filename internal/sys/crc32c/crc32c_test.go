package crc32c

import "testing"

// TestOf: the check value of RFC 3720, appendix B.4.
func TestOf(t *testing.T) {
	if got := Of(make([]byte, 32)); got != 0x8a9136aa {
		t.Errorf("32 zeros: %#x", got)
	}
}
