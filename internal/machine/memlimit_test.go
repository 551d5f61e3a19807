package machine

import (
	"testing"
	"testing/fstest"
)

// TestMemoryLimit: the memory limit of a container, in every form in which the system reports it.
func TestMemoryLimit(t *testing.T) {
	const host = "MemTotal:       24000000 kB\nMemFree:  1 kB\n"
	for name, x := range map[string]struct {
		files map[string]string
		want  int64
		from  string
	}{
		"nothing is known": {nil, 0, ""},
		"a machine": {map[string]string{"proc/meminfo": host, "proc/self/cgroup": "0::/user.slice\n",
			"sys/fs/cgroup/user.slice/memory.max": "max\n"}, 24000000 << 10, "this machine"},
		"version 2": {map[string]string{"proc/meminfo": host, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "2147483648\n"},
			2 << 30, "this container"},
		"a group above": {map[string]string{"proc/meminfo": host, "proc/self/cgroup": "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/memory.max": "1000000\n"},
			1000000, "this container"},
		"the host's path": {map[string]string{"proc/meminfo": host, "proc/self/cgroup": "0::/docker/abc\n",
			"sys/fs/cgroup/memory.max": "3000000\n"}, 3000000, "this container"},
		"version 1": {map[string]string{"proc/meminfo": host, "proc/self/cgroup": "5:cpu:/x\n4:memory:/docker/abc\n1:name=systemd:/\n",
			"sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": "4000000\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":            "9223372036854771712\n"}, 4000000, "this container"},
		"version 1, no limit": {map[string]string{"proc/meminfo": host, "proc/self/cgroup": "4:cpu,memory:/\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 24000000 << 10, "this machine"},
		"more than there is": {map[string]string{"proc/meminfo": host, "proc/self/cgroup": "0::/\n",
			"sys/fs/cgroup/memory.max": "99999999999999\n"}, 24000000 << 10, "this machine"},
		"nonsense": {map[string]string{"proc/meminfo": "MemTotal: x kB\nMemTotal:\n",
			"proc/self/cgroup": "::\nx\n0::/../..\n", "sys/fs/cgroup/memory.max": "-5\n"}, 0, ""},
	} {
		root := fstest.MapFS{}
		for f, text := range x.files {
			root[f] = &fstest.MapFile{Data: []byte(text)}
		}
		if got, from := memoryLimit(root); got != x.want || from != x.from {
			t.Errorf("%s: %d of %q, want %d of %q", name, got, from, x.want, x.from)
		}
	}
}
