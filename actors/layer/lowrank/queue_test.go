package lowrank

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// value is element i of a matrix of small dyadic numbers that depend on seed.
func value(seed, r, k int) float32 { return float32((seed*7+r*31+k*(r+3))%17-8) / 16 }

func weight(t *testing.T, dt tensor.DType, seed, rows, cols, real, lo, hi int) *tensor.Weight {
	t.Helper()
	w, err := tensor.NewWeightUnits(dt, rows, cols, lo, hi)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	row := make([]float32, w.Span().Len())
	for r := range rows {
		for i := range row {
			row[i] = 0
			if k := w.Span().Lo + i; k < real {
				row[i] = value(seed, r, k)
			}
		}
		w.SetRow(r, row)
	}
	return w
}

const hidden, out = 96, 48

// adapters returns adapters of several ranks and types, whose only layer changes Q, K and Down. Q and K
// share their A.
func adapters(t *testing.T, n, lo, hi int) (all []*Adapter) {
	for i := range n {
		rank := []int{8, 16, 40, 1, 64, 256}[i%6]
		dt := []tensor.DType{tensor.BF16, tensor.F32, tensor.F16}[i%3]
		pair := func(seed int) *Pair {
			return &Pair{A: weight(t, dt, seed, rank, hidden, hidden, lo, hi),
				B: weight(t, dt, seed+1, out, Padded(rank), rank, 0, tensor.Units(Padded(rank))), Rank: rank, Scale: float32(i+1) / 3}
		}
		q := pair(10 * i)
		q.Fused = true
		k := &Pair{A: q.A, B: weight(t, dt, 10*i+2, out, Padded(rank), rank, 0, tensor.Units(Padded(rank))),
			Rank: rank, Scale: q.Scale, Fused: true}
		all = append(all, &Adapter{Key: fmt.Sprint(i), Layers: []Layer{{Q: q, K: k, Down: pair(10*i + 5)}}})
	}
	return all
}

func inputs(rows int) []float32 {
	x := make([]float32, rows*hidden)
	for i := range x {
		x[i] = float32(i*i%23-11) / 8
	}
	return x
}

// TestPlainProducts compares the products with loops in float64, and every row of a mix with the same row
// alone, bit by bit.
func TestPlainProducts(t *testing.T) {
	pool := tensor.NewPool(2)
	defer pool.Close()
	units := tensor.Units(hidden)
	all, rows := adapters(t, 8, 0, units), 90
	x := inputs(rows)
	var list []Rows
	for r := 0; r < rows; { // runs of 1 to 9 rows; every ninth run has no adapter
		n := min(1+r%9, rows-r)
		if i := len(list) % 9; i < 8 {
			list = Append(list, all[i], r, n)
		} else {
			list = append(list, Rows{all[0], r, r})
		}
		r += n
	}
	var q Queue
	run := func(list []Rows) (y, z []float32) {
		y, z = make([]float32, rows*out), make([]float32, rows*out)
		for i := range y {
			y[i], z[i] = float32(i%5), float32(i%3)
		}
		q.Add(list, 0, Q, 0, rows, 0, out, y, out)
		q.Add(list, 0, K, 3, rows, 16, 40, z, out)
		q.Add(list, 0, V, 0, rows, 0, out, y, out) // not changed by the adapters
		q.Run(pool, x, hidden)
		return y, z
	}
	y, z := run(list)
	for _, rs := range list {
		p := rs.Adapter.Layers[0][Q]
		for r := rs.Lo; r < rs.Hi; r++ {
			for o := range out {
				sum, a, b := 0.0, make([]float32, hidden), make([]float32, Padded(p.Rank))
				p.B.Row(o, b)
				for k := range p.Rank {
					p.A.Row(k, a)
					dot := 0.0
					for i, v := range a {
						dot += float64(v) * float64(x[r*hidden+i])
					}
					sum += dot * float64(b[k])
				}
				want := float64((r*out+o)%5) + sum*float64(p.Scale)
				if got := float64(y[r*out+o]); math.Abs(got-want) > 1e-4*(1+math.Abs(want)) {
					t.Fatalf("row %d of rank %d, output %d: %g, want %g", r, p.Rank, o, got, want)
				}
			}
			one, two := run([]Rows{{rs.Adapter, r, r + 1}})
			if !slices.Equal(one[r*out:(r+1)*out], y[r*out:(r+1)*out]) || !slices.Equal(two[r*out:(r+1)*out], z[r*out:(r+1)*out]) {
				t.Fatalf("row %d differs alone and in the mix", r)
			}
		}
	}
	for i := range z {
		if r, o := i/out, i%out; (r < 3 || o < 16 || o >= 40) && z[i] != float32(i%3) {
			t.Fatalf("row %d, output %d of the second matrix was changed outside of the queued rows", r, o)
		}
	}
	if slices.Equal(z[40*out:41*out], func() []float32 { _, z := run(nil); return z[40*out : 41*out] }()) {
		t.Error("the second matrix was not changed")
	}
}

// TestPartialSums: A cut by units, summed by the tree over ranks, gives the bits of A whole.
func TestPartialSums(t *testing.T) {
	pool := tensor.NewPool(2)
	defer pool.Close()
	const rows = 20
	units, x := tensor.Units(hidden), inputs(rows)
	rowsOf := func(all []*Adapter) (list []Rows) {
		list = Append(list, all[1], 1, 6)
		list = Append(list, all[2], 7, 1)
		return Append(list, all[0], 8, 12)
	}
	var q Queue
	want := make([]float32, rows*out)
	whole := rowsOf(adapters(t, 3, 0, units))
	q.Add(whole, 0, Down, 0, rows, 0, out, want, out)
	q.Run(pool, x, hidden)
	for _, cut := range [][]int{{0, units}, {0, 1, units}, {0, 2, 2, units}} {
		var nodes []tensor.Span
		var parts [][]float32
		for i := range cut[1:] {
			lo, hi := cut[i], cut[i+1]
			mine := tensor.Subtrees(lo, hi, units)
			all := adapters(t, 3, lo, hi)
			for _, a := range all {
				if lo == hi {
					a.Layers[0][Down].A = nil
				}
			}
			q.Partial(pool, rowsOf(all), 0, Down, len(mine), x[tensor.UnitsSpan(hidden, lo, hi).Lo:], hidden)
			for _, n := range q.Nodes() {
				parts = append(parts, slices.Clone(n))
			}
			nodes = append(nodes, mine...)
		}
		tensor.CombineTree(q.Total(), nodes, parts, units)
		got := make([]float32, rows*out)
		for _, r := range [][2]int{{0, 9}, {9, rows}} { // the rows of two owners
			q.Add(whole, 0, Down, r[0], r[1], 0, out, got, out)
		}
		q.RunSummed(pool, whole, 0, Down)
		if !slices.Equal(got, want) {
			t.Errorf("cut at %v: the bits differ from those of whole matrices", cut)
		}
	}
}
