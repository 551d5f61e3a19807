package kernel

import (
	"math/bits"
	"unsafe"
)

// SoftmaxArgs is one step of the online softmax of some rows, (query, head), over the valid slots
// of a block:
//
//	t[j] = s[j]*keys[j]*scale;  m = max(max, t of valid slots);  correct = exp(max-m)
//	p[j] = exp(t[j]-m), 0 where not valid;  sum[i] = sum[i]*correct + p[i] + p[16+i] + ...
//	o = o*correct;  s[j] = p[j]*values[j];  max = m
type SoftmaxArgs struct {
	S      *[BlockSlots]float32 // [rows]
	Sum    *Lanes               // [rows]
	Max    *float32             // [rows]
	O      *float32             // [rows][vdim]
	VDim   uintptr              // a multiple of 8; 0: there is no o
	Rows   uintptr              // at least 1
	Keys   *[BlockSlots]float32 // nil: all 1
	Values *[BlockSlots]float32 // nil: all 1
	Valid  uint64
	Scale  float32
}

// ValuesArgs adds probabilities times values to rows of the output, in slot order: o[r][c] =
// fma(p[r][j], v[j][c], o[r][c]) for the slots j. Strides are in bytes; p has BlockSlots elements
// per row.
type ValuesArgs struct {
	V        unsafe.Pointer
	LdV      uintptr
	P        unsafe.Pointer
	O        unsafe.Pointer
	LdO      uintptr
	Slots    uintptr
	Rows     int
	Cols     int
	Prefetch unsafe.Pointer // address to prefetch meanwhile; advances by ldv with each slot
}

// valuesKernels is [log2 of columns/8][rows-1]; nil: no kernel of that shape.
type valuesKernels [5][MaxTileTokens]func(*ValuesArgs)

// AttendKernels is [log2 of columns/32][rows-1]; nil: no kernel of that shape.
type AttendKernels [3][AttendRows]func(*AttendArgs)

const AttendRows = 4

// AttendArgs is attention of g queries over whole blocks with all slots valid: the operations of
// score, soften, accumulate and fold, in their order.
type AttendArgs struct {
	Q      unsafe.Pointer // [g][kdim]
	Blocks unsafe.Pointer // [n] slices
	N      uintptr        // at least 1
	After  unsafe.Pointer // the block to prefetch during the last one
	O      unsafe.Pointer // [g][vdim]
	P      unsafe.Pointer // [g][BlockSlots], working memory
	Sum    unsafe.Pointer // [g]lanes
	Max    unsafe.Pointer // [g]
	KDim   uintptr        // a multiple of 4
	VDim   uintptr        // a multiple of the kernel's columns
	Panel  uintptr        // bytes of a panel of keys
	Scales uintptr        // Int8: bytes from a block to its scales
	Block  uintptr        // bytes of a block; kernels of F32 and BF16 for few heads do not prefetch a next block at this distance

	BeforeO, BeforeSum, BeforeMax unsafe.Pointer // of the previous runs, to which each run is folded when the next one starts

	Left    uintptr // blocks left in the current run, at least 1
	Run     uintptr // blocks of each later run
	Columns uintptr // elements of o, plus those of BeforeO, which follows it, if runs are folded
	Valid   uint64  // Set.Picked
	Scale   float32
}

// PickValues returns the widest values kernel of at most cols columns, and its width.
func (k *Set) PickValues(dt DType, cols, rows int) (int, func(*ValuesArgs)) {
	for i := min(bits.Len(uint(cols/8)), len(valuesKernels{})) - 1; i >= 0; i-- {
		if f := k.Values[dt][i][rows-1]; f != nil {
			return 8 << i, f
		}
	}
	panic("kernel: no " + k.Name + " kernel for values of " + dt.String())
}

// FoldArgs folds a run into the previous runs, row by row, and resets it:
//
//	m = max(max, runMax);  x = exp(max-m);  y = exp(runMax-m)
//	sum = sum*x + runSum*y per lane;  o = o*x + runO*y
//	runMax, runSum, runO = -Inf, 0, 0
//
// Every product is rounded. A run without a slot is skipped (runState.none), and the first run with
// a slot is copied.
type FoldArgs struct {
	O, Sum, Max          unsafe.Pointer
	RunO, RunSum, RunMax unsafe.Pointer
	Rows, VDim           uintptr // vdim: a multiple of 8
}
