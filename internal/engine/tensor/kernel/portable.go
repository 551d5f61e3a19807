package kernel

import (
	"unsafe"

	"github.com/shoal-llm/shoal/internal/engine/tensor/f32"
)

const portableName = "portable"

// portableKernels returns the implementation in portable Go, and the reference for tests of the
// assembly.
func portableKernels() *Set {
	k := &Set{
		Name:       portableName,
		Softmax:    portableSoftmax,
		Fold:       portableFold,
		RMSNorm:    portableRMSNorm,
		Squares:    portableSumSquares,
		NormBy:     normTail,
		Add:        portableAdd,
		SiLUMul:    portableSiLUMul,
		GELUMul:    portableGELUMul,
		ClampedMul: portableClampedMul,
		Rope:       portableRope,
		ArgMax:     portableArgMax,
		MaxOf:      portableMax,
		SumExp:     portableSumExp,
		ScaleBy:    portableScale,
		SoftCap:    portableSoftCap,
		Mul64:      portableMul64,
		Raise:      portableRaise,
		LaneMax:    portableLaneMax,
		Quantize:   portableQuantize,
		Turn:       portableTurn,
		ToBF16:     portableToBF16,
		Widen:      portableWidenBF16,
		Fetch:      func(*byte, int) {},
		Peak:       peaks{1, portableReadPeak, portableFMAPeak, 1, portableDotPeak},
		SigmoidMul: portableSigmoidMul,
		AddProduct: portableAddProduct,
		Delta:      deltaKernels{PortableDeltaPredict, PortableDeltaRead, PortableDeltaAdvance},
	}
	k.setTiles(F32, portableTile(loadF32))
	k.setTiles(BF16, portableTile(loadBF16))
	k.setTiles(F16, portableTile(loadF16))
	k.setTiles(Q8_0, portableQuantTile(dotQ8))
	k.setTiles(Q4_0, portableQuantTile(dotQ4))
	k.setTiles(IQ4_NL, portableQuantTile(dotTable(Tables[IQ4_NL])))
	k.setTiles(MXFP4, portableQuantTile(dotTable(Tables[MXFP4])))
	k.setTiles(Int4, portableInt4Tile)
	k.setTiles(Int8, portableTile(loadInt8))
	k.setValues(F32, portableValues(4, func(p unsafe.Pointer) float32 { return *(*float32)(p) }))
	k.setValues(BF16, portableValues(2, func(p unsafe.Pointer) float32 { return f32.FromBF16(*(*uint16)(p)) }))
	k.setValues(Int8, portableValues(1, func(p unsafe.Pointer) float32 { return float32(*(*int8)(p)) }))
	return k
}

func (k *Set) setTiles(dt DType, f func(*TileArgs)) {
	for i := range k.Tile[dt] {
		for j := range k.Tile[dt][i] {
			k.Tile[dt][i][j] = f
		}
	}
}

func (k *Set) setValues(dt DType, f func(*ValuesArgs)) {
	for i := range k.Values[dt] {
		for j := range k.Values[dt][i] {
			k.Values[dt][i][j] = f
		}
	}
}
