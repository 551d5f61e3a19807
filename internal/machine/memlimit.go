package machine

import (
	"io/fs"
	"math"
	"os"
	"path"
	"strconv"
	"strings"
)

// MemoryLimit returns how many bytes this process may use: the minimum of the machine's memory and
// the limits of its control groups (version 1 or 2), which containers use. from names the source of
// the limit. The values come from Linux's /proc and /sys; bytes is 0 on other systems.
func MemoryLimit() (bytes int64, from string) { return memoryLimit(os.DirFS("/")) }

func memoryLimit(root fs.FS) (least int64, from string) {
	least = math.MaxInt64
	take := func(bytes int64, whose string) {
		if bytes > 0 && bytes < least {
			least, from = bytes, whose
		}
	}
	if b, err := fs.ReadFile(root, "proc/meminfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) == 3 && f[0] == "MemTotal:" && f[2] == "kB" {
				n, _ := strconv.ParseInt(f[1], 10, 64)
				take(min(n, math.MaxInt64>>10)<<10, "this machine")
			}
		}
	}
	b, _ := fs.ReadFile(root, "proc/self/cgroup")
	for line := range strings.Lines(string(b)) { // ID:CONTROLLERS:PATH
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		at, file := "sys/fs/cgroup", "memory.max"
		switch {
		case f[0] == "0" && f[1] == "":
		case strings.Contains(","+f[1]+",", ",memory,"):
			at, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		default:
			continue
		}
		// A group is also limited by its parents. In a container the path may be that of the host,
		// while only the container's part is mounted, as the root.
		for p := path.Clean("/" + f[2]); ; p = path.Dir(p) {
			if text, err := fs.ReadFile(root, path.Join(at, p, file)); err == nil {
				if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil { // otherwise it is "max"
					take(n, "this container")
				}
			}
			if p == "/" {
				break
			}
		}
	}
	if from == "" {
		return 0, ""
	}
	return least, from
}
