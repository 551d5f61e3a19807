package tensor

import "github.com/shoal-llm/shoal/internal/engine/tensor/kernel"

// DType is the storage type of numbers in a weight, a cache block or a checkpoint.
type DType = kernel.DType

// The types; package kernel describes them.
const (
	F32    = kernel.F32
	BF16   = kernel.BF16
	F16    = kernel.F16
	Q8_0   = kernel.Q8_0
	Q4_0   = kernel.Q4_0
	Int8   = kernel.Int8
	IQ4_NL = kernel.IQ4_NL
	Int4   = kernel.Int4
	MXFP4  = kernel.MXFP4
)

// ParseDType parses a type by its name or a usual alias, in any case ("BF16", "bfloat16").
func ParseDType(s string) (DType, error) { return kernel.ParseDType(s) }

// Block sizes of the canonical arithmetic.
const (
	BlockWidth = kernel.BlockWidth // elements of a contraction axis that are never split
	BlockSlots = kernel.BlockSlots // cache slots per attention block
)
