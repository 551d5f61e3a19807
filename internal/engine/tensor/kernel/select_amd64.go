package kernel

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

//go:generate go -C ../gen run . ../kernel

var machine = detect()

var attendAVX2, pickedAVX2 map[DType]AttendKernels // none: the scores of four panels do not fit in 16 registers

func All() []*Set { return machine }

// detect lists the implementations of this machine, the widest first.
func detect() []*Set {
	var all []*Set
	for dt := range kernelsAVX512.Spread {
		kernelsAVX512.Spread[dt] = true
	}
	x := &cpu.X86
	if x.HasAVX2 && x.HasFMA && x.HasF16C {
		if x.HasAVX512F && x.HasAVX512BW && x.HasAVX512DQ && x.HasAVX512VL {
			if !x.HasAVX512VNNI {
				kernelsAVX512.Peak.DotLanes, kernelsAVX512.Peak.Dot = kernelsAVX2.Peak.DotLanes, kernelsAVX2.Peak.Dot
				for dt := range kernelsAVX2.Tile {
					if Quantized(DType(dt)) {
						kernelsAVX512.Tile[dt], kernelsAVX512.Spread[dt] = kernelsAVX2.Tile[dt], false
					}
				}
			} else if PrefetchAhead == 0 {
				for dt, f := range RisingAVX512 {
					kernelsAVX512.Rising[dt] = f
				}
			}
			all = append(all, kernelsAVX512)
		}
		all = append(all, kernelsAVX2)
	}
	return append(all, portableKernels())
}

// AddInPlace is Add for slices on the stack, which a call through active would move to the heap.
func AddInPlace(dst, x []float32) {
	if Active.Name == portableName {
		portableAdd(dst, x)
		return
	}
	addVecAVX2(dst, x)
}

func quantizeVec(dst []byte, x []float32, start int32) {
	quantizeAVX2(unsafe.SliceData(dst), unsafe.SliceData(x), len(dst)/QuantBlockBytes, start)
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
	_ = [1]struct{}{}[unsafe.Offsetof(TileArgs{}.PrefetchStep)-11*8]
	_ = [1]struct{}{}[unsafe.Offsetof(TileArgs{}.Level)-7*8]
	_ = [1]struct{}{}[unsafe.Offsetof(TileArgs{}.Scales)-12*8]
	_ = [1]struct{}{}[unsafe.Offsetof(TileArgs{}.Advance)-13*8]
	_ = [1]struct{}{}[unsafe.Offsetof(TileArgs{}.Panels)-14*8]
	_ = [1]struct{}{}[unsafe.Offsetof(TileArgs{}.Gap)-17*8]
	_ = [1]struct{}{}[unsafe.Offsetof(TileArgs{}.PrefetchGap)-18*8]
	_ = [1]struct{}{}[unsafe.Offsetof(TileArgs{}.Table)-19*8]
	_ = [1]struct{}{}[GroupRows*4-256]
	_ = [1]struct{}{}[QuantBlockBytes-40]
	_ = [1]struct{}{}[unsafe.Sizeof(Step{})-16]
	_ = [1]struct{}{}[unsafe.Offsetof(ValuesArgs{}.Slots)-5*8]
	_ = [1]struct{}{}[unsafe.Offsetof(ValuesArgs{}.Prefetch)-8*8]
	_ = [1]struct{}{}[unsafe.Offsetof(AttendArgs{}.Scale)-20*8]
	_ = [1]struct{}{}[unsafe.Offsetof(FoldArgs{}.VDim)-7*8]
	_ = [1]struct{}{}[unsafe.Sizeof([]byte{})-24]
	_ = [1]struct{}{}[unsafe.Offsetof(SoftmaxArgs{}.Scale)-9*8]
)
