package f32

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

// exactFMA is the reference: arbitrary precision, rounded once.
func exactFMA(a, b, c float32) float32 {
	x := new(big.Float).SetPrec(2000).SetFloat64(float64(a))
	x.Mul(x, new(big.Float).SetPrec(2000).SetFloat64(float64(b)))
	x.Add(x, new(big.Float).SetPrec(2000).SetFloat64(float64(c)))
	f, _ := x.Float32()
	return f
}

func TestFMAIsExact(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 7))
	check := func(a, b, c float32) {
		t.Helper()
		got, want := FMA(a, b, c), exactFMA(a, b, c)
		if math.Float32bits(got) != math.Float32bits(want) && !(got == 0 && want == 0) {
			t.Fatalf("fma(%x, %x, %x) = %x, want %x", a, b, c, got, want)
		}
	}
	rounds := 100000
	if testing.Short() {
		rounds = 10000
	}
	for range rounds {
		a, b, c := anyFinite(r), anyFinite(r), anyFinite(r)
		check(a, b, c)
		// Similar magnitudes, where ties and cancellation occur.
		a, b = 1+float32(r.IntN(1<<12))/(1<<12), 1+float32(r.IntN(1<<12))/(1<<12)
		c = float32(math.Ldexp(1+float64(r.IntN(1<<23))/(1<<23), r.IntN(60)-30))
		check(a, b, c)
		check(a, -b, c)
		// Subnormal results.
		s := float32(math.Ldexp(1, -r.IntN(30)-60))
		check(a*s, b*s, float32(r.IntN(100))*math.SmallestNonzeroFloat32)
		check(a*s, -b*s, float32(r.IntN(100))*math.SmallestNonzeroFloat32)
	}
	// A tie at 24 bits that only the exact sum breaks.
	check(0x1.000002p0, 0x1.000002p-24, 1)
	check(0x1p-80, 0x1p-60, 0x1.000001p0)
	check(0x1p-80, -0x1p-60, 0x1.000003p0)
	check(math.MaxFloat32, 1, 0x1p103)
	check(math.MaxFloat32, 1, 0x1.fffffep102)
}

func anyFinite(r *rand.Rand) float32 {
	for {
		f := math.Float32frombits(r.Uint32())
		if !math.IsNaN(float64(f)) && !math.IsInf(float64(f), 0) {
			return f
		}
	}
}

func TestFMASpecials(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	neg0 := float32(math.Copysign(0, -1))
	for _, c := range []struct{ a, b, c, want float32 }{
		{inf, 1, 1, inf}, {inf, -1, 1, -inf}, {inf, 0, 1, nan}, {inf, 1, -inf, nan}, {nan, 1, 1, nan},
		{0, 1, neg0, 0}, {neg0, 1, neg0, neg0}, {neg0, 1, 0, 0}, {1, 1, -1, 0}, {math.MaxFloat32, 2, 0, inf},
	} {
		got := FMA(c.a, c.b, c.c)
		if math.Float32bits(got) != math.Float32bits(c.want) && !(got != got && c.want != c.want) {
			t.Errorf("fma(%v, %v, %v) = %v, want %v", c.a, c.b, c.c, got, c.want)
		}
	}
}

func TestHalfConversions(t *testing.T) {
	for h := range 1 << 16 {
		f := FromF16(uint16(h))
		if f == f && ToF16(f) != uint16(h) {
			t.Fatalf("float16 %#04x -> %v -> %#04x", h, f, ToF16(f))
		}
		b := FromBF16(uint16(h))
		if b == b && ToBF16(b) != uint16(h) {
			t.Fatalf("bfloat16 %#04x -> %v -> %#04x", h, b, ToBF16(b))
		}
	}
	// Halfway cases go to the even neighbour, larger ones up.
	for h := range 0x7bff {
		lo, hi := float64(FromF16(uint16(h))), float64(FromF16(uint16(h+1)))
		mid := float32((lo + hi) / 2)
		want := uint16(h + h&1)
		if got := ToF16(mid); got != want {
			t.Fatalf("float16 of the middle of %#04x is %#04x, want %#04x", h, got, want)
		}
		if got := ToF16(math.Nextafter32(mid, 1e9)); got != uint16(h+1) {
			t.Fatalf("float16 just above the middle of %#04x is %#04x", h, got)
		}
	}
	if ToF16(1e6) != 0x7c00 || ToF16(-1e6) != 0xfc00 || ToF16(65520) != 0x7c00 || ToF16(65519) != 0x7bff {
		t.Error("float16 overflow")
	}
	if n := ToBF16(float32(math.NaN())); FromBF16(n) == FromBF16(n) {
		t.Error("bfloat16 NaN became a number")
	}
}
