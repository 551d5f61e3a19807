package shard

import (
	"errors"
	"math"
	"sync"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
)

// Fidelity measures the difference between weights in memory and in the files.
type Fidelity struct {
	Read  bool // rows were read from the files, not only from the cache on disk
	Type  tensor.DType
	Kept  float64 // share of the quantized blocks that were stored as the files have them
	Error float64 // root of the squared errors over the squared weights, of sampled rows
}

// fidelity sums up the rows that a load reads. Rows from the cache on disk are not counted.
type fidelity struct {
	mu                    sync.Mutex
	blocks, kept          int
	squaredError, squares float64
}

// add counts row r of w, which was packed from row with a number of kept blocks. If sample is set, it
// reads the packed row.
func (f *fidelity) add(w *tensor.Weight, r int, row []float32, kept int, sample bool) {
	var e, s float64
	if sample {
		packed := make([]float32, len(row))
		w.Row(r, packed)
		for i, v := range row {
			e += math.Pow(float64(packed[i]-v), 2)
			s += float64(v) * float64(v)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.squaredError, f.squares = f.squaredError+e, f.squares+s
	if kernel.Quantized(w.Type) {
		f.blocks, f.kept = f.blocks+(len(row)+tensor.BlockWidth-1)/tensor.BlockWidth, f.kept+kept
	}
}

// HeldError samples the relative error of matrices in a quantized form if the model is held as dt: 16
// rows of the first 32 of them.
func HeldError(ck *checkpoint.Checkpoint, dt tensor.DType) (float64, error) {
	const matrices, rows = 32, 16
	var f fidelity
	n := 0
	for _, spec := range ck.Config.Tensors() {
		t, err := ck.Tensor(spec.Name)
		if err != nil {
			return 0, err
		}
		if !t.Quantized() {
			continue
		}
		if n++; n > matrices {
			break
		}
		w, err := tensor.NewWeight(ck.HeldAs(spec.Name, dt), rows, t.Cols())
		if err != nil {
			return 0, err
		}
		row := make([]float32, t.Cols())
		for r := range min(rows, t.Rows()) {
			t.Row(row, r, 0, len(row))
			kept := w.SetRowCodes(r, row, func(c *tensor.Codes, k int) bool { return t.Codes(c, r, k) })
			f.add(w, r, row, kept, true)
		}
		if err := errors.Join(w.Close(), t.Damage()); err != nil {
			return 0, err
		}
	}
	return f.result(dt).Error, nil
}

func (f *fidelity) result(dt tensor.DType) Fidelity {
	out := Fidelity{Read: f.squares > 0, Type: dt}
	if f.blocks > 0 {
		out.Kept = float64(f.kept) / float64(f.blocks)
	}
	if f.squares > 0 {
		out.Error = math.Sqrt(f.squaredError / f.squares)
	}
	return out
}
