package f32

import "math"

// The exponential is a range reduction by ln 2 in two pieces, and a polynomial of degree 6. The polynomial
// is fitted (Remez) to exp on [-ln2/2, ln2/2] with float32 coefficients. Its relative error is 4e-9. The
// vector kernels run the same operations in the same order.
const (
	expMax  = 89   // above this the result is infinite
	expMin  = -104 // below this it is 0
	log2e   = 0x1.715476p+0
	ln2High = 0x1.62e43p-1
	ln2Low  = -0x1.05c61p-29
	expC2   = 0x1.fffffcp-2
	expC3   = 0x1.555494p-3
	expC4   = 0x1.55589ep-5
	expC5   = 0x1.123860p-7
	expC6   = 0x1.6a69a6p-10
)

// Exp is e**x to within 1 unit in the last place, with the same bits on every architecture
// (math.Exp is assembly on some). Exp(NaN) is NaN.
func Exp(x float32) float32 {
	if x != x {
		return x
	}
	x = max(expMin, min(expMax, x))
	n := float32(math.RoundToEven(float64(float32(x * log2e))))
	r := FMA(n, -ln2High, x)
	r = FMA(n, -ln2Low, r)
	p := FMA(expC6, r, expC5)
	p = FMA(p, r, expC4)
	p = FMA(p, r, expC3)
	p = FMA(p, r, expC2)
	p = FMA(p, r, 1)
	p = FMA(p, r, 1)
	return float32(float64(p) * math.Float64frombits(uint64(1023+int(n))<<52))
}

// Log returns the natural logarithm of x, correctly rounded up to double rounding, with the same bits on
// every architecture: float64 arithmetic in a fixed order, never fused. Log(0) is -Inf; below 0 it
// is NaN.
func Log(x float32) float32 {
	switch {
	case x != x || x < 0:
		return float32(math.NaN())
	case x == 0:
		return float32(math.Inf(-1))
	case math.IsInf(float64(x), 1):
		return x
	}
	f, e := math.Frexp(float64(x)) // f in [0.5, 1)
	if f < math.Sqrt2/2 {
		f, e = f*2, e-1
	}
	// ln f = 2 atanh(s), s = (f-1)/(f+1), |s| < 0.172: 10 terms leave 2e-17.
	s := (f - 1) / (f + 1)
	z := float64(s * s)
	sum := 0.0
	for k := 21; k >= 3; k -= 2 {
		sum = float64((sum + 1/float64(k)) * z)
	}
	return float32(float64(float64(e)*math.Ln2) + float64(2*s*(1+sum)))
}

// Softplus is log(1 + e**x), with the same bits on every architecture. It is the positive part of x plus
// log(1+y) for y = e**-|x|. The latter is the series of 2 atanh(y/(2+y)) in float64, never fused. The
// argument is at most 1/3, so 11 terms leave 2e-12 of the result.
func Softplus(x float32) float32 {
	if x != x {
		return x
	}
	y := float64(Exp(-max(x, -x)))
	s := y / (2 + y)
	z := float64(s * s)
	sum := 0.0
	for k := 21; k >= 3; k -= 2 {
		sum = float64((sum + 1/float64(k)) * z)
	}
	return float32(float64(max(x, 0)) + float64(2*s*(1+sum)))
}
