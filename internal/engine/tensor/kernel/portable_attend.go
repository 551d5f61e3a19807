package kernel

import (
	"math"
	"unsafe"

	"github.com/shoal-llm/shoal/internal/engine/tensor/f32"
)

func portableSoftmax(a *SoftmaxArgs) {
	tops, sums := unsafe.Slice(a.Max, a.Rows), unsafe.Slice(a.Sum, a.Rows)
	for r, s := range unsafe.Slice(a.S, a.Rows) {
		var o []float32
		if a.VDim > 0 {
			o = unsafe.Slice(a.O, a.Rows*a.VDim)[r*int(a.VDim):][:a.VDim]
		}
		unsafe.Slice(a.S, a.Rows)[r] = portableSoften(a, s, &sums[r], &tops[r], o)
	}
}

func portableSoften(a *SoftmaxArgs, s [BlockSlots]float32, sum *Lanes, top *float32, o []float32) [BlockSlots]float32 {
	m := *top
	if a.Keys != nil {
		portableMul64(&s, a.Keys)
	}
	for j := range s {
		if a.Valid>>j&1 != 0 {
			s[j] *= a.Scale
			if s[j] > m {
				m = s[j]
			}
		}
	}
	correct := f32.Exp(*top - m)
	*top = m
	portableScale(sum[:], correct)
	if correct != 1 {
		portableScale(o, correct)
	}
	for j := range s {
		p := float32(0)
		if a.Valid>>j&1 != 0 {
			p = f32.Exp(s[j] - m)
		}
		s[j] = p
		sum[j&15] += p
	}
	if a.Values != nil {
		portableMul64(&s, a.Values)
	}
	return s
}

func portableFold(a *FoldArgs) {
	rows, n := int(a.Rows), int(a.VDim)
	floats := func(p unsafe.Pointer, n int) []float32 { return unsafe.Slice((*float32)(p), n) }
	type state struct {
		o, max []float32
		sum    []Lanes
	}
	of := func(o, sum, top unsafe.Pointer) state {
		return state{o: floats(o, rows*n), max: floats(top, rows), sum: unsafe.Slice((*Lanes)(sum), rows)}
	}
	none := func(s state, r int) bool { return s.max[r] == NegInf && s.sum[r] == (Lanes{}) }
	to, run := of(a.O, a.Sum, a.Max), of(a.RunO, a.RunSum, a.RunMax)
	add := func(dst, x []float32, by, xby float32) {
		for i := range dst {
			dst[i] = float32(dst[i]*by) + float32(x[i]*xby)
		}
	}
	for r := range rows {
		o, ro := to.o[r*n:][:n], run.o[r*n:][:n]
		switch {
		case none(run, r):
			continue
		case none(to, r):
			copy(o, ro)
			to.max[r], to.sum[r] = run.max[r], run.sum[r]
		default:
			m := max(to.max[r], run.max[r])
			x, y := f32.Exp(to.max[r]-m), f32.Exp(run.max[r]-m)
			add(o, ro, x, y)
			add(to.sum[r][:], run.sum[r][:], x, y)
			to.max[r] = m
		}
	}
	clear(run.o)
	clear(run.sum)
	for r := range rows {
		run.max[r] = NegInf
	}
}

// portableValues returns the reference for every values kernel. widen reads element i of a cache row.
func portableValues(size uintptr, widen func(row unsafe.Pointer) float32) func(*ValuesArgs) {
	return func(a *ValuesArgs) {
		for r := range a.Rows {
			o := unsafe.Slice((*float32)(unsafe.Add(a.O, uintptr(r)*a.LdO)), a.Cols)
			p := unsafe.Slice((*float32)(unsafe.Add(a.P, uintptr(r)*BlockSlots*4)), a.Slots)
			for j, pj := range p {
				v := unsafe.Add(a.V, uintptr(j)*a.LdV)
				for i := range o {
					o[i] = f32.FMA(pj, widen(unsafe.Add(v, uintptr(i)*size)), o[i])
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

var NegInf = float32(math.Inf(-1))

var NegInfLanes = func() (l Lanes) {
	for i := range l {
		l[i] = NegInf
	}
	return l
}()
