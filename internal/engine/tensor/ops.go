package tensor

import (
	"fmt"
	"math"

	"github.com/shoal-llm/shoal/internal/engine/tensor/f32"
	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
)

func sameLength(op string, lens ...int) {
	for _, n := range lens[1:] {
		if n < lens[0] {
			panic(fmt.Sprintf("tensor: %s of %d elements with a slice of %d", op, lens[0], n))
		}
	}
}

// RMSNorm computes dst = (x / sqrt(mean(x²) + eps)) * w over the length of x. The sum of squares is
// a fused chain in 16 lanes. dst may be x.
func RMSNorm(dst, x, w []float32, eps float32) {
	if len(x) == 0 {
		return
	}
	sameLength("RMSNorm", len(x), len(dst), len(w))
	kernel.Active.RMSNorm(dst, x, w, eps)
}

// LayerNorm is RMSNorm of x minus its mean, without a bias (Ba et al., arXiv 1607.06450). The sum of
// x is in 16 lanes, then their tree. dst may be x.
func LayerNorm(dst, x, w []float32, eps float32) {
	if len(x) == 0 {
		return
	}
	sameLength("LayerNorm", len(x), len(dst), len(w))
	var acc kernel.Lanes
	for i, v := range x {
		acc[i&15] += v
	}
	mean := acc.Sum() / float32(len(x))
	for i, v := range x {
		dst[i] = v - mean
	}
	kernel.Active.RMSNorm(dst, dst[:len(x)], w, eps)
}

// SumSquares returns the sum of squares of RMSNorm: a fused chain in 16 lanes, then their tree.
func SumSquares(x []float32) float32 { return kernel.Active.Squares(x) }

// NormBy computes dst = (x * by) * w over the length of x: RMSNorm, if by is its RMSFactor. dst may
// be x.
func NormBy(dst, x, w []float32, by float32) {
	sameLength("NormBy", len(x), len(dst), len(w))
	kernel.Active.NormBy(dst, x, w, by)
}

// Add computes dst += x over the length of dst.
func Add(dst, x []float32) {
	sameLength("Add", len(dst), len(x))
	kernel.Active.Add(dst, x)
}

// Raise computes dst = max(dst, x-by) over the length of dst, without NaN; the zeros are equal.
func Raise(dst, x []float32, by float32) {
	sameLength("Raise", len(dst), len(x))
	kernel.Active.Raise(dst, x, by)
}

func Scale(x []float32, by float32) { kernel.Active.ScaleBy(x, by) }

// Activation is the nonlinearity of a gated feed-forward network.
type Activation uint8

const (
	SiLU        Activation = iota // x / (1 + exp(-x)), see SiLUMul
	GELUTanh                      // see GELUMul
	Clamped                       // of gpt-oss, see ClampedMul
	GELU                          // x Phi(x), see GELUOf
	ReLUSquared                   // max(x, 0)² (So et al., arXiv 2109.08668)
)

// Mul computes dst = a(gate) * up over the length of dst. dst may be gate or up.
func (a Activation) Mul(dst, gate, up []float32) {
	switch a {
	case GELUTanh:
		GELUMul(dst, gate, up)
	case Clamped:
		ClampedMul(dst, gate, up)
	case GELU:
		geluErfMul(dst, gate, up)
	case ReLUSquared:
		for i, g := range gate {
			g = max(g, 0)
			dst[i] = g * g * up[i]
		}
	default:
		SiLUMul(dst, gate, up)
	}
}

// Of computes dst = a(x) over the length of dst, for GELU and ReLUSquared: the activations of networks
// without a gate. dst may be x.
func (a Activation) Of(dst, x []float32) {
	if a != ReLUSquared {
		GELUOf(dst, x)
		return
	}
	for i, v := range x {
		v = max(v, 0)
		dst[i] = v * v
	}
}

// SiLUMul computes dst = gate/(1+exp(-gate)) * up over the length of dst. dst may be gate or up.
func SiLUMul(dst, gate, up []float32) {
	sameLength("SiLUMul", len(dst), len(gate), len(up))
	kernel.Active.SiLUMul(dst, gate, up)
}

// GELUMul computes dst = gelu(gate) * up over the length of dst, with gelu in its tanh form
// (Hendrycks and Gimpel, arXiv 1606.08415, section 2; gelu_pytorch_tanh): x/2 (1 + tanh(sqrt(2/pi)
// (x + 0.044715 x³))), which equals x / (1 + exp(-2 sqrt(2/pi) (x + 0.044715 x³))). Every operation
// is rounded. dst may be gate or up.
func GELUMul(dst, gate, up []float32) {
	sameLength("GELUMul", len(dst), len(gate), len(up))
	kernel.Active.GELUMul(dst, gate, up)
}

// ClampedMul computes dst = g/(1+exp(-1.702 g)) * (u+1) over the length of dst, with g = min(gate, 7)
// and u = up bounded by -7 and 7 (gpt-oss, arXiv 2508.10925, section 2). Every operation is rounded.
// dst may be gate or up.
func ClampedMul(dst, gate, up []float32) {
	sameLength("ClampedMul", len(dst), len(gate), len(up))
	kernel.Active.ClampedMul(dst, gate, up)
}

// SoftCap computes x = top * tanh(x/top) in place, with tanh(y) = 1 - 2/(1+exp(2y)). Every operation
// is rounded.
func SoftCap(x []float32, top float32) { kernel.Active.SoftCap(x, top) }

// SigmoidMul computes dst = x / (1+exp(-gate)) over the length of dst. dst may be gate or x.
func SigmoidMul(dst, gate, x []float32) {
	sameLength("SigmoidMul", len(dst), len(gate), len(x))
	kernel.Active.SigmoidMul(dst, gate, x)
}

// AddProduct computes dst = fma(x, y, dst) over the length of dst.
func AddProduct(dst, x, y []float32) {
	sameLength("AddProduct", len(dst), len(x), len(y))
	kernel.Active.AddProduct(dst, x, y)
}

// RopeRotateHalf rotates one head x [d] in place, in the rotate-half pairing (i, i+d/2):
// x[i]*cos[i] - x[i+d/2]*sin[i] and x[i+d/2]*cos[i] + x[i]*sin[i], each product rounded. cos and
// sin have d/2 elements.
func RopeRotateHalf(x, cos, sin []float32) {
	sameLength("RopeRotateHalf", len(x)/2, len(cos), len(sin))
	kernel.Active.Rope(x, cos, sin)
}

// ArgMax returns the index of the largest element, the lowest one of equals. NaN never wins; a row
// without numbers (or without elements) gives 0.
func ArgMax(x []float32) int { return kernel.Active.ArgMax(x) }

// LogSumExp is log(sum of exp(x[i])): the maximum, then the sum of exp(x[i]-max) in 16 lanes and
// their tree, then one logarithm. It is -Inf for an empty row or one of -Inf only, and NaN if an
// element is NaN or +Inf.
func LogSumExp(x []float32) float32 {
	m := kernel.Active.MaxOf(x)
	if m == float32(math.Inf(-1)) {
		for _, v := range x {
			if v != v {
				return v
			}
		}
		return m
	}
	return m + f32.Log(kernel.Active.SumExp(x, m))
}
