package launch

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/cuda"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Embed looks up the embeddings of tokens: Out (Rows, Cols) = Table[token] * Scale. Table has the
// rows of a checkpoint file: F32, BF16, F16, or GGUF's blocks of Q8_0 (34 bytes) or Q4_0 (18).
type Embed struct {
	Type       tensor.DType
	Table      cuda.Pointer
	Tokens     cuda.Pointer // (Rows) uint32
	Out        cuda.Pointer
	Rows, Cols int
	Scale      float32 // 1: none
}

func (o Embed) Calls() ([]Call, error) {
	switch o.Type {
	case tensor.F32, tensor.BF16, tensor.F16:
	case tensor.Q8_0, tensor.Q4_0:
		if err := wholeBlocks("an embedding", o.Cols); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("launch: an embedding of %v", o.Type)
	}
	if o.Rows == 0 {
		return nil, nil
	}
	return []Call{{"embed", cuda.Grid{X: ceil(o.Cols, 256), Y: o.Rows, Threads: 256},
		[]any{o.Table, o.Tokens, o.Out, uint32(o.Cols), uint32(o.Type), o.Scale}}}, nil
}

// Norm is tensor.RMSNorm of the rows of X (Rows, Cols) by Weight (Cols). The result goes to Out
// (Rows, Cols), to To, or to both. With Residual (Rows, Cols), Out is Residual + norm, which may
// replace Residual in place. Out may be X.
type Norm struct {
	X, Weight  cuda.Pointer
	Residual   cuda.Pointer // or 0
	Eps        float32
	Out        cuda.Pointer // or 0
	To         Rounded      // or zero
	Whole      bool         // one thread block for a row, also where several are faster
	Rows, Cols int
}

// MaxNorm is the maximum number of columns of Norm.
const MaxNorm = 8192

// A thread block of rms_norm_split writes splitColumns columns of a row. It is used while its thread blocks are at
// most splitNorms, about the number of a large card's multiprocessors.
const splitColumns, splitNorms = 512, 128

func (o Norm) Calls() ([]Call, error) {
	if err := wholeBlocks("a norm", o.Cols); err != nil {
		return nil, err
	}
	if o.Cols > MaxNorm {
		return nil, fmt.Errorf("launch: a norm of %d columns, at most %d", o.Cols, MaxNorm)
	}
	if o.Rows == 0 {
		return nil, nil
	}
	args := []any{o.X, o.Weight, o.Residual, o.Eps, o.Out, o.To.Bytes, o.To.Scales, uint32(o.Cols)}
	if blocks := ceil(o.Cols, splitColumns); !o.Whole && o.Out != o.X && o.Rows*blocks <= splitNorms {
		return []Call{{"rms_norm_split", cuda.Grid{X: blocks, Y: o.Rows, Threads: splitColumns}, args}}, nil
	}
	return []Call{{"rms_norm", cuda.Grid{X: 1, Y: o.Rows, Threads: 512}, args}}, nil
}

// Quantize is tensor.Quantize of rows X[i*LdX:] of Cols columns.
type Quantize struct {
	X          cuda.Pointer
	LdX        int
	To         Rounded
	Rows, Cols int
}

func (o Quantize) Calls() ([]Call, error) {
	if err := wholeBlocks("rounding", o.Cols); err != nil {
		return nil, err
	}
	if o.Rows == 0 {
		return nil, nil
	}
	return []Call{{"quantize_rows", cuda.Grid{X: ceil(o.Cols, 4*256), Y: o.Rows, Threads: 256},
		[]any{o.X, uint32(o.LdX), o.To.Bytes, o.To.Scales, uint32(o.Cols)}}}, nil
}

// Gate is a(Gate + GateBias) * (Up + UpBias) with a tensor.Activation, for rows Gate[i*Ld:] and
// Up[i*Ld:] of Cols columns. The result goes to Out (Rows, Cols), to To, or to both. Out may be
// Gate or Up if Ld is Cols.
type Gate struct {
	Activation       tensor.Activation
	Gate, Up         cuda.Pointer
	Ld               int
	GateBias, UpBias cuda.Pointer // (Cols), or 0
	Out              cuda.Pointer // or 0
	To               Rounded      // or zero
	Rows, Cols       int
}

func (o Gate) Calls() ([]Call, error) {
	if o.To != (Rounded{}) {
		if err := wholeBlocks("a rounded gate", o.Cols); err != nil {
			return nil, err
		}
	}
	if o.Rows == 0 {
		return nil, nil
	}
	return []Call{{"gate_rows", cuda.Grid{X: ceil(o.Cols, 4*256), Y: o.Rows, Threads: 256},
		[]any{uint32(o.Activation), o.Gate, o.Up, uint32(o.Ld), o.GateBias, o.UpBias, o.Out, o.To.Bytes, o.To.Scales, uint32(o.Cols)}}}, nil
}

// Add is X += Y, then X += Bias where there is one, of (Rows, Cols).
type Add struct {
	X, Y       cuda.Pointer
	Bias       cuda.Pointer // (Cols), or 0
	Rows, Cols int
}

func (o Add) Calls() ([]Call, error) {
	if o.Rows*o.Cols == 0 {
		return nil, nil
	}
	return []Call{{"add_rows", cuda.Grid{X: ceil(o.Cols, 256), Y: o.Rows, Threads: 256},
		[]any{o.X, o.Y, o.Bias, uint32(o.Cols)}}}, nil
}

// AddBias adds Bias to every row of X.
type AddBias struct {
	X, Bias    cuda.Pointer // (Rows, Cols), (Cols)
	Rows, Cols int
}

func (o AddBias) Calls() ([]Call, error) {
	if o.Rows*o.Cols == 0 {
		return nil, nil
	}
	return []Call{{"add_bias", cuda.Grid{X: ceil(o.Cols, 256), Y: o.Rows, Threads: 256}, []any{o.X, o.Bias, uint32(o.Cols)}}}, nil
}

// Logits multiplies rows X[i*Ld:] of Cols columns by Scale and bounds them as tensor.SoftCap by
// Cap, in place.
type Logits struct {
	X          cuda.Pointer
	Ld         int
	Scale      float32 // 1: none
	Cap        float32 // 0: none
	Rows, Cols int
}

func (o Logits) Calls() ([]Call, error) {
	if o.Rows*o.Cols == 0 || o.Scale == 1 && o.Cap == 0 {
		return nil, nil
	}
	return []Call{{"scale_rows", cuda.Grid{X: ceil(o.Cols, 256), Y: o.Rows, Threads: 256},
		[]any{o.X, uint32(o.Ld), o.Scale, o.Cap, uint32(o.Cols)}}}, nil
}

// Best is tensor.ArgMax of rows X[i*Ld:] of Cols columns: Index (Rows) uint32, and the largest
// number, Value (Rows).
type Best struct {
	X            cuda.Pointer
	Ld           int
	Index, Value cuda.Pointer
	Scratch      cuda.Pointer // BestBytes
	Rows, Cols   int
}

// bestColumns is the number of columns of a thread block that looks for the best of a part.
const bestColumns = 2048

// BestBytes returns the memory that Best needs between its two kernels.
func BestBytes(rows, cols int) int64 { return 8 * int64(rows) * int64(ceil(cols, bestColumns)) }

func (o Best) Calls() ([]Call, error) {
	if o.Rows == 0 {
		return nil, nil
	}
	parts := ceil(o.Cols, bestColumns)
	return []Call{
		{"best_of_parts", cuda.Grid{X: parts, Y: o.Rows, Threads: 256}, []any{o.X, uint32(o.Ld), o.Scratch, uint32(o.Cols)}},
		{"best_of_rows", cuda.Grid{X: o.Rows, Threads: 32}, []any{o.Scratch, uint32(parts), o.X, uint32(o.Ld), o.Index, o.Value}},
	}, nil
}
