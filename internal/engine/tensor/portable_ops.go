package tensor

import "math"

// sum is the fixed end of every 16-lane reduction.
func (l *lanes) sum() float32 {
	for half := 8; half > 0; half /= 2 {
		for i := range half {
			l[i] += l[i+half]
		}
	}
	return l[0]
}

func portableRMSNorm(dst, x, w []float32, eps float32) {
	var acc lanes
	sumSquaresTail(&acc, x)
	normTail(dst, x, w, rsqrtMean(&acc, len(x), eps))
}

func portableSumSquares(x []float32) float32 {
	var acc lanes
	sumSquaresTail(&acc, x)
	return acc.sum()
}

func sumSquaresTail(acc *lanes, x []float32) {
	for i, v := range x {
		acc[i&15] = fma32(v, v, acc[i&15])
	}
}

func rsqrtMean(acc *lanes, n int, eps float32) float32 {
	return RMSFactor(acc.sum(), n, eps)
}

func normTail(dst, x, w []float32, r float32) {
	for i, v := range x {
		dst[i] = float32(v*r) * w[i]
	}
}

func portableAdd(dst, x []float32) {
	x = x[:len(dst)]
	for i := range dst {
		dst[i] += x[i]
	}
}

func portableSiLUMul(dst, gate, up []float32) {
	for i := range dst {
		g := gate[i]
		dst[i] = float32(g/(1+Exp(-g))) * up[i]
	}
}

func portableSigmoidMul(dst, gate, x []float32) {
	for i := range dst {
		dst[i] = x[i] / (1 + Exp(-gate[i]))
	}
}

func portableAddProduct(dst, x, y []float32) {
	for i := range dst {
		dst[i] = fma32(x[i], y[i], dst[i])
	}
}

// Bound of ClampedMul, and -1.702 as float32.
const (
	clampLimit = 7
	clampSlope = -0x1.b3b646p+0
)

func portableClampedMul(dst, gate, up []float32) {
	for i := range dst {
		g, u := gate[i], up[i]
		if g > clampLimit {
			g = clampLimit
		}
		if u > clampLimit {
			u = clampLimit
		}
		if u < -clampLimit {
			u = -clampLimit
		}
		dst[i] = float32(g/(1+Exp(float32(g*clampSlope)))) * float32(u+1)
	}
}

// -2 sqrt(2/pi), and that times 0.044715, as float32.
const (
	geluLine = -0x1.988454p+0
	geluCube = -0x1.2444f2p-4
)

func portableGELUMul(dst, gate, up []float32) {
	for i := range dst {
		g := gate[i]
		u := float32(float32(float32(g*g)*geluCube)+geluLine) * g
		dst[i] = float32(g/(1+Exp(u))) * up[i]
	}
}

func portableSoftCap(x []float32, top float32) {
	for i, v := range x {
		x[i] = top * float32(1-2/(1+Exp(2*float32(v/top))))
	}
}

func portableRope(x, cos, sin []float32) {
	half := len(x) / 2
	ropeTail(x[:half], x[half:], cos, sin)
}

func ropeTail(lo, hi, cos, sin []float32) {
	for i, a := range lo {
		b, c, s := hi[i], cos[i], sin[i]
		lo[i] = float32(a*c) - float32(b*s)
		hi[i] = float32(b*c) + float32(a*s)
	}
}

func portableArgMax(x []float32) int { return max(0, indexTail(x, portableMax(x))) }

// indexTail is the first index of v, or less than every index if it is not there.
func indexTail(x []float32, v float32) int {
	for i := range x {
		if x[i] == v {
			return i
		}
	}
	return math.MinInt
}

// portableMax is the largest element that is not NaN; -Inf if there is none.
func portableMax(x []float32) float32 {
	m := float32(math.Inf(-1))
	for _, v := range x {
		if v > m {
			m = v
		}
	}
	return m
}

func portableSumExp(x []float32, max float32) float32 {
	var acc lanes
	sumExpTail(&acc, x, max)
	return acc.sum()
}

func sumExpTail(acc *lanes, x []float32, max float32) {
	for i, v := range x {
		acc[i&15] += Exp(v - max)
	}
}

func portableScale(x []float32, by float32) {
	for i := range x {
		x[i] *= by
	}
}

func portableRaise(dst, x []float32, by float32) {
	for i, v := range x[:len(dst)] {
		if v -= by; v > dst[i] {
			dst[i] = v
		}
	}
}

func portableLaneMax(acc *lanes, x []float32) {
	for i, v := range x[:len(x)&^15] {
		if v > acc[i&15] {
			acc[i&15] = v
		}
	}
}
