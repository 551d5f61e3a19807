package machine

import (
	"os"
	"strconv"
	"strings"
)

// lastLevelCache is the file in which Linux reports the size of the largest cache of the first processor.
const lastLevelCache = "/sys/devices/system/cpu/cpu0/cache/index3/size"

// readSize returns the number of bytes that a measurement reads on a machine with a last-level cache and a
// memory of given sizes (0: unknown). A buffer that is read repeatedly must be several times as large as the
// cache, or part of it stays cached. The weights that decode reads are larger still.
func readSize(cache, memory int64) int64 {
	n := min(max(speedBytes, 4*cache), 2<<30)
	if memory > 0 {
		n = min(n, max(speedBytes, memory/16))
	}
	return n
}

// cacheSize parses a size such as "32768K", or returns 0.
func cacheSize(text string) int64 {
	text = strings.TrimSpace(text)
	digits := strings.TrimRight(text, "KMG")
	n, err := strconv.ParseInt(digits, 10, 32)
	if err != nil || n < 0 {
		return 0
	}
	switch text[len(digits):] {
	case "":
		return n
	case "K":
		return n << 10
	case "M":
		return n << 20
	case "G":
		return n << 30
	}
	return 0
}

// ReadSize returns the bytes that a measurement of reads should go through on this machine: several
// times its last-level cache.
func ReadSize() int64 {
	text, err := os.ReadFile(lastLevelCache)
	if err != nil {
		return speedBytes
	}
	memory, _ := MemoryLimit()
	return readSize(cacheSize(string(text)), memory)
}
