package kernel

import "unsafe"

// Set is one implementation of all operations that have assembly. All fields are set, and all
// implementations give the same bits.
type Set struct {
	Name string

	// Tile[type][log2 panels][tokens-1] multiplies a tile; nil: no such shape, so the driver takes
	// fewer panels.
	Tile [WeightTypes][3][MaxTileTokens]func(*TileArgs)
	// Spread[type]: tiles of SpreadTokens and more prefetch at distances of PrefetchGap.
	Spread [WeightTypes]bool
	// Rising[type] multiplies one token by successive groups of four panels; nil: Tile does that,
	// group by group.
	Rising [WeightTypes]func(*TileArgs)

	Softmax func(*SoftmaxArgs)
	Fold    func(*FoldArgs)
	// Attend[type] is attention of one token over whole blocks, see AttendArgs; nil: score, softmax
	// and values do it in turn.
	Attend map[DType]AttendKernels
	// Picked[type] is the same for the valid slots of one block; at least one is valid.
	Picked map[DType]AttendKernels
	// Values[type] adds probabilities times values to rows of outputs.
	Values [6]valuesKernels

	RMSNorm func(dst, x, w []float32, eps float32)
	Squares func(x []float32) float32
	NormBy  func(dst, x, w []float32, by float32)
	Add     func(dst, x []float32)
	SiLUMul func(dst, gate, up []float32)
	GELUMul func(dst, gate, up []float32)

	ClampedMul func(dst, gate, up []float32) // see ClampedMul

	SigmoidMul func(dst, gate, x []float32)
	AddProduct func(dst, x, y []float32) // dst = fma(x, y, dst)
	Delta      deltaKernels

	Rope     func(x, cos, sin []float32)
	ArgMax   func(x []float32) int
	MaxOf    func(x []float32) float32
	SumExp   func(x []float32, max float32) float32
	ScaleBy  func(x []float32, by float32)
	SoftCap  func(x []float32, top float32)
	Mul64    func(x, by *[BlockSlots]float32)
	Raise    func(dst, x []float32, by float32) // dst = max(dst, x-by)
	LaneMax  func(acc *Lanes, x []float32)      // largest numbers, of whole 16s
	Quantize func(dst []byte, x []float32, start int32)
	Turn     func(dst, src *byte, ldd, lds, dstep, sstep uintptr, n int) // transposes n tiles of 8 x 8 cells of 32 bits
	ToBF16   func(dst []uint16, ldd int, x []float32, ldx, rows, n int)  // rounds rows of n
	Widen    func(dst []float32, src []uint16)                           // bfloat16 as float32, every zero +0
	Fetch    func(p *byte, n int)                                        // prefetches n bytes, a positive multiple of 64
	Peak     peaks
}

const (
	WeightTypes   = int(MXFP4) + 1
	MaxTilePanels = 4
	TileColumns   = 4 // columns per round of a float kernel
	MaxTileTokens = 6
	SpreadTokens  = 3 // see Set.Spread
)

// TileArgs describes one tile of a matrix product: 1, 2 or 4 panels of 16 rows by 1 to 6 tokens,
// over the columns of one or several successive units.
//
//	for each step:
//		acc[t][row] = chain over k of W[row][k]*x[t][k], from +0
//		step.merges times: stack -= level; acc[t] += stack[t] // finish tree nodes
//		stack[t] = acc[t]; stack += level                     // not for the last step
//	out[t] = acc[t]
//
// All strides are in bytes.
type TileArgs struct {
	W            unsafe.Pointer // first panel at the first unit's first column
	Panel        uintptr        // from panel to panel, within 4 columns or one quantized block
	X            unsafe.Pointer // first token's float32, or quantized block, at the same column
	LdX          uintptr        // from token to token
	Steps        *Step
	NSteps       uintptr
	Stack        unsafe.Pointer // [token][GroupRows], one level above the newest finished node
	Level        uintptr        // from a node to the next newer one
	Out          unsafe.Pointer
	LdOut        uintptr        // from token to token
	Prefetch     uintptr        // address to prefetch. Not a pointer: kernels advance it beyond the end, while the garbage collector may look
	PrefetchStep uintptr        // prefetch advance per 4 columns, or per block if quantized
	Scales       unsafe.Pointer // quantized weights: the first panel's scales (and zero points) of the first block; panels are adjacent
	Advance      uintptr        // from 4 columns, or a quantized block and its scales, to the next
	Panels       int
	Tokens       int
	Groups       uintptr    // Set.Rising: number of groups of four panels, adjacent in w and out
	Gap          uintptr    // from the end of a group to the next one's first column
	PrefetchGap  uintptr    // Set.Spread: from prefetch to prefetch
	Table        *codeTable // of types with codes of 4 bits by table
}

// Step is one unit of a tile: its columns, padded to whole blocks (a multiple of 8 in attention),
// and the number of finished tree nodes that its value completes.
type Step struct{ K, Merges uintptr }
