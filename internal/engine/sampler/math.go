package sampler

import "math"

// exp and log are implemented here because those of package math are assembly on some architectures
// and may differ in the last bit. Every product that is added to something is converted explicitly,
// which prevents fused multiply-add.

// expTable[j] = 2^(j/32), correctly rounded.
var expTable = [32]float64{
	0x1.0000000000000p+0, 0x1.059b0d3158574p+0, 0x1.0b5586cf9890fp+0, 0x1.11301d0125b51p+0,
	0x1.172b83c7d517bp+0, 0x1.1d4873168b9aap+0, 0x1.2387a6e756238p+0, 0x1.29e9df51fdee1p+0,
	0x1.306fe0a31b715p+0, 0x1.371a7373aa9cbp+0, 0x1.3dea64c123422p+0, 0x1.44e086061892dp+0,
	0x1.4bfdad5362a27p+0, 0x1.5342b569d4f82p+0, 0x1.5ab07dd485429p+0, 0x1.6247eb03a5585p+0,
	0x1.6a09e667f3bcdp+0, 0x1.71f75e8ec5f74p+0, 0x1.7a11473eb0187p+0, 0x1.82589994cce13p+0,
	0x1.8ace5422aa0dbp+0, 0x1.93737b0cdc5e5p+0, 0x1.9c49182a3f090p+0, 0x1.a5503b23e255dp+0,
	0x1.ae89f995ad3adp+0, 0x1.b7f76f2fb5e47p+0, 0x1.c199bdd85529cp+0, 0x1.cb720dcef9069p+0,
	0x1.d5818dcfba487p+0, 0x1.dfc97337b9b5fp+0, 0x1.ea4afa2a490dap+0, 0x1.f50765b6e4540p+0,
}

// exp returns e^x for x <= 0, within 1 ulp or so; 0 below -700 and for NaN.
// x = (32 e + j) ln2/32 + r, |r| <= ln2/64: e^x = 2^e expTable[j] e^r.
func exp(x float64) float64 {
	const invStep = 0x1.71547652b82fep+5                               // 32/ln2
	const stepHi, stepLo = 0x1.62e42fef80000p-6, 0x1.1cf79abc9e3b4p-41 // ln2/32; n*stepHi is exact
	if !(x > -700) {
		return 0
	}
	n := int(float64(x*invStep) - 0.5) // truncation towards zero rounds a negative number to nearest
	r := float64(x-float64(float64(n)*stepHi)) - float64(float64(n)*stepLo)
	q := float64(r*(1.0/720)) + 1.0/120
	q = float64(r*q) + 1.0/24
	q = float64(r*q) + 1.0/6
	q = float64(r*q) + 0.5
	q = float64(float64(r*r)*q) + r // e^r - 1
	t := expTable[n&31]
	return float64((t + float64(t*q)) * math.Float64frombits(uint64(1023+n>>5)<<52))
}

// log returns the natural logarithm of a finite x >= 1, within 2 ulp or so.
// x = 2^e m, sqrt(1/2) <= m < sqrt(2); log m = 2 atanh((m-1)/(m+1)).
func log(x float64) float64 {
	const ln2Hi, ln2Lo = 0x1.62e42fefa3000p-1, 0x1.3de6af278ece6p-42
	m, e := math.Frexp(x)
	if m < math.Sqrt2/2 {
		m, e = m*2, e-1
	}
	s := (m - 1) / (m + 1)
	s2 := float64(s * s)
	q := 0.0
	for k := 21; k >= 3; k -= 2 {
		q = float64(q*s2) + 1/float64(k)
	}
	q = float64(float64(q*s2) * s) // atanh(s) - s
	return float64(float64(e)*ln2Hi) + (2*s + float64(2*q+float64(float64(e)*ln2Lo)))
}
