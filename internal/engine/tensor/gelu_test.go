package tensor

import (
	"math"
	"testing"
)

// TestGELU compares with the error function of the standard library over the range of float32.
func TestGELU(t *testing.T) {
	worst := 0.0
	check := func(x float32) {
		want := float64(x) * 0.5 * math.Erfc(-float64(x)/math.Sqrt2)
		got := float64(gelu(x))
		if d := math.Abs(got-want) / max(1, math.Abs(float64(x))); d > worst {
			worst = d
		}
		if x < 0 && (got > 0 || got < -0.171) || x > 0 && (got < 0 || got > float64(x)) {
			t.Fatalf("gelu(%v) = %v", x, got)
		}
	}
	for x := float32(-20); x < 20; x += 1.0 / 512 {
		check(x)
	}
	for _, x := range []float32{1e-38, -1e-38, 1e-10, 1e30, -1e30, math.MaxFloat32, -math.MaxFloat32} {
		check(x)
	}
	if worst > 4e-7 {
		t.Errorf("the largest error is %v, want at most 4e-7", worst)
	}
	if v := gelu(float32(math.NaN())); v == v {
		t.Errorf("gelu(NaN) = %v", v)
	}
	dst := []float32{0, 0}
	GELU.Mul(dst, []float32{1, -2}, []float32{3, 5})
	if dst[0] != float32(gelu(1)*3) || dst[1] != float32(gelu(-2)*5) {
		t.Errorf("%v", dst)
	}
}

func TestLayerNormBias(t *testing.T) {
	x, w, b := []float32{1, 2, 3, 6}, []float32{1, 2, 1, 1}, []float32{10, 20, 30, 40}
	dst := make([]float32, 4)
	LayerNormBias(dst, x, w, b, 0)
	s := 1 / math.Sqrt(3.5)
	for i, want := range []float64{10 - 2*s, 20 - 2*s, 30, 40 + 3*s} {
		if math.Abs(float64(dst[i])-want) > 1e-5 {
			t.Errorf("element %d is %v, want %v", i, dst[i], want)
		}
	}
}
