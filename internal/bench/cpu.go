package bench

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"
)

// ProcessTime returns the CPU time of all threads of a process, in units of 10 ms, from Linux's
// /proc; 0 on other systems.
func ProcessTime(pid int) time.Duration {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:]) // the name before it may contain anything
	if len(f) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(string(f[11]), 10, 64)
	system, _ := strconv.ParseInt(string(f[12]), 10, 64)
	return time.Duration(user+system) * (time.Second / 100) // USER_HZ
}
