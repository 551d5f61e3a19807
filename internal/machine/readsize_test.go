package machine

import "testing"

func TestReadSize(t *testing.T) {
	for _, c := range []struct {
		cache         string
		memory, bytes int64
	}{
		{"", 0, 128 << 20}, {"32768K\n", 0, 128 << 20}, {"307200K\n", 256 << 30, 1200 << 20}, {"300M", 256 << 30, 1200 << 20},
		{"1G", 256 << 30, 2 << 30}, {"307200K", 8 << 30, 512 << 20}, {"307200K", 1 << 30, 128 << 20},
		{"-5K", 0, 128 << 20}, {"12X", 0, 128 << 20}, {"9999999999999K", 0, 128 << 20},
	} {
		if got := readSize(cacheSize(c.cache), c.memory); got != c.bytes {
			t.Errorf("a cache of %q, memory of %d: %d bytes, want %d", c.cache, c.memory, got, c.bytes)
		}
	}
}
