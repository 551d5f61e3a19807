package tensor

import (
	"math/bits"
	"unsafe"
)

// kernels is one implementation of all operations that have assembly. All fields are set, and all
// implementations give the same bits.
type kernels struct {
	name string

	// tile[type][log2 panels][tokens-1] multiplies a tile; nil: no such shape, so the driver takes
	// fewer panels.
	tile [weightTypes][3][maxTileTokens]func(*tileArgs)
	// spread[type]: tiles of spreadTokens and more prefetch at distances of pfGap.
	spread [weightTypes]bool
	// rising[type] multiplies one token by successive groups of four panels; nil: tile does that,
	// group by group.
	rising [weightTypes]func(*tileArgs)

	softmax func(*softmaxArgs)
	fold    func(*foldArgs)
	// attend[type] is attention of one token over whole blocks, see attendArgs; nil: score, softmax
	// and values do it in turn.
	attend map[DType]attendKernels
	// picked[type] is the same for the valid slots of one block; at least one is valid.
	picked map[DType]attendKernels
	// values[type] adds probabilities times values to rows of outputs.
	values [6]valuesKernels

	rmsnorm func(dst, x, w []float32, eps float32)
	squares func(x []float32) float32
	normBy  func(dst, x, w []float32, by float32)
	add     func(dst, x []float32)
	siluMul func(dst, gate, up []float32)
	geluMul func(dst, gate, up []float32)

	clampedMul func(dst, gate, up []float32) // see ClampedMul

	sigmoidMul func(dst, gate, x []float32)
	addProduct func(dst, x, y []float32) // dst = fma(x, y, dst)
	delta      deltaKernels

	rope    func(x, cos, sin []float32)
	argMax  func(x []float32) int
	maxOf   func(x []float32) float32
	sumExp  func(x []float32, max float32) float32
	scaleBy func(x []float32, by float32)
	softCap func(x []float32, top float32)
	mul64   func(x, by *[BlockSlots]float32)
	raise   func(dst, x []float32, by float32) // dst = max(dst, x-by)
	laneMax func(acc *lanes, x []float32)      // largest numbers, of whole 16s
	quant   func(dst []byte, x []float32, start int32)
	turn    func(dst, src *byte, ldd, lds, dstep, sstep uintptr, n int) // transposes n tiles of 8 x 8 cells of 32 bits
	toBF16  func(dst []uint16, ldd int, x []float32, ldx, rows, n int)  // rounds rows of n
	widen   func(dst []float32, src []uint16)                           // bfloat16 as float32, every zero +0
	fetch   func(p *byte, n int)                                        // prefetches n bytes, a positive multiple of 64
	peak    peaks
}

const (
	weightTypes   = int(MXFP4) + 1
	maxTilePanels = 4
	tileColumns   = 4 // columns per round of a float kernel
	maxTileTokens = 6
	spreadTokens  = 3 // see kernels.spread
)

// tileArgs describes one tile of a matrix product: 1, 2 or 4 panels of 16 rows by 1 to 6 tokens,
// over the columns of one or several successive units.
//
//	for each step:
//		acc[t][row] = chain over k of W[row][k]*x[t][k], from +0
//		step.merges times: stack -= level; acc[t] += stack[t] // finish tree nodes
//		stack[t] = acc[t]; stack += level                     // not for the last step
//	out[t] = acc[t]
//
// All strides are in bytes.
type tileArgs struct {
	w       unsafe.Pointer // first panel at the first unit's first column
	panel   uintptr        // from panel to panel, within 4 columns or one quantized block
	x       unsafe.Pointer // first token's float32, or quantized block, at the same column
	ldx     uintptr        // from token to token
	steps   *step
	nsteps  uintptr
	stack   unsafe.Pointer // [token][groupRows], one level above the newest finished node
	level   uintptr        // from a node to the next newer one
	out     unsafe.Pointer
	ldout   uintptr        // from token to token
	pf      uintptr        // address to prefetch. Not a pointer: kernels advance it beyond the end, while the garbage collector may look
	pfStep  uintptr        // prefetch advance per 4 columns, or per block if quantized
	scales  unsafe.Pointer // quantized weights: the first panel's scales (and zero points) of the first block; panels are adjacent
	advance uintptr        // from 4 columns, or a quantized block and its scales, to the next
	panels  int
	tokens  int
	groups  uintptr    // kernels.rising: number of groups of four panels, adjacent in w and out
	gap     uintptr    // from the end of a group to the next one's first column
	pfGap   uintptr    // kernels.spread: from prefetch to prefetch
	table   *codeTable // of types with codes of 4 bits by table
}

// step is one unit of a tile: its columns, padded to whole blocks (a multiple of 8 in attention),
// and the number of finished tree nodes that its value completes.
type step struct{ k, merges uintptr }

// treeSteps lists the units [lo, hi), which are one node of the tree. Finished nodes are on a
// stack, as in a binary counter: unit i of the node merges with as many of them as i+1 has trailing
// zero bits, the last unit with all remaining ones.
func treeSteps(cols, lo, hi int) []step {
	steps := make([]step, 0, hi-lo)
	depth := 0
	for u := lo; u < hi; u++ {
		merges := bits.TrailingZeros(uint(u - lo + 1))
		if u == hi-1 {
			merges = depth
		}
		depth += 1 - merges
		padded := (UnitSpan(cols, u).Len() + BlockWidth - 1) / BlockWidth * BlockWidth
		steps = append(steps, step{uintptr(padded), uintptr(merges)})
	}
	return steps
}
