package tensor

import (
	"math"

	"github.com/shoal-llm/shoal/internal/engine/tensor/f32"
)

// The error function's form is 7.1.26 of Abramowitz and Stegun: erf(z) = 1 - (a1 t + ... + a5 t⁵)
// exp(-z²) with t = 1/(1+p z), for z >= 0, to within 1.5e-7. The coefficients are halved, because
// Phi(x) = (1 + erf(x/√2))/2 needs half.
const (
	erfP  = 0.3275911
	erfA1 = 0.254829592 / 2
	erfA2 = -0.284496736 / 2
	erfA3 = 1.421413741 / 2
	erfA4 = -1.453152027 / 2
	erfA5 = 1.061405429 / 2
)

// gelu is x Phi(x), with Phi the distribution function of the normal distribution (Hendrycks and
// Gimpel, arXiv 1606.08415). Below 0, Phi is the small term itself, so no digits cancel. Every
// operation is rounded; the polynomial is a fused chain.
func gelu(x float32) float32 {
	z := float32(max(x, -x) * (math.Sqrt2 / 2))
	t := 1 / f32.FMA(z, erfP, 1)
	p := f32.FMA(erfA5, t, erfA4)
	p = f32.FMA(p, t, erfA3)
	p = f32.FMA(p, t, erfA2)
	p = f32.FMA(p, t, erfA1)
	p *= t
	tail := float32(p * f32.Exp(-float32(z*z)))
	if x >= 0 {
		tail = 1 - tail
	}
	return float32(x * tail)
}

// GELUOf computes dst = gelu(x) over the length of dst. dst may be x.
func GELUOf(dst, x []float32) {
	sameLength("GELUOf", len(dst), len(x))
	for i := range dst {
		dst[i] = gelu(x[i])
	}
}

// geluErfMul computes dst = gelu(gate) * up over the length of dst.
func geluErfMul(dst, gate, up []float32) {
	sameLength("geluErfMul", len(dst), len(gate), len(up))
	for i := range dst {
		dst[i] = float32(gelu(gate[i]) * up[i])
	}
}

// LayerNormBias is LayerNorm, then an addition of bias. dst may be x.
func LayerNormBias(dst, x, w, bias []float32, eps float32) {
	LayerNorm(dst, x, w, eps)
	Add(dst[:len(x)], bias)
}
