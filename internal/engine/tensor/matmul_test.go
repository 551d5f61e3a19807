package tensor

import (
	"fmt"
	"math"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/tensor/f32"
	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
	"github.com/shoal-llm/shoal/internal/engine/tensor/workers"
)

// stored is the value that a weight of type dt keeps of v.
func stored(dt DType, v float32) float32 {
	switch dt {
	case BF16:
		return f32.FromBF16(f32.ToBF16(v))
	case F16:
		return f32.FromF16(f32.ToF16(v))
	}
	return v
}

// unitChain is the definition of one unit's value.
func unitChain(dt DType, row, x []float32, s Span) float32 {
	acc := float32(0)
	for k := s.Lo; k < s.Hi; k++ {
		acc = f32.FMA(stored(dt, row[k]), x[k], acc)
	}
	if (s.Hi-s.Lo)%BlockWidth != 0 {
		acc += 0 // the padding
	}
	return acc
}

// quantChain is the definition of one unit of a quantized weight: GGUF's rounding of the weights,
// int8 tokens, exact integer sums per block.
func quantChain(dt DType, row, x []float32, s Span) float32 {
	acc := float32(0)
	for b := s.Lo; b < s.Hi; b += BlockWidth {
		var iq4 [BlockWidth]float32
		iq4Scale := float32(0)
		if t := kernel.Tables[dt]; t != nil {
			copy(iq4[:], row[b:min(b+BlockWidth, s.Hi)])
			block, scales := make([]byte, BlockWidth/2*kernel.PanelRows), make([]byte, scaleBytes(dt))
			putBlock(dt, block, scales, 0, &iq4)
			iq4Scale = f32.FromF16(halves(scales)[0])
			for k := range iq4 {
				iq4[k] = float32(t.Values[block[k%16/4*64+k%4]>>(k/16*4)&15])
			}
		}
		hi := min(b+BlockWidth, s.Hi)
		var top, signed, xtop float32
		for k := b; k < hi; k++ {
			if a := float32(math.Abs(float64(row[k]))); a > top {
				top, signed = a, row[k]
			}
			xtop = max(xtop, float32(math.Abs(float64(x[k]))))
		}
		d := top / 127
		switch dt {
		case Q4_0, Int4:
			d = signed / -8
		case IQ4_NL, MXFP4:
			d = iq4Scale
		}
		xs := xtop / 127
		sum := 0
		for k := b; k < hi; k++ {
			q := 0
			switch {
			case kernel.Tables[dt] != nil:
				q = int(iq4[k-b])
			case d != 0 && dt == Q8_0:
				q = int(math.Round(float64(row[k] * (1 / d))))
			case d != 0:
				q = min(15, int(float32(row[k]*(1/d))+8.5)) - 8
			}
			if xs != 0 {
				sum += q * int(math.RoundToEven(float64(x[k]*(1/xs))))
			}
		}
		acc = f32.FMA(float32(sum), f32.FromF16(f32.ToF16(d))*xs, acc)
	}
	return acc
}

func naiveDot(dt DType, row, x []float32) float32 {
	leaves := make([]float32, Units(len(row)))
	for u := range leaves {
		if kernel.Quantized(dt) {
			leaves[u] = quantChain(dt, row, x, UnitSpan(len(row), u))
			continue
		}
		leaves[u] = unitChain(dt, row, x, UnitSpan(len(row), u))
	}
	return treeValue(leaves)
}

var allWeights = []DType{F32, BF16, F16, Q8_0, Q4_0, IQ4_NL, Int4, MXFP4}

func newWeight(t *testing.T, dt DType, m []float32, rows, cols, lo, hi int) *Weight {
	t.Helper()
	w, err := NewWeightUnits(dt, rows, cols, lo, hi)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	s := w.Span()
	for r := range rows {
		w.SetRow(r, m[r*cols+s.Lo:r*cols+s.Hi])
	}
	return w
}

func TestMatMulIsTheDefinition(t *testing.T) {
	p := NewPool(2)
	defer p.Close()
	forEach(t, func(t *testing.T) {
		r := rng(2)
		for _, c := range []struct{ rows, k, n int }{
			{1, 1, 1}, {16, 32, 1}, {17, 33, 2}, {70, 40, 3}, {48, 128, 7}, {33, 384, 5}, {64, 576, 1}, {130, 545, 13}, {16, 2816, 2},
		} {
			for _, dt := range allWeights {
				m, x := normal(r, c.rows*c.k), normal(r, c.n*(c.k+3))
				w := newWeight(t, dt, m, c.rows, c.k, 0, Units(c.k))
				ldy := c.rows + 2
				y := make([]float32, c.n*ldy)
				p.MatMul(y, ldy, w, x, c.k+3, c.n)
				for tok := range c.n {
					for row := range c.rows {
						want := naiveDot(dt, m[row*c.k:][:c.k], x[tok*(c.k+3):][:c.k])
						if got := y[tok*ldy+row]; math.Float32bits(got) != math.Float32bits(want) {
							t.Fatalf("%v %+v: token %d row %d is %v, want %v", dt, c, tok, row, got, want)
						}
					}
					if y[tok*ldy+c.rows] != 0 {
						t.Fatalf("%v %+v: wrote beyond the rows", dt, c)
					}
				}
			}
		}
	})
}

// For every implementation, any number of tokens, any range of rows and any cut of the units the
// bits are the same.
func TestMatMulSameBits(t *testing.T) {
	p := NewPool(2)
	defer p.Close()
	r := rng(3)
	for _, c := range []struct{ rows, k int }{{80, 40}, {49, 128}, {100, 384}, {37, 576}, {20, 2816}, {96, 1000}} {
		if small() && c.rows*c.k > 30000 {
			continue
		}
		for _, dt := range allWeights {
			m := normal(r, c.rows*c.k)
			const most = 40
			x := normal(r, most*c.k)
			w := newWeight(t, dt, m, c.rows, c.k, 0, Units(c.k))
			one := make([]float32, most*c.rows) // token by token
			for tok := range most {
				p.MatMul(one[tok*c.rows:], c.rows, w, x[tok*c.k:], c.k, 1)
			}
			for n := 1; n <= most; n++ {
				if small() && n > 7 && n%12 != 1 {
					continue
				}
				what := fmt.Sprintf("%v %+v n=%d", dt, c, n)
				y := make([]float32, n*c.rows)
				p.MatMul(y, c.rows, w, x, c.k, n)
				sameBits(t, what, y, one[:n*c.rows])
			}
			allEqual(t, fmt.Sprintf("%v %+v", dt, c), func() []float32 {
				y := make([]float32, most*c.rows)
				p.MatMul(y[:23*c.rows], c.rows, w, x, c.k, 23)
				for tok := 23; tok < 40; {
					n := min(tok-22, 40-tok)
					p.MatMul(y[tok*c.rows:], c.rows, w, x[tok*c.k:], c.k, n)
					tok += n
				}
				sameBits(t, "in pieces", y, one)
				return y
			})
			y := make([]float32, 5*c.rows)
			for r0 := 0; r0 < c.rows; r0 += 32 {
				p.MatMulRows(y, c.rows, w, r0, min(c.rows, r0+32), x, c.k, 5)
			}
			sameBits(t, fmt.Sprintf("%v %+v by rows", dt, c), y, one[:5*c.rows])
			for _, cuts := range [][]int{{0, 1, 2}, {0, 3, 3, 7}, {0, 5, 11}, {0, 9}} {
				sameBits(t, fmt.Sprintf("%v %+v cut at %v", dt, c, cuts), cutMatMul(t, p, dt, m, c.rows, c.k, x, 5, cuts), one[:5*c.rows])
			}
		}
	}
}

// The CPU's maker determines the prefetches and the length of a pass. Every variant must run here
// and give the same bits.
func TestMatMulWithEveryPrefetch(t *testing.T) {
	was, passed := kernel.PrefetchAhead, kernel.PassBytes
	defer func() { kernel.PrefetchAhead, kernel.PassBytes = was, passed }()
	const rows, k = 144, 1024
	for _, dt := range allWeights {
		w := newWeight(t, dt, normal(rng(1), rows*k), rows, k, 0, Units(k))
		for _, n := range []int{1, 3, 6, 8, 29} {
			x := normal(rng(uint64(n)), n*k)
			var want []float32
			for _, way := range [][2]int{{0, 128 << 10}, {4 << 10, 32 << 10}, {8 << 10, 1}} {
				kernel.PrefetchAhead, kernel.PassBytes = way[0], way[1]
				y := make([]float32, n*rows)
				p := NewPool(2)
				p.MatMul(y, rows, w, x, k, n)
				p.Close()
				if want == nil {
					want = y
				}
				sameBits(t, fmt.Sprintf("%v, %d tokens, %d bytes ahead, passes of %d", dt, n, way[0], way[1]), y, want)
			}
		}
	}
}

// Batches of more than one chunk of tree stacks, and more tasks than threads.
func TestMatMulOfLargeBatches(t *testing.T) {
	p := NewPool(2)
	defer p.Close()
	r := rng(6)
	const rows, k, n = 200, 96, 2*chunkTok + 17
	for _, dt := range allWeights {
		w := newWeight(t, dt, normal(r, rows*k), rows, k, 0, Units(k))
		x := normal(r, n*k)
		one := make([]float32, n*rows)
		for tok := range n {
			p.MatMul(one[tok*rows:], rows, w, x[tok*k:], k, 1)
		}
		allEqual(t, dt.String(), func() []float32 {
			y := make([]float32, n*rows)
			p.MatMul(y, rows, w, x, k, n)
			sameBits(t, "batch", y, one)
			return y
		})
	}
}

// For any division of a product, each of its tokens meets each of its panels in exactly one task,
// no task exceeds a thread's buffers, and the number of tasks is within its limit.
func TestTasksAreWhole(t *testing.T) {
	for _, c := range []struct {
		tokens  []int // of each job
		rows    []int
		threads int
		least   int // minimum number of tasks
		then    func(r0, r1, t0, t1 int)
	}{
		{[]int{1}, []int{2048}, 32, 32, nil}, {[]int{96}, []int{3000}, 7, 40, nil}, {[]int{97}, []int{2048}, 2, 64, nil},
		{[]int{512}, []int{2048}, 32, 192, nil}, {[]int{128}, []int{2048}, 32, 96, nil},
		{[]int{512, 512, 512}, []int{2048, 512, 500}, 31, 240, nil},
		{[]int{3, 0, 700, 96}, []int{704, 704, 704, 704}, 16, 100, nil}, {[]int{1 << 16}, []int{128256}, 4, 1 << 18, nil},
		{[]int{16}, []int{128}, 32, 8, nil}, {[]int{16, 16}, []int{256, 256}, 40, 16, func(int, int, int, int) {}},
	} {
		m := matmul{jobs: make([]job, len(c.tokens)), njobs: len(c.tokens), then: c.then}
		panels := 0
		for i, n := range c.tokens {
			m.jobs[i] = job{w: &Weight{Type: Q8_0, panel: 1 << 10}, r1: c.rows[i], n: n}
			m.n, panels = max(m.n, n), panels+(c.rows[i]+kernel.PanelRows-1)/kernel.PanelRows
		}
		tasks := m.cut(c.threads, panels)
		if tasks < c.least || tasks > workers.MaxTasks {
			t.Errorf("%v tokens, %v rows, %d threads: %d tasks, want %d and more", c.tokens, c.rows, c.threads, tasks, c.least)
		}
		if tasks > maxBackupTasks {
			continue
		}
		type place struct {
			job          *job
			panel, token int
		}
		seen := map[place]bool{}
		for i := range tasks {
			j, task := m.job(i)
			first, last := j.panels(task)
			lo, n := j.tokens(task)
			if c.then != nil && first*kernel.PanelRows%BlockWidth != 0 {
				t.Fatalf("%v tokens, %v rows: task %d begins with row %d, in a block of the next product", c.tokens, c.rows, i, first*kernel.PanelRows)
			}
			if first >= last || n < 1 || n > chunkTok || last-first > kernel.MaxTilePanels && n > 1 {
				t.Fatalf("%v tokens, %v rows: task %d is of the panels [%d,%d) and %d tokens", c.tokens, c.rows, i, first, last, n)
			}
			for panel := first; panel < last; panel++ {
				for token := lo; token < lo+n; token++ {
					at := place{j, panel, token}
					if seen[at] || token >= j.n || panel*kernel.PanelRows >= j.r1 {
						t.Fatalf("%v tokens, %v rows: task %d has %+v, twice or of no job", c.tokens, c.rows, i, at)
					}
					seen[at] = true
				}
			}
		}
		want := 0
		for i, n := range c.tokens {
			want += n * ((c.rows[i] + kernel.PanelRows - 1) / kernel.PanelRows)
		}
		if len(seen) != want {
			t.Errorf("%v tokens, %v rows: %d of %d panels times tokens", c.tokens, c.rows, len(seen), want)
		}
	}
}

// cutMatMul multiplies with the units spread over several weights.
func cutMatMul(t *testing.T, p *Pool, dt DType, m []float32, rows, k int, x []float32, n int, cuts []int) []float32 {
	units := Units(k)
	var nodes []Span
	var parts [][]float32
	for i, lo := range cuts {
		lo, hi := min(lo, units), units
		if i+1 < len(cuts) {
			hi = min(cuts[i+1], units)
		}
		w := newWeight(t, dt, m, rows, k, lo, hi)
		var mine [][]float32
		for _, node := range Subtrees(lo, hi, units) {
			nodes = append(nodes, node)
			mine = append(mine, make([]float32, n*rows))
		}
		if lo < hi {
			p.MatMulPartial(mine, w, x[w.Span().Lo:], k, n)
		}
		parts = append(parts, mine...)
	}
	out := make([]float32, n*rows)
	CombineTree(out, nodes, parts, units)
	return out
}

func TestMatMulOfStrangeNumbers(t *testing.T) {
	p := NewPool(1)
	defer p.Close()
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	forEach(t, func(t *testing.T) {
		for _, dt := range allWeights {
			w, err := NewWeight(dt, 16, 40)
			if err != nil {
				t.Fatal(err)
			}
			row := make([]float32, 40)
			row[39] = 1
			w.SetRow(3, row)
			x := make([]float32, 40)
			y := make([]float32, 16)
			for _, v := range []float32{inf, -inf, nan} {
				x[39] = v
				p.MatMul(y, 16, w, x, 40, 1)
				if got := y[3]; got != v && !(v != v && got != got) && !(kernel.Quantized(dt) && got != got) {
					t.Errorf("%v: 1*%v = %v", dt, v, got)
				}
			}
			if err := w.Close(); err != nil {
				t.Error(err)
			}
			if err := w.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestNewWeightRefuses(t *testing.T) {
	for _, c := range []struct {
		dt                 DType
		rows, cols, lo, hi int
	}{{Int8, 4, 4, 0, 1}, {F32, -1, 4, 0, 1}, {F32, 4, 0, 0, 0}, {F32, 4, 64, 0, 3}, {F32, 4, 64, 2, 1},
		{DType(99), 4, 4, 0, 1}, {F32, 1 << 31, 4, 0, 1}} {
		if w, err := NewWeightUnits(c.dt, c.rows, c.cols, c.lo, c.hi); err == nil {
			t.Errorf("%+v made %v", c, w)
		}
	}
	w, err := NewWeightUnits(F32, 0, 64, 1, 1)
	if err != nil || w.Bytes() != 0 || w.Close() != nil {
		t.Error("a weight of nothing", err)
	}
}

func TestMatMulAllocatesNothing(t *testing.T) {
	p := NewPool(2)
	defer p.Close()
	for _, dt := range allWeights {
		w := newWeight(t, dt, make([]float32, 96*300), 96, 300, 0, Units(300))
		x, y := make([]float32, 3*300), make([]float32, 3*96)
		p.MatMul(y, 96, w, x, 300, 3)
		parts := [][]float32{y}
		if n := testing.AllocsPerRun(100, func() {
			p.MatMul(y, 96, w, x, 300, 3)
			p.MatMulPartial(parts, w, x, 300, 3)
		}); n > 0 {
			t.Errorf("%v: %v allocations per product", dt, n)
		}
	}
}
