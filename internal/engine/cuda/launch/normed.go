package launch

import (
	"errors"
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/cuda"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Normed is Norm of one token, rounded, and Product of quantized weights with it, in one kernel: sums Y[r] over the
// columns of weight row r, plus Bias (W.Rows).
//
// With To, the rows of W are those of a gate, and then as many of up. The result is that of Gate. GateBias and UpBias
// take the place of Bias.
type Normed struct {
	W       Weight // with all units
	X, Norm cuda.Pointer
	Eps     float32
	Y, Bias cuda.Pointer // Bias may be 0

	To               Rounded
	Activation       tensor.Activation
	GateBias, UpBias cuda.Pointer // or 0

	Panels int // of a thread block, at most 4; 0 chooses. With To it has 4.
}

// Thread blocks that a large card computes at once, and the most panels of one.
const normedBlocks, normedPanels = 256, 4

// NormedKernel reports whether Normed has a kernel for a weight, with To if it is gated.
func NormedKernel(w Weight, gated bool) bool {
	return (w.Type == tensor.Q8_0 || w.Type == tensor.Q4_0) && w.HeldCols() == w.Cols && w.Cols <= MaxNorm && (!gated || w.Rows%(2*block) == 0)
}

func (o Normed) Calls() ([]Call, error) {
	if err := wholeBlocks("a product", o.W.Cols); err != nil {
		return nil, err
	}
	gated := o.To != (Rounded{})
	if !NormedKernel(o.W, gated) {
		return nil, fmt.Errorf("launch: a norm within a product of %d %v rows of %d columns", o.W.Rows, o.W.Type, o.W.Cols)
	}
	if o.Panels < 0 || o.Panels > normedPanels {
		return nil, errors.New("launch: a thread block has 1 to 4 panels")
	}
	name, panels, units := o.W.Type.String()[:2], ceil(o.W.Rows, PanelRows), tensor.Units(o.W.Cols)
	each := o.Panels
	if each == 0 {
		each = min(ceil(panels, normedBlocks), normedPanels)
	}
	input := []any{o.W.Data, o.W.Scales, o.X, o.Norm, o.Eps}
	shape := []any{uint32(o.W.Rows), uint32(units), uint32(units), uint32(o.W.Cols / block)}
	if gated {
		return []Call{{name + "_gate_normed", cuda.Grid{X: panels / normedPanels, Threads: 512},
			append(append(append(input, uint32(o.Activation)), shape...), o.GateBias, o.UpBias, o.To.Bytes, o.To.Scales)}}, nil
	}
	return []Call{{name + "_product_normed", cuda.Grid{X: ceil(panels, each), Threads: 512},
		append(append(append(input, uint32(each)), shape...), o.Bias, o.Y)}}, nil
}
