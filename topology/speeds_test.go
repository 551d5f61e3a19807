package topology

import "testing"

var (
	shapeFry = Shape{Hidden: 384, Layers: 8, Heads: 16, KVHeads: 8, HeadDim: 32, FFN: 1024}
	shape1B  = Shape{Hidden: 2048, Layers: 16, Heads: 32, KVHeads: 8, HeadDim: 64, FFN: 8192}
)

func flat(rate float64) Products { return Products{rate, rate, rate} }

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
		{"a large model over such nodes", shape1B, 4, 400e-6, flat(10e9), 512, 128},
		{"chunks that exceed the CPU cache", shapeFry, 4, 400e-6, worse, 512, 512},
		{"the same over a fast bus", shape1B, 2, 10e-6, worse, 512, 128},
		{"many cores: the longest short step", shape1B, 1, 1e-4, flat(3e12), 512, 512},
		{"fewer cores", shape1B, 1, 1e-4, flat(1.2e12), 512, 256},
		{"many cores, slower with large chunks", shape1B, 1, 1e-4, Products{3e12, 3.1e12, 2.9e12}, 512, 256},
		{"no more than a step holds", shapeFry, 4, 400e-6, flat(100e9), 300, 256},
		{"less than any choice", shapeFry, 4, 400e-6, flat(100e9), 40, 40},
		{"no measurements", shapeFry, 4, 400e-6, Products{}, 512, 256},
		{"no measurements, short steps", shapeFry, 4, 400e-6, Products{}, 100, 100},
		{"implausible measurements", shapeFry, 4, 400e-6, Products{1, 1, 0}, 512, 256},
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
		t.Errorf("the products of the slowest node: %v", got)
	}
}
