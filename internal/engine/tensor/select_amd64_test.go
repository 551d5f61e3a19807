package tensor

import (
	"fmt"
	"testing"

	"golang.org/x/sys/cpu"

	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
)

// A machine with AVX-512 but without VNNI mixes the two sets; the bits are the same.
func TestWithoutVNNI(t *testing.T) {
	if len(kernel.All()) < 3 {
		t.Skip("needs AVX-512")
	}
	mixed := *kernel.All()[0]
	mixed.Tile[Q8_0], mixed.Tile[Q4_0] = kernel.All()[1].Tile[Q8_0], kernel.All()[1].Tile[Q4_0]
	was := kernel.Active
	defer func() { kernel.Active = was }()
	p := NewPool(1)
	defer p.Close()
	r := rng(30)
	const rows, k, n = 70, 384, 7
	for _, dt := range []DType{Q8_0, Q4_0, BF16} {
		w := newWeight(t, dt, normal(r, rows*k), rows, k, 0, Units(k))
		x := normal(r, n*k)
		got, want := make([]float32, n*rows), make([]float32, n*rows)
		kernel.Active = kernel.All()[0]
		p.MatMul(want, rows, w, x, k, n)
		kernel.Active = &mixed
		p.MatMul(got, rows, w, x, k, n)
		sameBits(t, dt.String(), got, want)
	}
}

// The kernel for one token by four panels depends on the CPU's maker. Rows: one group and a rest,
// several groups in one call, and more than a call takes. Columns: an odd number of blocks, which
// leaves a gap between groups, and all or a part of the units.
func TestRisingSameBits(t *testing.T) {
	if len(kernel.All()) < 3 || !cpu.X86.HasAVX512VNNI {
		t.Skip("needs AVX-512 VNNI")
	}
	was := kernel.Active
	defer func() { kernel.Active = was }()
	p := NewPool(1)
	defer p.Close()
	r := rng(31)
	ahead, rising := *kernel.All()[0], *kernel.All()[0]
	clear(ahead.Rising[:])
	for dt, f := range kernel.RisingAVX512 {
		rising.Rising[dt] = f
	}
	for dt := range kernel.RisingAVX512 {
		for _, c := range []struct{ rows, k, lo, hi int }{{80, 1056, 0, 16}, {2120, 96, 0, 3}, {8192, 64, 0, 2},
			{1040, 1056, 3, 16}, {192, 6144, 0, 16}} {
			w := newWeight(t, dt, normal(r, c.rows*c.k), c.rows, c.k, c.lo, c.hi)
			x := normal(r, w.Span().Len())
			parts := func(k *kernel.Set) []float32 {
				kernel.Active = k
				all := make([]float32, len(w.nodes)*c.rows)
				y := make([][]float32, len(w.nodes))
				for i := range y {
					y[i] = all[i*c.rows:][:c.rows]
				}
				p.MatMulPartial(y, w, x, len(x), 1)
				return all
			}
			want := parts(portable())
			sameBits(t, fmt.Sprintf("%v %v ahead", dt, c), parts(&ahead), want)
			sameBits(t, fmt.Sprintf("%v %v rising", dt, c), parts(&rising), want)
		}
	}
}
