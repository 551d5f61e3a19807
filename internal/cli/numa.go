package cli

import (
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
)

// numaNodes lists the processors of each NUMA node below root, without those that allowed
// excludes. A node without processors is left out. It is empty where the system does not say.
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

// numaOfThis are the NUMA nodes of this machine.
func numaOfThis() [][]int { return numaNodes(os.DirFS("/"), allowedCPUs()) }

// mostCPUs is more than Linux numbers.
const mostCPUs = 8192

// cpuList reads a list of Linux, such as 0-3,8,10-11. What does not read is skipped.
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

// defaultNodes is the number of node processes for a machine: one per NUMA node, and one
// where the processors that this process may use are fewer than that.
func defaultNodes(numa [][]int, processors int) int {
	if len(numa) > processors || len(numa) > 64 {
		return 1
	}
	return max(1, len(numa))
}

// placeNodes gives each of n node processes the processors of one NUMA node; nil: any. Memory
// that a process touches first is then local to its processors. That needs NUMA nodes of equal
// size, each with the same number of processes: threads are shared out evenly.
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
