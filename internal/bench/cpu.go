package bench

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"
)

// ProcessTime is what all threads of a process have run so far, to 10 ms; 0 where the
// system does not say (it is read from Linux's /proc).
func ProcessTime(pid int) time.Duration {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:]) // the name in front may hold anything
	if len(f) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(string(f[11]), 10, 64)
	system, _ := strconv.ParseInt(string(f[12]), 10, 64)
	return time.Duration(user+system) * (time.Second / 100) // USER_HZ
}
