package bench

import (
	"fmt"
	"os"
	"runtime/debug"
	"strings"
)

// resetPeak makes the peak of the process's resident memory start again, and returns that memory in bytes; 0: the
// system does not report the peak.
func resetPeak() int64 {
	debug.FreeOSMemory()
	const peak = "5" // number of the peak of resident memory in proc(5)
	if os.WriteFile("/proc/self/clear_refs", []byte(peak), 0) != nil {
		return 0
	}
	return statusBytes("VmRSS:")
}

// peakResident returns the largest resident memory of the process since resetPeak, in bytes.
func peakResident() int64 { return statusBytes("VmHWM:") }

// statusBytes returns a size in /proc/self/status, or 0 if there is none.
func statusBytes(name string) (bytes int64) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	if _, rest, ok := strings.Cut(string(b), "\n"+name); ok {
		if _, err := fmt.Sscanf(rest, "%d kB", &bytes); err != nil {
			return 0
		}
	}
	return bytes << 10
}
