package topology

import (
	"slices"
	"testing"
)

func TestThreads(t *testing.T) {
	for _, c := range []struct {
		processors, nodes int
		want              []int
	}{
		{1, 1, []int{1}}, {2, 1, []int{2}}, {2, 2, []int{1}}, {2, 4, []int{1}}, {3, 1, []int{3, 2}},
		{4, 1, []int{3, 2}}, {4, 2, []int{2, 1}}, {8, 2, []int{3, 2, 1}}, {12, 4, []int{3, 2, 1}},
		{16, 1, []int{15, 8, 4}}, {16, 2, []int{7, 4, 2}}, {16, 4, []int{3, 2, 1}}, {16, 5, []int{3, 2, 1}},
		{16, 8, []int{2, 1}}, {16, 16, []int{1}}, {16, 40, []int{1}}, {0, 0, []int{1}},
		{32, 1, []int{31, 16, 8}}, {32, 4, []int{7, 4, 2}},
	} {
		of := ThreadsOf(c.processors, c.nodes)
		var got []int
		for n := range of.MaxShift() + 1 {
			got = append(got, of.Shifted(n))
		}
		if !slices.Equal(got, c.want) || !of.Valid() {
			t.Errorf("%d processors, %d nodes: %v, %v, want %v", c.processors, c.nodes, of, got, c.want)
		}
		if got := of.Shifted(100); got != c.want[len(c.want)-1] {
			t.Errorf("%d processors, %d nodes: %d threads, want %v at least", c.processors, c.nodes, got, c.want)
		}
	}
	for _, asked := range []Threads{{8, 8}, {1, 1}, {}, {8, 0}, {0, 8}} {
		if asked.MaxShift() != 0 || asked.Shifted(3) != asked.Max {
			t.Errorf("%v: a shift of %d, %d threads", asked, asked.MaxShift(), asked.Shifted(3))
		}
	}
	for _, bad := range []Threads{{}, {0, 1}, {2, 3}, {2, 0}} {
		if bad.Valid() {
			t.Errorf("%v is valid", bad)
		}
	}
}
