package tensor

import (
	"bytes"
	"math"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/tensor/f32"
	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
)

func TestTokenRecordsSameBits(t *testing.T) {
	r := rng(20)
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	strange := []float32{nan, -nan, inf, -inf, math.SmallestNonzeroFloat32, 0x1p-126, 0x1p-122, 0x1p-121, math.MaxFloat32, 1e-40}
	for round := range 300 {
		x := normal(r, 3*BlockWidth)
		if round%3 == 0 {
			for i := range x[:BlockWidth] {
				x[i] = 0
			}
			x[r.IntN(BlockWidth)] = strange[r.IntN(len(strange))]
		}
		want := make([]byte, 3*kernel.QuantBlockBytes)
		portable().Quantize(want, x, -128)
		for _, k := range kernel.All() {
			got := make([]byte, 3*kernel.QuantBlockBytes)
			k.Quantize(got, x, -128)
			if !bytes.Equal(got, want) {
				t.Fatalf("%s: records of %v\n% x, want\n% x", k.Name, x, got, want)
			}
		}
	}
}

// A row that was quantized once is unchanged when it is quantized again: a GGUF checkpoint passes
// through SetRow unchanged.
func TestQuantizedRowsAreFixedPoints(t *testing.T) {
	r := rng(21)
	for range 2000 {
		var x, y [BlockWidth]float32
		for i := range x {
			x[i] = float32(r.NormFloat64() * math.Exp(r.NormFloat64()*4))
		}
		for name, put := range map[string]func([]byte, int, *[BlockWidth]float32) uint16{"q8_0": putQ8, "q4_0": putQ4, "iq4_nl": putIQ4} {
			a, b := make([]byte, 512), make([]byte, 512)
			d := put(a, 3, &x)
			if v := math.Abs(float64(f32.FromF16(d))); v == 0 || v > 6e4 {
				continue
			}
			for k := range y {
				q := int(a[k/4*64+12+k%4]) - 128
				switch nibble := a[k%16/4*64+12+k%4] >> (k / 16 * 4) & 15; name {
				case "q4_0":
					q = int(nibble) - 8
				case "iq4_nl":
					q = int(kernel.NonLinear[nibble])
				}
				y[k] = float32(q) * f32.FromF16(d)
			}
			if d2 := put(b, 3, &y); d2 != d || !bytes.Equal(a, b) {
				t.Fatalf("%s: scale %v then %v", name, f32.FromF16(d), f32.FromF16(d2))
			}
		}
	}
}

// IQ4_NL has the size of Q4_0 and must have a smaller error on typical weights.
func TestIQ4IsNearerThanQ4(t *testing.T) {
	r := rng(22)
	var q4, iq4 float64
	for range 4000 {
		var x [BlockWidth]float32
		for i := range x {
			x[i] = float32(r.NormFloat64())
		}
		a, b := make([]byte, 512), make([]byte, 512)
		d4, dNL := f32.FromF16(putQ4(a, 0, &x)), f32.FromF16(putIQ4(b, 0, &x))
		for k, v := range x {
			at, shift := k%16/4*64+k%4, k/16*4
			q4 += math.Pow(float64(v-d4*float32(int(a[at]>>shift&15)-8)), 2)
			iq4 += math.Pow(float64(v-dNL*float32(kernel.NonLinear[b[at]>>shift&15])), 2)
		}
	}
	if iq4 > 0.85*q4 {
		t.Fatalf("squared error %.4g, of Q4_0 %.4g: want at most 0.85 of it", iq4, q4)
	}
	t.Logf("squared error of IQ4_NL over that of Q4_0: %.3f", iq4/q4)
}
