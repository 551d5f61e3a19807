package layer

import (
	"slices"
	"testing"

	"shoal/tensor"
	"shoal/topology"
)

func exchanges(p []Phase) int {
	n := 0
	for _, x := range p {
		if x.Exchange() {
			n++
		}
	}
	return n
}

// The number of synchronisations of a layer is what a mapping is chosen by.
func TestProgramSynchronises(t *testing.T) {
	for _, c := range []struct {
		mapping           topology.Mapping
		ranks             int
		prefill, qkvLocal bool
		want, sparse      int
	}{
		{topology.Gather, 1, true, false, 0, 0},
		{topology.Reduce, 1, false, false, 0, 0},
		{topology.Gather, 4, false, false, 5, 5},
		{topology.Gather, 4, true, true, 4, 4}, // heads follow the projection rows: nothing to exchange before attention
		{topology.Reduce, 4, false, false, 2, 3},
		{topology.Reduce, 16, true, false, 3, 4},
	} {
		p := Program(c.mapping, c.ranks, c.prefill, c.qkvLocal, false, false)
		if got := exchanges(Program(c.mapping, c.ranks, c.prefill, c.qkvLocal, false, true)); got != c.want {
			t.Errorf("%s on %d ranks, prefill %v, last layer: %d synchronisations, want %d", c.mapping, c.ranks, c.prefill, got, c.want)
		}
		if got := exchanges(Program(c.mapping, c.ranks, c.prefill, c.qkvLocal, true, false)); got != c.sparse {
			t.Errorf("%s on %d ranks, prefill %v, with experts: %d synchronisations, want %d", c.mapping, c.ranks, c.prefill, got, c.sparse)
		}
		if got := exchanges(p); got != c.want {
			t.Errorf("%s on %d ranks, prefill %v: %d synchronisations (%v), want %d", c.mapping, c.ranks, c.prefill, got, p, c.want)
		}
		if p[0] != ProjectQKV || p[len(p)-1] != Finish {
			t.Errorf("%v does not begin with the projections and end with the residual", p)
		}
	}
}

// Rows that are rounded before they travel take more synchronisations: those of the
// norms, and one for decode rows beside prompts.
func TestRoundedProgramSynchronises(t *testing.T) {
	for _, c := range []struct {
		mapping                 topology.Mapping
		qkvLocal, decode, final bool
		want                    int
	}{
		{topology.Gather, true, false, false, 6},
		{topology.Gather, false, true, false, 7},
		{topology.Gather, true, false, true, 7},
		{topology.Reduce, false, false, false, 4},
		{topology.Reduce, false, true, false, 5},
		{topology.Reduce, false, true, true, 6},
	} {
		if p := roundedProgram(c.mapping, c.qkvLocal, c.decode, c.final); exchanges(p) != c.want {
			t.Errorf("%+v: %d synchronisations (%v)", c, exchanges(p), p)
		}
	}
	for _, last := range []bool{false, true} { // as many as without rounding
		if p := roundedDecode(last); exchanges(p) != 2 || slices.Contains(p, ExchangeOut) != last {
			t.Errorf("decode alone, last layer %v: %v", last, p)
		}
	}
}

// Which steps round their rows before they travel: all ranks must say the same.
func TestRoundable(t *testing.T) {
	d := Dims{Hidden: 64, Heads: 4, KVHeads: 2, HeadDim: 16, FFN: 64}
	place := func(n int, m topology.Mapping) topology.Placement {
		p, err := topology.Place(1, m, topology.Shape{Hidden: 64, Heads: 4, KVHeads: 2, HeadDim: 16, FFN: 64, Vocab: 64,
			FFNUnits: 2, FFNUnitStart: func(u int) int { return 32 * u }}, make([]topology.Member, n))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	narrow := d
	narrow.HeadDim = 8
	for _, c := range []struct {
		d            Dims
		dt           tensor.DType
		ranks, n     int
		want, reduce bool // norms too, with gather, with reduce
		gather       bool // attention and FFN, with gather
	}{
		{d, tensor.Q8_0, 3, roundedRows, true, true, true},
		{d, tensor.Q4_0, 2, roundedRows, true, true, true},
		{d, tensor.Q8_0, 1, roundedRows, false, false, false},
		{d, tensor.Q8_0, 3, roundedRows - 1, false, false, true},
		{d, tensor.BF16, 3, roundedRows, false, false, false},
		{narrow, tensor.Q8_0, 3, roundedRows, false, false, false}, // heads of a rank are no whole blocks
		{d, tensor.Q8_0, 2, 0, false, true, true},                  // decode alone
		{d, tensor.Q8_0, 1, 0, false, false, false},
		{d, tensor.F32, 2, 0, false, false, false},
	} {
		for _, m := range []topology.Mapping{topology.Gather, topology.Reduce} {
			p, want := place(c.ranks, m), c.want
			if m == topology.Reduce {
				want = c.reduce
			}
			for rank := range c.ranks {
				b := NewBatch(c.d, 64, tensor.KVLayout{Type: tensor.F32, KDim: c.d.HeadDim, VDim: c.d.HeadDim}, nil)
				b.Type = c.dt
				segments := []Segment{{Seq: 1, N: 1, Owner: 0}}
				if c.n > 0 {
					segments = append(segments, Segment{Seq: 2, N: c.n, Prefill: true})
				}
				if err := b.Reset(p, rank, segments, func(int, []float32, []float32) {}); err != nil {
					t.Fatal(err)
				}
				if on := want || m == topology.Gather && c.gather; b.rounded.own != want || b.rounded.on != on {
					t.Errorf("%v, %s, %d ranks, %d prompt rows, rank %d: norms %v, the rest %v", c.dt, m, c.ranks, c.n, rank, b.rounded.own, b.rounded.on)
				}
			}
		}
	}
}

// Where the next layer reads a row, its sum arrives: at its owner, in a step that only
// decodes; everywhere before the head and before a prompt's projections.
func TestProgramScattersDecode(t *testing.T) {
	for _, c := range []struct{ prefill, last, want bool }{{false, false, true}, {false, true, false}, {true, false, false}, {true, true, false}} {
		p := Program(topology.Reduce, 4, c.prefill, false, false, c.last)
		if got := slices.Contains(p, ScatterDown); got != c.want || slices.Contains(p, ReduceDown) == c.want {
			t.Errorf("prefill %v, last %v: %v", c.prefill, c.last, p)
		}
	}
}

// Decode rows of an owner are contiguous and prefill rows come last, whatever
// order the plan names them in.
func TestBatchOrdersRows(t *testing.T) {
	d := Dims{Hidden: 32, Heads: 4, KVHeads: 2, HeadDim: 8, FFN: 64}
	p, err := topology.Place(1, topology.Reduce, topology.Shape{Hidden: 32, Heads: 4, KVHeads: 2, HeadDim: 8, FFN: 64, Vocab: 64,
		FFNUnits: 2, FFNUnitStart: func(u int) int { return 32 * u }}, []topology.Member{{ID: "a"}, {ID: "b"}, {ID: "c"}})
	if err != nil {
		t.Fatal(err)
	}
	b := NewBatch(d, 16, tensor.KVLayout{Type: tensor.F32, KDim: 8, VDim: 8}, nil)
	segs := []Segment{{Seq: 1, N: 4, Prefill: true}, {Seq: 2, N: 1, Owner: 2}, {Seq: 3, N: 1, Owner: 0}, {Seq: 4, N: 1, Owner: 2}, {Seq: 5, N: 3, Prefill: true}}
	if err := b.Reset(p, 0, segs, func(int, []float32, []float32) {}); err != nil {
		t.Fatal(err)
	}
	for rank, want := range []topology.Range{{Lo: 0, Hi: 1}, {}, {Lo: 1, Hi: 3}} {
		if got := b.decodeRows(rank); got != want {
			t.Errorf("rank %d decodes rows %v, want %v", rank, got, want)
		}
	}
	at := 3
	for _, r := range b.rows {
		if r.Lo != at {
			t.Errorf("prefill rows %v, want to start at %d", r, at)
		}
		at = r.Hi
	}
	if at != b.T || b.T != 10 {
		t.Errorf("%d rows, cut up to %d", b.T, at)
	}
	if err := b.Reset(p, 0, []Segment{{N: 17}}, func(int, []float32, []float32) {}); err == nil {
		t.Error("a step larger than the batch was accepted")
	}
}
