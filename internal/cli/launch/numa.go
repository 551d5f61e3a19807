package launch

import (
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
)

// numaNodes returns the allowed CPUs of each NUMA node below root. It omits a node without CPUs.
// The result is empty if the system does not report NUMA nodes.
func numaNodes(root fs.FS, allowed func(cpu int) bool) (out [][]int) {
	lists, err := fs.Glob(root, "sys/devices/system/node/node[0-9]*/cpulist")
	if err != nil {
		return nil
	}
	number := func(file string) int {
		n, _ := strconv.Atoi(strings.TrimPrefix(path.Base(path.Dir(file)), "node"))
		return n
	}
	slices.SortFunc(lists, func(a, b string) int { return number(a) - number(b) })
	for _, file := range lists {
		text, err := fs.ReadFile(root, file)
		if err != nil {
			continue
		}
		if cpus := slices.DeleteFunc(cpuList(string(text)), func(cpu int) bool { return !allowed(cpu) }); len(cpus) > 0 {
			out = append(out, cpus)
		}
	}
	return out
}

// numaOfThis returns the NUMA nodes of this machine.
func numaOfThis() [][]int { return numaNodes(os.DirFS("/"), allowedCPUs()) }

// mostCPUs is an upper bound for the number of CPUs that Linux supports.
const mostCPUs = 8192

// cpuList parses a CPU list of Linux, such as 0-3,8,10-11. It skips invalid parts.
func cpuList(text string) (out []int) {
	for part := range strings.SplitSeq(strings.TrimSpace(text), ",") {
		from, to, several := strings.Cut(part, "-")
		first, err := strconv.Atoi(from)
		last := first
		if err == nil && several {
			last, err = strconv.Atoi(to)
		}
		if err != nil || first < 0 || last >= mostCPUs {
			continue
		}
		for cpu := first; cpu <= last; cpu++ {
			out = append(out, cpu)
		}
	}
	return out
}

// defaultNodes returns the number of node processes for a machine: one per NUMA node, or one if
// this process may use fewer CPUs than there are NUMA nodes.
func defaultNodes(numa [][]int, processors int) int {
	if len(numa) > processors || len(numa) > 64 {
		return 1
	}
	return max(1, len(numa))
}

// placeNodes assigns the CPUs of one NUMA node to each of n node processes. Memory that a process
// touches first is then local to its CPUs. Threads are divided evenly, so all NUMA nodes must have
// the same size and the same number of processes. Otherwise the result is nil: no assignment.
func placeNodes(n int, numa [][]int) [][]int {
	if len(numa) < 2 || n%len(numa) != 0 || slices.ContainsFunc(numa, func(cpus []int) bool { return len(cpus) != len(numa[0]) }) {
		return nil
	}
	out := make([][]int, n)
	for i := range out {
		out[i] = numa[i*len(numa)/n]
	}
	return out
}
