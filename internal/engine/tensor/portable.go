package tensor

import "unsafe"

const portableName = "portable"

// portableKernels is the implementation in portable Go, and the reference for tests of the
// assembly.
func portableKernels() *kernels {
	k := &kernels{
		name:       portableName,
		softmax:    portableSoftmax,
		fold:       portableFold,
		rmsnorm:    portableRMSNorm,
		squares:    portableSumSquares,
		normBy:     normTail,
		add:        portableAdd,
		siluMul:    portableSiLUMul,
		geluMul:    portableGELUMul,
		clampedMul: portableClampedMul,
		rope:       portableRope,
		argMax:     portableArgMax,
		maxOf:      portableMax,
		sumExp:     portableSumExp,
		scaleBy:    portableScale,
		softCap:    portableSoftCap,
		mul64:      portableMul64,
		raise:      portableRaise,
		laneMax:    portableLaneMax,
		quant:      portableQuantise,
		turn:       portableTurn,
		toBF16:     portableToBF16,
		widen:      portableWidenBF16,
		fetch:      func(*byte, int) {},
		peak:       peaks{1, portableReadPeak, portableFMAPeak, 1, portableDotPeak},
		sigmoidMul: portableSigmoidMul,
		addProduct: portableAddProduct,
		delta:      deltaKernels{portableDeltaPredict, portableDeltaRead, portableDeltaAdvance},
	}
	k.setTiles(F32, portableTile(loadF32))
	k.setTiles(BF16, portableTile(loadBF16))
	k.setTiles(F16, portableTile(loadF16))
	k.setTiles(Q8_0, portableQuantTile(dotQ8))
	k.setTiles(Q4_0, portableQuantTile(dotQ4))
	k.setTiles(IQ4_NL, portableQuantTile(dotTable(tables[IQ4_NL])))
	k.setTiles(MXFP4, portableQuantTile(dotTable(tables[MXFP4])))
	k.setTiles(Int4, portableInt4Tile)
	k.setTiles(Int8, portableTile(loadInt8))
	k.setValues(F32, portableValues(4, func(p unsafe.Pointer) float32 { return *(*float32)(p) }))
	k.setValues(BF16, portableValues(2, func(p unsafe.Pointer) float32 { return fromBF16(*(*uint16)(p)) }))
	k.setValues(Int8, portableValues(1, func(p unsafe.Pointer) float32 { return float32(*(*int8)(p)) }))
	return k
}

func (k *kernels) setTiles(dt DType, f func(*tileArgs)) {
	for i := range k.tile[dt] {
		for j := range k.tile[dt][i] {
			k.tile[dt][i][j] = f
		}
	}
}

func (k *kernels) setValues(dt DType, f func(*valuesArgs)) {
	for i := range k.values[dt] {
		for j := range k.values[dt][i] {
			k.values[dt][i][j] = f
		}
	}
}
