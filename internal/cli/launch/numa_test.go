package launch

import (
	"reflect"
	"testing"
	"testing/fstest"
)

// TestNUMANodes checks the number and the placement of nodes for NUMA lists of Linux.
func TestNUMANodes(t *testing.T) {
	const at = "sys/devices/system/node/"
	machine := func(lists map[string]string) fstest.MapFS {
		m := fstest.MapFS{at + "online": {Data: []byte("0-1\n")}}
		for node, list := range lists {
			m[at+node+"/cpulist"] = &fstest.MapFile{Data: []byte(list + "\n")}
		}
		return m
	}
	all := func(int) bool { return true }
	for _, c := range []struct {
		name       string
		lists      map[string]string
		allowed    func(int) bool
		processors int
		numa       [][]int
		nodes      int
		ask        int // --nodes
		placed     [][]int
	}{
		{"no NUMA information", nil, all, 8, nil, 1, 2, nil},
		{"one", map[string]string{"node0": "0-3"}, all, 4, [][]int{{0, 1, 2, 3}}, 1, 4, nil},
		{"two", map[string]string{"node1": "1,3", "node0": "0,2"}, all, 4, [][]int{{0, 2}, {1, 3}}, 2, 2, [][]int{{0, 2}, {1, 3}}},
		{"several processes on each", map[string]string{"node0": "0-1", "node1": "2-3"}, all, 4,
			[][]int{{0, 1}, {2, 3}}, 2, 4, [][]int{{0, 1}, {0, 1}, {2, 3}, {2, 3}}},
		{"processes do not share out evenly", map[string]string{"node0": "0-1", "node1": "2-3"}, all, 4, [][]int{{0, 1}, {2, 3}}, 2, 3, nil},
		{"tenth after second", map[string]string{"node10": "2", "node2": "1", "node0": "0"}, all,
			3, [][]int{{0}, {1}, {2}}, 3, 3, [][]int{{0}, {1}, {2}}},
		{"memory without processors", map[string]string{"node0": "0-1", "node1": ""}, all, 2, [][]int{{0, 1}}, 1, 1, nil},
		{"a set of processors on one of them", map[string]string{"node0": "0-1", "node1": "2-3"},
			func(cpu int) bool { return cpu > 1 }, 2, [][]int{{2, 3}}, 1, 1, nil},
		{"unequal", map[string]string{"node0": "0-2", "node1": "3"}, all, 4, [][]int{{0, 1, 2}, {3}}, 2, 2, nil},
		{"a container with one processor's time", map[string]string{"node0": "0-1", "node1": "2-3"}, all, 1, [][]int{{0, 1}, {2, 3}}, 1, 1, nil},
		{"an invalid list", map[string]string{"node0": "0-x,5,7-999999,-3"}, all, 1, [][]int{{5}}, 1, 1, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			numa := numaNodes(machine(c.lists), c.allowed)
			if !reflect.DeepEqual(numa, c.numa) {
				t.Fatalf("NUMA nodes %v, want %v", numa, c.numa)
			}
			if got := defaultNodes(numa, c.processors); got != c.nodes {
				t.Errorf("%d nodes, want %d", got, c.nodes)
			}
			if got := placeNodes(c.ask, numa); !reflect.DeepEqual(got, c.placed) {
				t.Errorf("--nodes %d are placed on %v, want %v", c.ask, got, c.placed)
			}
		})
	}
}
