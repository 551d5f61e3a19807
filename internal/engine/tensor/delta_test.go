package tensor

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/tensor/f32"
)

// TestDelta compares the passes of the gated delta rule on every implementation with the equations
// in float64, for widths with and without a rest.
func TestDelta(t *testing.T) {
	for _, shape := range [][2]int{{128, 128}, {16, 16}, {24, 40}, {8, 5}, {1, 96}, {64, 80}, {3, 64}} {
		rows, cols := shape[0], shape[1]
		t.Run(fmt.Sprint(rows, "x", cols), func(t *testing.T) {
			r := rng(uint64(rows*1000 + cols))
			s, k, q, v := normal(r, rows*cols), normal(r, rows), normal(r, rows), normal(r, cols)
			const decay, beta = float32(0.8125), float32(0.375)
			run := func() []float32 {
				state, p, u, read, out := append([]float32(nil), s...), make([]float32, cols), make([]float32, cols),
					make([]float32, cols), make([]float32, cols)
				DeltaPredict(p, state, k, decay)
				DeltaUpdate(u, v, p, beta)
				DeltaRead(read, state, k, q, u, decay)
				sameBits(t, "state after a read", state, s)
				DeltaAdvance(out, state, k, q, u, decay)
				sameBits(t, "read", read, out)
				return slices.Concat(p, u, out, state)
			}
			got := run()
			allEqual(t, "delta rule", run)
			for j := range cols {
				column, p, o, size := make([]float64, rows), 0.0, 0.0, 0.0
				for i := range rows {
					column[i] = float64(decay) * float64(s[i*cols+j])
					p += float64(k[i]) * column[i]
					size += math.Abs(float64(k[i]) * column[i])
				}
				u := float64(beta) * (float64(v[j]) - p)
				read := 0.0
				for i := range rows {
					column[i] += float64(k[i]) * u
					o += float64(q[i]) * column[i]
					read += math.Abs(float64(q[i]))*(math.Abs(column[i])+math.Abs(float64(k[i])*size)) + size
				}
				near(t, "prediction", got[j], p, size)
				near(t, "output", got[2*cols+j], o, read)
				for i := range rows {
					near(t, "state", got[3*cols+i*cols+j], column[i], math.Abs(column[i])+math.Abs(float64(k[i]))*(size+math.Abs(float64(v[j]))))
				}
			}
		})
	}
}

// near allows the rounding of a chain of terms with the given sum of magnitudes.
func near(t *testing.T, what string, got float32, want, size float64) {
	t.Helper()
	if d := math.Abs(float64(got) - want); !(d <= 1e-5*(size+1e-30)) {
		t.Fatalf("%s is %v, want %v", what, got, want)
	}
}

func TestGates(t *testing.T) {
	r := rng(3)
	x, y, z := normal(r, 3*16+7), normal(r, 3*16+7), normal(r, 3*16+7)
	x[0], x[1], x[2] = 200, -200, 0
	allEqual(t, "sigmoid", func() []float32 {
		out := make([]float32, len(x))
		SigmoidMul(out, x, y)
		return out
	})
	allEqual(t, "products", func() []float32 {
		out := append([]float32(nil), z...)
		AddProduct(out, x, y)
		return out
	})
	out := make([]float32, len(x))
	SigmoidMul(out, x, y)
	for i := range x {
		want := float64(y[i]) / (1 + math.Exp(-float64(x[i])))
		if d := math.Abs(float64(out[i]) - want); d > 1e-6*math.Abs(want)+1e-30 {
			t.Errorf("sigmoid(%v) * %v is %v, want %v", x[i], y[i], out[i], want)
		}
	}
}

// TestSoftplus compares with float64. The result has an error of at most 2 units in the last place.
func TestSoftplus(t *testing.T) {
	for x := float32(-100); x < 100; x += 0.0137 {
		want := math.Max(float64(x), 0) + math.Log1p(math.Exp(-math.Abs(float64(x))))
		if got := float64(f32.Softplus(x)); math.Abs(got-want) > 2.5e-7*want+2e-45 {
			t.Fatalf("softplus(%v) is %v, want %v", x, got, want)
		}
	}
	inf := float32(math.Inf(1))
	if f32.Softplus(inf) != inf || f32.Softplus(-inf) != f32.Softplus(-200) || f32.Softplus(float32(math.NaN())) == 0 {
		t.Errorf("softplus of infinities is %v and %v", f32.Softplus(inf), f32.Softplus(-inf))
	}
}
