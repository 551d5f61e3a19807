package tensor

import (
	"unsafe"

	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
)

// The gated delta rule (Yang et al., arXiv 2412.06464) of one value head and one token. S is the
// state, (keys, values); k and q are the key and the query, v the value:
//
//	S = decay S
//	u = beta (v - Sᵀ k)
//	S = S + k uᵀ
//	o = Sᵀ q
//
// Each column of S is one chain over the keys, from +0:
//
//	predict: p = fma(k[i], decay*S[i], p)
//	advance: S[i] = fma(k[i], u, decay*S[i])
//	read:    o = fma(q[i], S[i] after advance, o)
//
// The product with decay is rounded. So is v-p, and its product with beta.

// DeltaPredict computes dst = (decay S)ᵀ k for a state S of len(k) rows and len(dst) columns.
func DeltaPredict(dst, s, k []float32, decay float32) {
	deltaPass(kernel.Active.Delta.Predict, kernel.PortableDeltaPredict, dst, s, k, k, dst, decay)
}

// DeltaRead computes dst = (decay S + k uᵀ)ᵀ q. It leaves S unchanged.
func DeltaRead(dst, s, k, q, u []float32, decay float32) {
	deltaPass(kernel.Active.Delta.Read, kernel.PortableDeltaRead, dst, s, k, q, u, decay)
}

// DeltaAdvance is DeltaRead that also updates the state: S = decay S + k uᵀ.
func DeltaAdvance(dst, s, k, q, u []float32, decay float32) {
	deltaPass(kernel.Active.Delta.Advance, kernel.PortableDeltaAdvance, dst, s, k, q, u, decay)
}

func deltaPass(f, rest func(*kernel.DeltaArgs), dst, s, k, q, u []float32, decay float32) {
	rows, cols := len(k), len(dst)
	if rows == 0 || cols == 0 {
		return
	}
	sameLength("delta rule", rows*cols, len(s))
	sameLength("delta rule", rows, len(q))
	sameLength("delta rule", cols, len(u))
	a := kernel.DeltaArgs{
		State: unsafe.Pointer(&s[0]), Key: unsafe.Pointer(&k[0]), Query: unsafe.Pointer(&q[0]), Update: unsafe.Pointer(&u[0]),
		Decay: unsafe.Pointer(&decay), Out: unsafe.Pointer(&dst[0]), Rows: uintptr(rows), Cols: uintptr(cols &^ 15), Stride: uintptr(4 * cols),
	}
	if a.Cols > 0 {
		f(&a)
	}
	if at := cols &^ 15; at < cols {
		a.State, a.Update, a.Out, a.Cols = unsafe.Pointer(&s[at]), unsafe.Pointer(&u[at]), unsafe.Pointer(&dst[at]), uintptr(cols-at)
		rest(&a)
	}
}

// DeltaUpdate computes u = beta (v - p): the correction of the state's prediction p.
func DeltaUpdate(u, v, p []float32, beta float32) {
	sameLength("DeltaUpdate", len(u), len(v), len(p))
	for i := range u {
		u[i] = float32(v[i]-p[i]) * beta
	}
}
