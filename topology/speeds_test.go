package topology

import (
	"slices"
	"testing"
)

var (
	shapeFry = Shape{Hidden: 384, Layers: 8, Heads: 16, KVHeads: 8, HeadDim: 32, FFN: 1024}
	shape1B  = Shape{Hidden: 2048, Layers: 16, Heads: 32, KVHeads: 8, HeadDim: 64, FFN: 8192}
)

func flat(rate float64) Products { return Products{rate, rate, rate} }

func TestThreadChoices(t *testing.T) {
	for _, c := range []struct {
		processors, nodes int
		want              []int
	}{
		{1, 1, []int{1}}, {2, 1, []int{2}}, {2, 2, []int{1}}, {2, 4, []int{1}}, {3, 1, []int{3, 2}}, {4, 1, []int{3, 2}}, {4, 2, []int{2, 1}}, {8, 2, []int{3, 2, 1}}, {12, 4, []int{3, 2, 1}},
		{16, 1, []int{15, 8, 4}}, {16, 2, []int{7, 4, 2}}, {16, 4, []int{3, 2, 1}}, {16, 5, []int{3, 2, 1}}, {16, 8, []int{2, 1}}, {16, 16, []int{1}}, {16, 40, []int{1}}, {0, 0, []int{1}},
	} {
		if got := ThreadChoices(c.processors, c.nodes); !slices.Equal(got, c.want) {
			t.Errorf("%d processors, %d nodes: %v, want %v", c.processors, c.nodes, got, c.want)
		}
	}
}

// The first five were rehearsed on a host with 16 processors (docs/decisions/mappings.md), where
// clusters with every choice were timed, too: us.
func TestChooseThreads(t *testing.T) {
	type of = []Rehearsal
	for _, c := range []struct {
		name  string
		nodes int
		of    of
		want  int
	}{
		{"fry on one node", 1, of{{16, [3]float64{21, 42, 103}}, {8, [3]float64{19, 35, 127}}, {4, [3]float64{16, 38, 193}}}, 16},
		{"on two", 2, of{{7, [3]float64{55, 70, 256}}, {4, [3]float64{50, 71, 285}}, {2, [3]float64{51, 75, 334}}}, 4},
		{"on four", 4, of{{3, [3]float64{99, 113, 302}}, {2, [3]float64{96, 122, 331}}, {1, [3]float64{95, 121, 384}}}, 2},
		{"on eight", 8, of{{2, [3]float64{135, 191, 348}}, {1, [3]float64{133, 140, 313}}}, 1},
		{"llama-3.2-1b on four", 4, of{{3, [3]float64{248, 390, 2320}}, {2, [3]float64{246, 520, 3078}}}, 3},
		// 32 processors
		{"llama-3.2-1b alone", 1, of{{31, [3]float64{56, 108, 584}}, {16, [3]float64{51, 118, 741}}, {8, [3]float64{64, 163, 1106}}}, 31},
		{"on two of 16", 2, of{{15, [3]float64{95, 275, 1280}}, {8, [3]float64{111, 303, 1586}}, {4, [3]float64{130, 399, 2396}}}, 8},
		{"on four of 8", 4, of{{7, [3]float64{129, 261, 1444}}, {4, [3]float64{148, 313, 1697}}, {2, [3]float64{169, 394, 2304}}}, 4},
		{"on eight of 4", 8, of{{3, [3]float64{168, 297, 1586}}, {2, [3]float64{192, 321, 1594}}, {1, [3]float64{264, 499, 3150}}}, 3},
		{"fry on four of 8", 4, of{{7, [3]float64{68, 88, 240}}, {4, [3]float64{66, 95, 253}}, {2, [3]float64{65, 91, 256}}}, 2},
		{"fry on eight of 4", 8, of{{3, [3]float64{146, 135, 247}}, {2, [3]float64{150, 151, 248}}, {1, [3]float64{155, 163, 294}}}, 3},
		{"one choice", 2, of{{1, [3]float64{1, 1, 1}}}, 1},
		{"nearly alike: the fewest", 1, of{{8, [3]float64{100, 200, 1000}}, {4, [3]float64{98, 196, 980}}, {2, [3]float64{110, 220, 1100}}}, 2},
		{"slower prompts: the most", 2, of{{4, [3]float64{100, 200, 1000}}, {2, [3]float64{95, 190, 2000}}}, 4},
		{"none with all rows: the fastest", 2, of{{4, [3]float64{300, 600, 1000}}, {2, [3]float64{100, 200, 1200}}}, 2},
		{"none, and hardly faster: the most", 1, of{{4, [3]float64{120, 120, 100}}, {2, [3]float64{100, 100, 141}}}, 4},
	} {
		if got := ChooseThreads(c.of, c.nodes); got != c.want {
			t.Errorf("%s: %d threads, want %d", c.name, got, c.want)
		}
	}
}

func TestChooseChunk(t *testing.T) {
	few, worse := Products{70e9, 80e9, 80e9}, Products{80e9, 80e9, 60e9}
	for _, c := range []struct {
		name     string
		shape    Shape
		sockets  int
		sync     float64
		products Products
		most     int
		want     int
	}{
		{"arithmetic alone: steps are short", shape1B, 1, 1e-4, flat(100e9), 512, 128},
		{"tiles that need rows", shape1B, 1, 1e-4, few, 512, 256},
		{"a small model over nodes: few exchanges", shapeFry, 4, 400e-6, flat(100e9), 512, 512},
		{"a large model over the same", shape1B, 4, 400e-6, flat(10e9), 512, 128},
		{"what no longer fits a cache", shapeFry, 4, 400e-6, worse, 512, 512},
		{"that over a fast bus", shape1B, 2, 10e-6, worse, 512, 128},
		{"many cores: the longest short step", shape1B, 1, 1e-4, flat(3e12), 512, 512},
		{"fewer", shape1B, 1, 1e-4, flat(1.2e12), 512, 256},
		{"many, but slower by it", shape1B, 1, 1e-4, Products{3e12, 3.1e12, 2.9e12}, 512, 256},
		{"no more than a step holds", shapeFry, 4, 400e-6, flat(100e9), 300, 256},
		{"less than any choice", shapeFry, 4, 400e-6, flat(100e9), 40, 40},
		{"nobody measured", shapeFry, 4, 400e-6, Products{}, 512, 256},
		{"nobody measured, short steps", shapeFry, 4, 400e-6, Products{}, 100, 100},
		{"nonsense", shapeFry, 4, 400e-6, Products{1, 1, 0}, 512, 256},
	} {
		nodes := make([]Node, c.sockets)
		for i := range nodes {
			nodes[i] = Node{Read: 20e9, Syncs: Syncs{c.sync, c.sync}, Products: c.products}
		}
		if got := ChooseChunk(Reduce, c.shape, c.sockets, MeasuredCosts(nodes, 34.0/32), c.most); got != c.want {
			t.Errorf("%s: chunks of %d, want %d", c.name, got, c.want)
		}
	}
	if got := MeasuredCosts([]Node{{}, {Products: few}, {Products: flat(1e9)}, {Products: flat(2e9)}}, 2).Products; got != flat(1e9) {
		t.Errorf("the slowest of what was measured: %v", got)
	}
}
