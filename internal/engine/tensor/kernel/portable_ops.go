package kernel

import (
	"math"
	"unsafe"

	"github.com/shoal-llm/shoal/internal/engine/tensor/f32"
)

// Sum adds the 16 lanes in the fixed order of every reduction.
func (l *Lanes) Sum() float32 {
	for half := 8; half > 0; half /= 2 {
		for i := range half {
			l[i] += l[i+half]
		}
	}
	return l[0]
}

func portableRMSNorm(dst, x, w []float32, eps float32) {
	var acc Lanes
	sumSquaresTail(&acc, x)
	normTail(dst, x, w, rsqrtMean(&acc, len(x), eps))
}

func portableSumSquares(x []float32) float32 {
	var acc Lanes
	sumSquaresTail(&acc, x)
	return acc.Sum()
}

func sumSquaresTail(acc *Lanes, x []float32) {
	for i, v := range x {
		acc[i&15] = f32.FMA(v, v, acc[i&15])
	}
}

func rsqrtMean(acc *Lanes, n int, eps float32) float32 {
	return RMSFactor(acc.Sum(), n, eps)
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
		dst[i] = float32(g/(1+f32.Exp(-g))) * up[i]
	}
}

func portableSigmoidMul(dst, gate, x []float32) {
	for i := range dst {
		dst[i] = x[i] / (1 + f32.Exp(-gate[i]))
	}
}

func portableAddProduct(dst, x, y []float32) {
	for i := range dst {
		dst[i] = f32.FMA(x[i], y[i], dst[i])
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
		dst[i] = float32(g/(1+f32.Exp(float32(g*clampSlope)))) * float32(u+1)
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
		dst[i] = float32(g/(1+f32.Exp(u))) * up[i]
	}
}

func portableSoftCap(x []float32, top float32) {
	for i, v := range x {
		x[i] = top * float32(1-2/(1+f32.Exp(2*float32(v/top))))
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

// indexTail returns the first index of v, or less than every index if it is not there.
func indexTail(x []float32, v float32) int {
	for i := range x {
		if x[i] == v {
			return i
		}
	}
	return math.MinInt
}

// portableMax returns the largest element that is not NaN; -Inf if there is none.
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
	var acc Lanes
	sumExpTail(&acc, x, max)
	return acc.Sum()
}

func sumExpTail(acc *Lanes, x []float32, max float32) {
	for i, v := range x {
		acc[i&15] += f32.Exp(v - max)
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

func portableLaneMax(acc *Lanes, x []float32) {
	for i, v := range x[:len(x)&^15] {
		if v > acc[i&15] {
			acc[i&15] = v
		}
	}
}

// portableTurn is the reference of the transpose kernel.
func portableTurn(dst, src *byte, ldd, lds, dstep, sstep uintptr, n int) {
	d, s := unsafe.Pointer(dst), unsafe.Pointer(src)
	for t := range uintptr(n) {
		for r := range uintptr(8) {
			for c := range uintptr(8) {
				*(*uint32)(unsafe.Add(d, t*dstep+c*ldd+r*4)) = *(*uint32)(unsafe.Add(s, t*sstep+r*lds+c*4))
			}
		}
	}
}

func portableWidenBF16(dst []float32, src []uint16) {
	for i, h := range src {
		dst[i] = f32.FromBF16(h) + 0
	}
}

func portableToBF16(dst []uint16, ldd int, x []float32, ldx, rows, n int) {
	for r := range rows {
		for i, f := range x[r*ldx:][:n] {
			dst[r*ldd+i] = f32.ToBF16(f)
		}
	}
}

// RMSFactor is 1/sqrt(mean + eps) of n numbers with the given sum of squares.
func RMSFactor(squares float32, n int, eps float32) float32 {
	mean := squares / float32(n)
	return 1 / float32(math.Sqrt(float64(mean+eps)))
}
