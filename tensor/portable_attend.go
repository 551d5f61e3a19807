package tensor

import (
	"math"
	"unsafe"
)

func portableSoftmax(a *softmaxArgs) {
	m := a.max
	for j := range a.s {
		if a.valid>>j&1 != 0 {
			a.s[j] *= a.scale
			if a.s[j] > m {
				m = a.s[j]
			}
		}
	}
	a.correct = Exp(a.max - m)
	a.max = m
	for i := range a.sum {
		a.sum[i] *= a.correct
	}
	for j := range a.s {
		p := float32(0)
		if a.valid>>j&1 != 0 {
			p = Exp(a.s[j] - m)
		}
		a.s[j] = p
		a.sum[j&15] += p
	}
}

// portableValues is the dumb twin of every values kernel; widen reads element i of
// a cache row.
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
