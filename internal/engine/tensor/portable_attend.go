package tensor

import (
	"math"
	"unsafe"
)

func portableSoftmax(a *softmaxArgs) {
	tops, sums := unsafe.Slice(a.max, a.rows), unsafe.Slice(a.sum, a.rows)
	for r, s := range unsafe.Slice(a.s, a.rows) {
		var o []float32
		if a.vdim > 0 {
			o = unsafe.Slice(a.o, a.rows*a.vdim)[r*int(a.vdim):][:a.vdim]
		}
		unsafe.Slice(a.s, a.rows)[r] = portableSoften(a, s, &sums[r], &tops[r], o)
	}
}

func portableSoften(a *softmaxArgs, s [BlockSlots]float32, sum *lanes, top *float32, o []float32) [BlockSlots]float32 {
	m := *top
	if a.keys != nil {
		portableMul64(&s, a.keys)
	}
	for j := range s {
		if a.valid>>j&1 != 0 {
			s[j] *= a.scale
			if s[j] > m {
				m = s[j]
			}
		}
	}
	correct := Exp(*top - m)
	*top = m
	portableScale(sum[:], correct)
	if correct != 1 {
		portableScale(o, correct)
	}
	for j := range s {
		p := float32(0)
		if a.valid>>j&1 != 0 {
			p = Exp(s[j] - m)
		}
		s[j] = p
		sum[j&15] += p
	}
	if a.values != nil {
		portableMul64(&s, a.values)
	}
	return s
}

func portableFold(a *foldArgs) {
	rows, n := int(a.rows), int(a.vdim)
	floats := func(p unsafe.Pointer, n int) []float32 { return unsafe.Slice((*float32)(p), n) }
	state := func(o, sum, top unsafe.Pointer) *runState {
		return &runState{o: floats(o, rows*n), max: floats(top, rows), sum: unsafe.Slice((*lanes)(sum), rows)}
	}
	to, run := state(a.o, a.sum, a.max), state(a.runO, a.runSum, a.runMax)
	add := func(dst, x []float32, by, xby float32) {
		for i := range dst {
			dst[i] = float32(dst[i]*by) + float32(x[i]*xby)
		}
	}
	for r := range rows {
		o, ro := to.o[r*n:][:n], run.o[r*n:][:n]
		switch {
		case run.none(r):
			continue
		case to.none(r):
			copy(o, ro)
			to.max[r], to.sum[r] = run.max[r], run.sum[r]
		default:
			m := max(to.max[r], run.max[r])
			x, y := Exp(to.max[r]-m), Exp(run.max[r]-m)
			add(o, ro, x, y)
			add(to.sum[r][:], run.sum[r][:], x, y)
			to.max[r] = m
		}
	}
	run.reset()
}

// portableValues is the reference of every values kernel. widen reads element i of a cache row.
func portableValues(size uintptr, widen func(row unsafe.Pointer) float32) func(*valuesArgs) {
	return func(a *valuesArgs) {
		for r := range a.rows {
			o := unsafe.Slice((*float32)(unsafe.Add(a.o, uintptr(r)*a.ldo)), a.cols)
			p := unsafe.Slice((*float32)(unsafe.Add(a.p, uintptr(r)*BlockSlots*4)), a.slots)
			for j, pj := range p {
				v := unsafe.Add(a.v, uintptr(j)*a.ldv)
				for i := range o {
					o[i] = fma32(pj, widen(unsafe.Add(v, uintptr(i)*size)), o[i])
				}
			}
		}
	}
}

func portableMul64(x, by *[BlockSlots]float32) {
	for i := range x {
		x[i] *= by[i]
	}
}

var negInf = float32(math.Inf(-1))

var negInfLanes = func() (l lanes) {
	for i := range l {
		l[i] = negInf
	}
	return l
}()
