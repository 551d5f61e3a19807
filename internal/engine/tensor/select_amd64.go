package tensor

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

//go:generate go -C gen run . ..

var machine = detect()

var attendAVX2, pickedAVX2 map[DType]attendKernels // none: the scores of four panels do not fit in 16 registers

func implementations() []*kernels { return machine }

// detect lists the implementations of this machine, the widest first.
func detect() []*kernels {
	var all []*kernels
	for dt := range kernelsAVX512.spread {
		kernelsAVX512.spread[dt] = true
	}
	x := &cpu.X86
	if x.HasAVX2 && x.HasFMA && x.HasF16C {
		if x.HasAVX512F && x.HasAVX512BW && x.HasAVX512DQ && x.HasAVX512VL {
			if !x.HasAVX512VNNI {
				kernelsAVX512.peak.dotLanes, kernelsAVX512.peak.dot = kernelsAVX2.peak.dotLanes, kernelsAVX2.peak.dot
				for dt := range kernelsAVX2.tile {
					if Quantised(DType(dt)) {
						kernelsAVX512.tile[dt], kernelsAVX512.spread[dt] = kernelsAVX2.tile[dt], false
					}
				}
			} else if prefetchAhead == 0 {
				for dt, f := range risingAVX512 {
					kernelsAVX512.rising[dt] = f
				}
			}
			all = append(all, kernelsAVX512)
		}
		all = append(all, kernelsAVX2)
	}
	return append(all, portableKernels())
}

// addInPlace is Add for slices on the stack, which a call through active would move to the heap.
func addInPlace(dst, x []float32) {
	if active.name == portableName {
		portableAdd(dst, x)
		return
	}
	addVecAVX2(dst, x)
}

func quantiseVec(dst []byte, x []float32, start int32) {
	quantiseAVX2(unsafe.SliceData(dst), unsafe.SliceData(x), len(dst)/quantBlockBytes, start)
}

func roundBF16Vec(dst []uint16, ldd int, x []float32, ldx, rows, n int) {
	whole := n &^ 7
	if whole > 0 {
		roundBF16AVX2(unsafe.SliceData(dst), unsafe.SliceData(x), uintptr(2*ldd), uintptr(4*ldx), rows, whole)
	}
	if whole < n {
		portableToBF16(dst[whole:], ldd, x[whole:], ldx, rows, n-whole)
	}
}

// The generator uses these offsets as numbers. If a struct changes, this does not compile.
var (
	_ = [1]struct{}{}[unsafe.Offsetof(tileArgs{}.pfStep)-11*8]
	_ = [1]struct{}{}[unsafe.Offsetof(tileArgs{}.level)-7*8]
	_ = [1]struct{}{}[unsafe.Offsetof(tileArgs{}.scales)-12*8]
	_ = [1]struct{}{}[unsafe.Offsetof(tileArgs{}.advance)-13*8]
	_ = [1]struct{}{}[unsafe.Offsetof(tileArgs{}.panels)-14*8]
	_ = [1]struct{}{}[unsafe.Offsetof(tileArgs{}.gap)-17*8]
	_ = [1]struct{}{}[unsafe.Offsetof(tileArgs{}.pfGap)-18*8]
	_ = [1]struct{}{}[unsafe.Offsetof(tileArgs{}.table)-19*8]
	_ = [1]struct{}{}[groupRows*4-256]
	_ = [1]struct{}{}[quantBlockBytes-40]
	_ = [1]struct{}{}[unsafe.Sizeof(step{})-16]
	_ = [1]struct{}{}[unsafe.Offsetof(valuesArgs{}.slots)-5*8]
	_ = [1]struct{}{}[unsafe.Offsetof(valuesArgs{}.pf)-8*8]
	_ = [1]struct{}{}[unsafe.Offsetof(attendArgs{}.scale)-20*8]
	_ = [1]struct{}{}[unsafe.Offsetof(foldArgs{}.vdim)-7*8]
	_ = [1]struct{}{}[unsafe.Sizeof([]byte{})-24]
	_ = [1]struct{}{}[unsafe.Offsetof(softmaxArgs{}.scale)-9*8]
)
