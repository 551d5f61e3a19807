package tensor

import (
	"fmt"
	"math"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/tensor/f32"
	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
)

func TestExpAndLogAreAccurate(t *testing.T) {
	worst := 0.0
	for x := float32(-87); x < 88.7; x += 0.0037 {
		got, want := float64(f32.Exp(x)), math.Exp(float64(x))
		worst = max(worst, math.Abs(got-want)/want)
	}
	if worst > 1.2e-7 {
		t.Errorf("relative error of Exp %.3g", worst)
	}
	for b := uint32(1); b < 0x7f800000; b += 12347 {
		x := math.Float32frombits(b)
		got, want := f32.Log(x), float32(math.Log(float64(x)))
		if d := int32(math.Float32bits(got)) - int32(math.Float32bits(want)); d < -1 || d > 1 {
			t.Fatalf("Log(%v) = %v, want %v", x, got, want)
		}
	}
	inf, nan := math.Inf(1), math.NaN()
	for _, c := range [][2]float64{{0, 1}, {inf, inf}, {-inf, 0}, {nan, nan}, {89, inf}, {-104, 0}, {1e30, inf}, {-1e30, 0}} {
		if got := float64(f32.Exp(float32(c[0]))); got != c[1] && !(got != got && c[1] != c[1]) {
			t.Errorf("Exp(%v) = %v", c[0], got)
		}
	}
	for _, c := range [][2]float64{{1, 0}, {0, -inf}, {-1, nan}, {inf, inf}, {nan, nan}, {-inf, nan}} {
		if got := float64(f32.Log(float32(c[0]))); got != c[1] && !(got != got && c[1] != c[1]) {
			t.Errorf("Log(%v) = %v", c[0], got)
		}
	}
}

// lengths of rows that exercise every tail of the vector kernels.
var lengths = []int{1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 100, 128, 255, 576, 1000}

func TestOpsSameBits(t *testing.T) {
	r := rng(4)
	strange := []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), 1e38,
		-1e38, 1e-45, 88.5, -88.5, -103.5, -103.9, 104}
	for _, n := range lengths {
		for pass := range 4 {
			a, b, c := normal(r, n), normal(r, n), normal(r, n)
			for i := range a {
				a[i] *= float32(pass) * 10
			}
			if pass == 3 {
				a[r.IntN(n)] = strange[r.IntN(len(strange))]
			}
			run := func(name string, f func(dst []float32)) {
				allEqual(t, fmt.Sprintf("%s of %d", name, n), func() []float32 {
					dst := append(append([]float32{}, a...), 42)
					f(dst[:n])
					if dst[n] != 42 {
						t.Fatalf("%s of %d wrote beyond its end", name, n)
					}
					return dst
				})
			}
			run("RMSNorm", func(d []float32) { RMSNorm(d, a, b, 1e-5) })
			run("LayerNorm", func(d []float32) { LayerNorm(d, a, b, 1e-5) })
			run("SumSquares", func(d []float32) { d[0] = SumSquares(a) })
			run("NormBy", func(d []float32) { NormBy(d, a, b, 0.7) })
			run("RMSNorm in parts", func(d []float32) {
				whole := make([]float32, n)
				NormBy(d, a, b, kernel.RMSFactor(SumSquares(a), n, 1e-5))
				RMSNorm(whole, a, b, 1e-5)
				sameBits(t, "RMSNorm in parts", d, whole)
			})
			run("Add", func(d []float32) { Add(d, b) })
			run("SiLUMul", func(d []float32) { SiLUMul(d, a, b) })
			run("GELUMul", func(d []float32) { GELUMul(d, a, b) })
			run("ClampedMul", func(d []float32) { ClampedMul(d, a, b) })
			run("ClampedMul of large numbers", func(d []float32) {
				gate, up := append([]float32(nil), a...), append([]float32(nil), b...)
				Scale(gate, 9)
				Scale(up, 9)
				gate[0], up[n/2] = float32(math.NaN()), float32(math.Inf(-1))
				ClampedMul(d, gate, up)
				if d[0] == d[0] {
					t.Errorf("ClampedMul of NaN is %v", d[0])
				}
				d[0] = 0
			})
			run("SoftCap", func(d []float32) { SoftCap(d, 5) })
			run("scale", func(d []float32) { kernel.Active.ScaleBy(d, 1.7) })
			run("Raise", func(d []float32) { Raise(d, b, 0.3) })
			run("Tops", func(d []float32) {
				for i, x := range new(AttnScratch).Tops(a, 3) {
					d[i] = x + 0 // -0 is as good as 0
				}
			})
			run("ArgMax", func(d []float32) { d[0] = float32(ArgMax(a)) })
			run("max", func(d []float32) { d[0] = kernel.Active.MaxOf(a) + 0 }) // -0 is as good as 0
			run("LogSumExp", func(d []float32) { d[0] = LogSumExp(a) })
			if n%2 == 0 {
				run("RopeRotateHalf", func(d []float32) { RopeRotateHalf(d, b, c) })
			}
		}
	}
}

// The vector exponential equals Exp over its whole range and beyond.
func TestVectorExpIsExp(t *testing.T) {
	const n = 1 << 14
	x, ones := make([]float32, n), make([]float32, n)
	for i := range x {
		x[i], ones[i] = (float32(i)/n-0.5)*230, 1
	}
	want := make([]float32, n)
	for i, v := range x {
		want[i] = v / (1 + f32.Exp(-v))
	}
	forEach(t, func(t *testing.T) {
		y := make([]float32, n)
		SiLUMul(y, x, ones)
		sameBits(t, "SiLU", y, want)
	})
}

func TestTops(t *testing.T) {
	x := normal(rng(3), 1000)
	x[100] = float32(math.NaN())
	forEach(t, func(t *testing.T) {
		for _, m := range []int{1, 4, 40, 70} {
			got := new(AttnScratch).Tops(x, m)
			if len(got) != 1000/(16*m)*16 {
				t.Errorf("%d groups of %d", len(got), m)
			}
			for i, top := range got {
				want := kernel.NegInf
				for j := range m {
					if v := x[i/16*16*m+16*j+i%16]; v > want {
						want = v
					}
				}
				if top != want {
					t.Errorf("group %d of %d: %v, want %v", i, m, top, want)
				}
			}
		}
	})
}

func TestOpsAreTheDefinition(t *testing.T) {
	close := func(got float32, want float64) bool {
		return math.Abs(float64(got)-want) <= 1e-5*math.Max(1, math.Abs(want))
	}
	forEach(t, func(t *testing.T) {
		r := rng(5)
		for _, n := range lengths {
			x, w, up := make([]float32, n), make([]float32, n), make([]float32, n)
			sum, lse, best := 0.0, 0.0, 0
			for i := range x {
				x[i], w[i], up[i] = float32(r.NormFloat64()), r.Float32(), r.Float32()
				sum += float64(x[i]) * float64(x[i])
				lse += math.Exp(float64(x[i]))
				if x[i] > x[best] {
					best = i
				}
			}
			norm, act := make([]float32, n), make([]float32, n)
			RMSNorm(norm, x, w, 1e-5)
			SiLUMul(act, x, up)
			for i := range x {
				if want := float64(x[i]) / math.Sqrt(sum/float64(n)+1e-5) * float64(w[i]); !close(norm[i], want) {
					t.Fatalf("RMSNorm of %d: element %d is %v, want %v", n, i, norm[i], want)
				}
				if want := float64(x[i]) / (1 + math.Exp(-float64(x[i]))) * float64(up[i]); !close(act[i], want) {
					t.Fatalf("SiLUMul of %d: element %d is %v, want %v", n, i, act[i], want)
				}
			}
			GELUMul(act, x, up)
			for i := range x {
				v := float64(x[i])
				if want := v / 2 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(v+0.044715*v*v*v))) * float64(up[i]); !close(act[i], want) {
					t.Fatalf("GELUMul of %d: element %d is %v, want %v", n, i, act[i], want)
				}
			}
			clamped := make([]float32, n)
			for i := range x {
				norm[i] = 20 * x[i]
			}
			ClampedMul(clamped, norm, up)
			for i := range x {
				g := min(float64(norm[i]), 7)
				if want := g / (1 + math.Exp(-1.702*g)) * (min(max(float64(up[i]), -7), 7) + 1); !close(clamped[i], want) {
					t.Fatalf("ClampedMul of %d: element %d is %v, want %v", n, i, clamped[i], want)
				}
			}
			LayerNorm(norm, x, up, 1e-5)
			mean, variance := 0.0, 0.0
			for _, v := range x {
				mean += float64(v) / float64(n)
			}
			for _, v := range x {
				variance += (float64(v) - mean) * (float64(v) - mean) / float64(n)
			}
			for i, v := range x {
				if want := (float64(v) - mean) / math.Sqrt(variance+1e-5) * float64(up[i]); !close(norm[i], want) {
					t.Fatalf("LayerNorm of %d: element %d is %v, want %v", n, i, norm[i], want)
				}
			}
			SoftCap(act, 0.7)
			for i := range x {
				GELUMul(norm[i:i+1], x[i:i+1], up[i:i+1])
				if want := 0.7 * math.Tanh(float64(norm[i])/0.7); !close(act[i], want) {
					t.Fatalf("SoftCap of %v is %v, want %v", norm[i], act[i], want)
				}
			}
			if got := LogSumExp(x); !close(got, math.Log(lse)) {
				t.Fatalf("LogSumExp of %d is %v, want %v", n, got, math.Log(lse))
			}
			if got := ArgMax(x); got != best {
				t.Fatalf("ArgMax of %d is %d, want %d", n, got, best)
			}
		}
	})
}

func TestArgMaxEdges(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	neg0 := float32(math.Copysign(0, -1))
	long := make([]float32, 100)
	for i := range long {
		long[i] = -inf
	}
	long[77] = -1
	forEach(t, func(t *testing.T) {
		for _, c := range []struct {
			x    []float32
			want int
		}{
			{nil, 0}, {[]float32{nan}, 0}, {[]float32{nan, nan, 3, nan}, 2}, {[]float32{nan, -inf, -inf}, 1},
			{[]float32{1, 5, 5}, 1}, {[]float32{neg0, 0}, 0}, {[]float32{0, neg0}, 0}, {[]float32{1, inf, inf}, 1}, {long, 77},
		} {
			if got := ArgMax(c.x); got != c.want {
				t.Errorf("ArgMax(%v) = %d, want %d", c.x, got, c.want)
			}
		}
		if got := LogSumExp(nil); got != -inf {
			t.Errorf("LogSumExp of nothing is %v", got)
		}
		if got := LogSumExp([]float32{-inf, nan}); got == got {
			t.Errorf("LogSumExp of NaN is %v", got)
		}
		if got := LogSumExp([]float32{-inf, 2}); got != 2 {
			t.Errorf("LogSumExp of one is %v", got)
		}
	})
}

// TestReLUSquared compares both forms with their definition.
func TestReLUSquared(t *testing.T) {
	x, up := []float32{-3, 0, 0.5, 2, -0.25, 7}, []float32{1, 2, 3, 4, 5, -6}
	alone, gated := make([]float32, len(x)), make([]float32, len(x))
	ReLUSquared.Of(alone, x)
	ReLUSquared.Mul(gated, x, up)
	for i, v := range x {
		want := float32(0)
		if v > 0 {
			want = v * v
		}
		if alone[i] != want || gated[i] != want*up[i] {
			t.Errorf("relu(%v)² is %v, times %v %v; want %v", v, alone[i], up[i], gated[i], want)
		}
	}
	if GELU.Of(alone, x); alone[3] < 1.9 || alone[3] > 2 {
		t.Errorf("gelu(2) is %v", alone[3])
	}
}
