package kernel

import (
	"unsafe"

	"github.com/shoal-llm/shoal/internal/engine/tensor/f32"
)

// DeltaArgs are the arguments of a pass over a state. out has cols elements.
type DeltaArgs struct {
	State  unsafe.Pointer // (rows, cols), row stride in bytes
	Key    unsafe.Pointer // (rows)
	Query  unsafe.Pointer // (rows): read and advance
	Update unsafe.Pointer // (cols): read and advance
	Decay  unsafe.Pointer // one number
	Out    unsafe.Pointer // (cols)
	Rows   uintptr
	Cols   uintptr // assembly: a multiple of 16
	Stride uintptr
}

type deltaKernels struct {
	Predict func(*DeltaArgs) // out = (decay S)ᵀ key
	Read    func(*DeltaArgs) // out = (decay S + key updateᵀ)ᵀ query
	Advance func(*DeltaArgs) // read, and S = decay S + key updateᵀ
}

func PortableDeltaPredict(a *DeltaArgs) { portableDelta(a, false, false) }

func PortableDeltaRead(a *DeltaArgs) { portableDelta(a, true, false) }

func PortableDeltaAdvance(a *DeltaArgs) { portableDelta(a, true, true) }

func portableDelta(a *DeltaArgs, updates, stores bool) {
	rows, cols, ld := int(a.Rows), int(a.Cols), int(a.Stride/4)
	s := unsafe.Slice((*float32)(a.State), (rows-1)*ld+cols)
	k, q := unsafe.Slice((*float32)(a.Key), rows), unsafe.Slice((*float32)(a.Query), rows)
	u, out, decay := unsafe.Slice((*float32)(a.Update), cols), unsafe.Slice((*float32)(a.Out), cols), *(*float32)(a.Decay)
	for j := range out {
		acc := float32(0)
		for i := range k {
			x := float32(s[i*ld+j] * decay)
			if !updates {
				acc = f32.FMA(k[i], x, acc)
				continue
			}
			x = f32.FMA(k[i], u[j], x)
			if stores {
				s[i*ld+j] = x
			}
			acc = f32.FMA(q[i], x, acc)
		}
		out[j] = acc
	}
}
