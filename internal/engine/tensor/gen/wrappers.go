package main

// wrappers is the Go side of the operations of one instruction set: the assembly
// does whole 16s, the shared tails of portable_ops.go the rest. They are written
// out per set because a call through a variable would move the lanes to the heap.
const wrappers = `
func rmsnormISA(dst, x, w []float32, eps float32) {
	var acc Lanes
	n := len(x) &^ 15
	sumSquaresISA(&acc, unsafe.SliceData(x), n)
	sumSquaresTail(&acc, x[n:])
	r := rsqrtMean(&acc, len(x), eps)
	normISA(unsafe.SliceData(dst), unsafe.SliceData(x), unsafe.SliceData(w), r, n)
	normTail(dst[n:], x[n:], w[n:], r)
}

func sumSquaresVecISA(x []float32) float32 {
	var acc Lanes
	n := len(x) &^ 15
	sumSquaresISA(&acc, unsafe.SliceData(x), n)
	sumSquaresTail(&acc, x[n:])
	return acc.Sum()
}

func normByISA(dst, x, w []float32, by float32) {
	n := len(x) &^ 15
	normISA(unsafe.SliceData(dst), unsafe.SliceData(x), unsafe.SliceData(w), by, n)
	normTail(dst[n:], x[n:], w[n:], by)
}

func addVecISA(dst, x []float32) {
	n := len(dst) &^ 15
	addISA(unsafe.SliceData(dst), unsafe.SliceData(x), n)
	portableAdd(dst[n:], x[n:])
}

func widenBF16VecISA(dst []float32, src []uint16) {
	n := len(src) &^ 15
	_ = dst[:n]
	widenBF16ISA(unsafe.SliceData(dst), unsafe.SliceData(src), n)
	portableWidenBF16(dst[n:], src[n:])
}

func siluMulVecISA(dst, gate, up []float32) {
	n := len(dst) &^ 15
	siluMulISA(unsafe.SliceData(dst), unsafe.SliceData(gate), unsafe.SliceData(up), n)
	portableSiLUMul(dst[n:], gate[n:], up[n:])
}

func geluMulVecISA(dst, gate, up []float32) {
	n := len(dst) &^ 15
	geluMulISA(unsafe.SliceData(dst), unsafe.SliceData(gate), unsafe.SliceData(up), n)
	portableGELUMul(dst[n:], gate[n:], up[n:])
}

func clampedMulVecISA(dst, gate, up []float32) {
	n := len(dst) &^ 15
	clampedMulISA(unsafe.SliceData(dst), unsafe.SliceData(gate), unsafe.SliceData(up), n)
	portableClampedMul(dst[n:], gate[n:], up[n:])
}

func sigmoidMulVecISA(dst, gate, x []float32) {
	n := len(dst) &^ 15
	sigmoidMulISA(unsafe.SliceData(dst), unsafe.SliceData(gate), unsafe.SliceData(x), n)
	portableSigmoidMul(dst[n:], gate[n:], x[n:])
}

func addProductVecISA(dst, x, y []float32) {
	n := len(dst) &^ 15
	addProductISA(unsafe.SliceData(dst), unsafe.SliceData(x), unsafe.SliceData(y), n)
	portableAddProduct(dst[n:], x[n:], y[n:])
}

func ropeVecISA(x, cos, sin []float32) {
	half := len(x) / 2
	n := half &^ 15
	lo, hi := x[:half], x[half:]
	ropeISA(unsafe.SliceData(lo), unsafe.SliceData(hi), unsafe.SliceData(cos), unsafe.SliceData(sin), n)
	ropeTail(lo[n:], hi[n:], cos[n:], sin[n:])
}

func argMaxISA(x []float32) int {
	top := maxOfISA(x)
	n := len(x) &^ 15
	if at := indexOfISA(unsafe.SliceData(x), n, top); at < n {
		return at
	}
	return max(0, n+indexTail(x[n:], top))
}

func maxOfISA(x []float32) float32 {
	acc := NegInfLanes
	n := len(x) &^ 15
	maximumISA(&acc, unsafe.SliceData(x), n)
	return max(portableMax(acc[:]), portableMax(x[n:]))
}

func sumExpVecISA(x []float32, top float32) float32 {
	var acc Lanes
	n := len(x) &^ 15
	sumExpISA(&acc, unsafe.SliceData(x), n, top)
	if n < len(x) { // the exponential of -Inf is 0
		tail := NegInfLanes
		copy(tail[:], x[n:])
		sumExpISA(&acc, &tail[0], len(tail), top)
	}
	return acc.Sum()
}

func scaleVecISA(x []float32, by float32) {
	n := len(x) &^ 15
	scaleISA(unsafe.SliceData(x), by, n)
	portableScale(x[n:], by)
}

func softCapVecISA(x []float32, top float32) {
	n := len(x) &^ 15
	softCapISA(unsafe.SliceData(x), top, n)
	portableSoftCap(x[n:], top)
}

func raiseVecISA(dst, x []float32, by float32) {
	n := len(dst) &^ 15
	raiseISA(unsafe.SliceData(dst), unsafe.SliceData(x), by, n)
	portableRaise(dst[n:], x[n:], by)
}

func laneMaxISA(acc *Lanes, x []float32) { maximumISA(acc, unsafe.SliceData(x), len(x)&^15) }

func mul64ISA(x, by *[BlockSlots]float32) { mulISA(&x[0], &by[0], BlockSlots) }

var kernelsISA = &Set{
	Name:    "NAME",
	Tile:    tilesISA,
	Values:  valuesISA,
	Softmax: softmaxISA,
	Attend:  attendISA,
	Picked:  pickedISA,
	Fold:    foldAVX2,
	RMSNorm: rmsnormISA,
	Squares: sumSquaresVecISA,
	NormBy:  normByISA,
	Add:     addVecISA,
	SiLUMul: siluMulVecISA,
	GELUMul: geluMulVecISA,
	ClampedMul: clampedMulVecISA,
	SigmoidMul: sigmoidMulVecISA,
	AddProduct: addProductVecISA,
	Delta: deltaKernels{deltaPredictISA, deltaReadISA, deltaAdvanceISA},
	Rope:    ropeVecISA,
	ArgMax:  argMaxISA,
	MaxOf:   maxOfISA,
	SumExp:  sumExpVecISA,
	ScaleBy: scaleVecISA,
	SoftCap: softCapVecISA,
	Mul64:   mul64ISA,
	Raise:   raiseVecISA,
	LaneMax: laneMaxISA,
	Quantize:   quantizeVec,
	Turn:    transpose8AVX2,
	ToBF16:  roundBF16Vec,
	Widen:   widenBF16VecISA,
	Fetch:   fetchAVX2,
	Peak:    peaks{LANES, readPeakISA, fmaPeakISA, LANES, dotPeakISA},
}
`
