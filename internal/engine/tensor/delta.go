package tensor

import "unsafe"

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

// deltaArgs are the arguments of a pass over a state. out has cols elements.
type deltaArgs struct {
	state  unsafe.Pointer // (rows, cols), row stride in bytes
	key    unsafe.Pointer // (rows)
	query  unsafe.Pointer // (rows): read and advance
	update unsafe.Pointer // (cols): read and advance
	decay  unsafe.Pointer // one number
	out    unsafe.Pointer // (cols)
	rows   uintptr
	cols   uintptr // assembly: a multiple of 16
	stride uintptr
}

type deltaKernels struct {
	predict func(*deltaArgs) // out = (decay S)ᵀ key
	read    func(*deltaArgs) // out = (decay S + key updateᵀ)ᵀ query
	advance func(*deltaArgs) // read, and S = decay S + key updateᵀ
}

// DeltaPredict computes dst = (decay S)ᵀ k for a state S of len(k) rows and len(dst) columns.
func DeltaPredict(dst, s, k []float32, decay float32) {
	deltaPass(active.delta.predict, portableDeltaPredict, dst, s, k, k, dst, decay)
}

// DeltaRead computes dst = (decay S + k uᵀ)ᵀ q. It leaves S unchanged.
func DeltaRead(dst, s, k, q, u []float32, decay float32) {
	deltaPass(active.delta.read, portableDeltaRead, dst, s, k, q, u, decay)
}

// DeltaAdvance is DeltaRead that also updates the state: S = decay S + k uᵀ.
func DeltaAdvance(dst, s, k, q, u []float32, decay float32) {
	deltaPass(active.delta.advance, portableDeltaAdvance, dst, s, k, q, u, decay)
}

func deltaPass(f, rest func(*deltaArgs), dst, s, k, q, u []float32, decay float32) {
	rows, cols := len(k), len(dst)
	if rows == 0 || cols == 0 {
		return
	}
	sameLength("delta rule", rows*cols, len(s))
	sameLength("delta rule", rows, len(q))
	sameLength("delta rule", cols, len(u))
	a := deltaArgs{
		state: unsafe.Pointer(&s[0]), key: unsafe.Pointer(&k[0]), query: unsafe.Pointer(&q[0]), update: unsafe.Pointer(&u[0]),
		decay: unsafe.Pointer(&decay), out: unsafe.Pointer(&dst[0]), rows: uintptr(rows), cols: uintptr(cols &^ 15), stride: uintptr(4 * cols),
	}
	if a.cols > 0 {
		f(&a)
	}
	if at := cols &^ 15; at < cols {
		a.state, a.update, a.out, a.cols = unsafe.Pointer(&s[at]), unsafe.Pointer(&u[at]), unsafe.Pointer(&dst[at]), uintptr(cols-at)
		rest(&a)
	}
}

func portableDeltaPredict(a *deltaArgs) { portableDelta(a, false, false) }

func portableDeltaRead(a *deltaArgs) { portableDelta(a, true, false) }

func portableDeltaAdvance(a *deltaArgs) { portableDelta(a, true, true) }

func portableDelta(a *deltaArgs, updates, stores bool) {
	rows, cols, ld := int(a.rows), int(a.cols), int(a.stride/4)
	s := unsafe.Slice((*float32)(a.state), (rows-1)*ld+cols)
	k, q := unsafe.Slice((*float32)(a.key), rows), unsafe.Slice((*float32)(a.query), rows)
	u, out, decay := unsafe.Slice((*float32)(a.update), cols), unsafe.Slice((*float32)(a.out), cols), *(*float32)(a.decay)
	for j := range out {
		acc := float32(0)
		for i := range k {
			x := float32(s[i*ld+j] * decay)
			if !updates {
				acc = fma32(k[i], x, acc)
				continue
			}
			x = fma32(k[i], u[j], x)
			if stores {
				s[i*ld+j] = x
			}
			acc = fma32(q[i], x, acc)
		}
		out[j] = acc
	}
}

// DeltaUpdate computes u = beta (v - p): the correction of the state's prediction p.
func DeltaUpdate(u, v, p []float32, beta float32) {
	sameLength("DeltaUpdate", len(u), len(v), len(p))
	for i := range u {
		u[i] = float32(v[i]-p[i]) * beta
	}
}
