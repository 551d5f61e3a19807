package topology

import (
	"math"
	"testing"
	"time"
)

func TestPlannerWeighsSynchronisationAgainstWeights(t *testing.T) {
	slow := Costs{Sync: 1e-3, Bandwidth: 10e9, WeightBytes: 4}
	if got := ChooseMapping(testShape(), 4, slow); got != Reduce {
		t.Errorf("a small model on a slow bus: got %s, fewer synchronisations win", got)
	}
	big := Shape{Hidden: 8192, Heads: 64, KVHeads: 8, HeadDim: 128, FFN: 28672}
	fast := Costs{Sync: 20e-6, Bandwidth: 10e9, WeightBytes: 4}
	if got := ChooseMapping(big, 8, fast); got != Gather {
		t.Errorf("a large model on a fast bus: got %s, fewer bytes win", got)
	}
	c := Costs{Sync: 1, Bandwidth: 1e30, WeightBytes: 2}
	mixed := big
	mixed.Sparse, mixed.ActiveFFN = 0.5, 6144
	if got := DecodeSeconds(Reduce, mixed, 4, c); got < 2.49 || got > 2.51 { // a layer with experts synchronises once more
		t.Errorf("%g synchronisations a layer, want 2.5", got)
	}
	c = Costs{Bandwidth: 1, WeightBytes: 1}
	all := mixed
	all.Sparse = 1
	if got, want := DecodeSeconds(Gather, all, 4, c)-DecodeSeconds(Gather, big, 4, c), 3*8192*(6144-28672)/4.0; got != want {
		t.Errorf("experts read %g bytes more, want %g", got, want)
	}
}

// Nodes without measurements: synchronisations cost more than a small model's attention weights,
// and less than a large one's.
func TestPlannerUnmeasured(t *testing.T) {
	small := Shape{Hidden: 1024, Heads: 16, KVHeads: 8, HeadDim: 64, FFN: 2816}
	large := Shape{Hidden: 8192, Heads: 64, KVHeads: 8, HeadDim: 128, FFN: 28672}
	for _, weightBytes := range []float64{18.0 / 32, 34.0 / 32, 2} {
		for _, sockets := range []int{2, 4, 16} {
			c := MeasuredCosts(make([]Node, sockets), weightBytes)
			if got := ChooseMapping(small, sockets, c); got != Reduce {
				t.Errorf("a small model, %d sockets, %g bytes a weight: %s", sockets, weightBytes, got)
			}
			if got := ChooseMapping(large, sockets, c); got != Gather {
				t.Errorf("a large model, %d sockets, %g bytes a weight: %s", sockets, weightBytes, got)
			}
		}
	}
}

// Measured with both mappings, tokens/s (docs/benchmarks.md, Nodes): the planner takes
// the faster one for all costs in the range that such machines measure.
func TestPlannerRecorded(t *testing.T) {
	bench160m := Shape{Hidden: 1024, Heads: 16, KVHeads: 8, HeadDim: 64, FFN: 2816}
	llama1b := Shape{Hidden: 2048, Heads: 32, KVHeads: 8, HeadDim: 64, FFN: 8192}
	const q4 = 18.0 / 32
	for _, r := range []struct {
		name           string
		shape          Shape
		nodes          int
		read           [2]float64 // bytes a second of a node: least and most
		sync           [2]float64 // seconds
		gather, reduce float64
	}{
		{"160M, two cores, 2 nodes", bench160m, 2, [2]float64{17e9, 34e9}, [2]float64{60e-6, 150e-6}, 56.6, 87.5},
		{"160M, two cores, 4 nodes", bench160m, 4, [2]float64{8e9, 34e9}, [2]float64{280e-6, 410e-6}, 26.6, 51.2},
		{"1B, 32 cores, 2 nodes", llama1b, 2, [2]float64{60e9, 120e9}, [2]float64{60e-6, 400e-6}, 30.3, 49.2},
		{"1B, 32 cores, 4 nodes", llama1b, 4, [2]float64{30e9, 70e9}, [2]float64{100e-6, 700e-6}, 30.0, 45.6},
	} {
		want := Gather
		if r.reduce > r.gather {
			want = Reduce
		}
		for _, read := range r.read {
			for _, sync := range r.sync {
				nodes := make([]Node, r.nodes)
				for i := range nodes {
					nodes[i] = Node{Read: read, Syncs: Syncs{sync, sync}}
				}
				if got := ChooseMapping(r.shape, r.nodes, MeasuredCosts(nodes, q4)); got != want {
					t.Errorf("%s: %s at %g bytes/s and %g s, %s was faster", r.name, got, read, sync, want)
				}
			}
		}
	}
	const q8 = 34.0 / 32 // with reduce 1.5 times as fast in Q4_0, the planner took gather for Q8_0
	there := Node{Read: 60e9, Syncs: Syncs{60e-6, 60e-6}}
	if guess, got := ChooseMapping(llama1b, 2, MeasuredCosts(make([]Node, 2), q8)),
		ChooseMapping(llama1b, 2, MeasuredCosts([]Node{there, there}, q8)); guess != Gather || got != Reduce {
		t.Errorf("1B in Q8_0, 2 nodes of 32 cores: %s by guess, %s by measure", guess, got)
	}
}

func TestMeasuredCosts(t *testing.T) {
	a := Node{Read: 40e9, Syncs: Syncs{Two: 100e-6, Four: 300e-6}}
	b, c := a, a
	b.Read, c.Read = 20e9, 1e9
	c.Distance = 5e-3
	for _, k := range []struct {
		name       string
		nodes      []Node
		sync, read float64
	}{
		{"one node", []Node{a}, 100e-6, 40e9},
		{"two alike", []Node{a, a}, 100e-6, 40e9},
		{"the middle one counts", []Node{a, b, c}, 200e-6, 20e9},
		{"on the line through two and four", []Node{a, a, a, a, a, a}, 500e-6, 40e9},
		{"a line that falls is not believed", []Node{{Read: 1, Syncs: Syncs{200e-6, 100e-6}}, {Syncs: Syncs{200e-6, 100e-6}}, {}}, 200e-6, 1},
		{"far away", []Node{c, c}, 5.1e-3, 1e9},
		{"who measured nothing does not count", []Node{{}, a}, 100e-6, 40e9},
		{"nobody measured", []Node{{}, {}}, 160e-6, 8e9},
		{"nonsense is nothing measured", []Node{
			{Read: math.NaN(), Syncs: Syncs{math.Inf(1), 1}},
			{Read: -1, Syncs: Syncs{Two: -1, Four: 1}},
		}, 160e-6, 8e9},
		{"a distance below zero is none", []Node{{Read: 1, Distance: -1, Syncs: Syncs{100e-6, 100e-6}}}, 100e-6, 1},
	} {
		got := MeasuredCosts(k.nodes, 2)
		if math.Abs(got.Sync-k.sync) > 1e-9 || got.Bandwidth != k.read || got.WeightBytes != 2 {
			t.Errorf("%s: %+v, want %g s and %g bytes/s", k.name, got, k.sync, k.read)
		}
	}
}

// chooser is an authority that chooses mappings; its nodes are alike.
type chooser struct {
	*testing.T
	a   *Authority
	now time.Duration
}

func (c *chooser) settle(effects []Effect) {
	for len(effects) > 0 {
		e := effects[0]
		effects = effects[1:]
		switch e := e.(type) {
		case Record:
			effects = append(effects, c.a.Recorded(e.Placement.Epoch)...)
		case LoadSlices:
			for _, n := range e.Nodes {
				effects = append(effects, c.a.Answered(e.Placement.Epoch, n.ID, nil)...)
			}
		case FormGroup:
			for _, n := range e.Nodes {
				effects = append(effects, c.a.Answered(e.Epoch, n.ID, nil)...)
			}
		}
	}
}

func (c *chooser) up(n Node) {
	c.settle(c.a.Up(n))
	c.now += 3 * time.Second
	c.settle(c.a.Tick(c.now))
}

func (c *chooser) wants(nodes int, m Mapping, when string) {
	c.Helper()
	phase, reason := c.a.Phase()
	if p, part := c.a.Placement(); phase != Serving || p.Mapping != m || len(part) != nodes {
		c.Errorf("%s: %d nodes, %s (%s %s), want %d and %s", when, len(part), p.Mapping, phase, reason, nodes, m)
	}
}

// A mapping is chosen by measurements when nodes come, and stays when one is lost. When that number of
// nodes is reached again, the old mapping returns, even if the measurements differ: the nodes may have
// its weights in their caches.
func TestMappingOfPlacements(t *testing.T) {
	shape := testShape()
	shape.Hidden, shape.FFN = 4096, 4096
	reduces := Node{Incarnation: 1, ModelHash: "m", Read: 100e9, Syncs: Syncs{1e-3, 1e-3}}
	gathers := Node{Incarnation: 1, ModelHash: "m", Read: 1e6, Syncs: Syncs{1e-6, 1e-6}}
	named := func(n Node, id string, incarnation uint64) Node {
		n.ID, n.Incarnation = id, incarnation
		return n
	}
	start := func(fixed Mapping) *chooser {
		return &chooser{T: t, a: NewAuthority(AuthorityConfig{Shape: shape, Mapping: fixed, WeightBytes: 2,
			Nodes: 2, Settle: time.Second, Backoff: time.Second, ModelHash: "m"})}
	}
	c := start("")
	c.up(named(gathers, "a", 1))
	c.up(named(gathers, "b", 1))
	c.wants(2, Gather, "two begin")
	c.settle(c.a.Down("b", 1))
	c.wants(1, Gather, "one is lost")
	c.up(named(reduces, "b", 2))
	c.wants(2, Gather, "it comes back with other measurements")
	c.up(named(reduces, "c", 1))
	c.wants(3, Reduce, "a third comes: two of three favour reduce")
	c.settle(c.a.Down("c", 1))
	c.wants(2, Reduce, "two again")
	c.settle(c.a.Down("b", 2))
	c.up(named(gathers, "b", 3))
	c.wants(2, Gather, "two come together for the second time")

	c = start("")
	c.up(named(reduces, "a", 1))
	c.up(named(reduces, "b", 1))
	c.wants(2, Reduce, "two that synchronise slowly")
	c = start(Gather)
	c.up(named(reduces, "a", 1))
	c.up(named(reduces, "b", 1))
	c.wants(2, Gather, "the operator's setting")
}
