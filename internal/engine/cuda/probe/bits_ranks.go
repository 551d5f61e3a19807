package probe

import (
	"math/rand/v2"

	"github.com/shoal-llm/shoal/internal/engine/cuda/launch"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// rankComparisons compare the operations that a single rank does not need.
var rankComparisons = []comparison{
	{"bias after a sum of ranks", []string{"add_bias"}, (*card).biases},
}

func (k *card) biases(r *rand.Rand) {
	const rows, cols = 3, 300
	x, bias := normal(r, rows*cols, 1), normal(r, cols, 1)
	p := k.upload(x)
	k.run(launch.AddBias{X: p, Bias: k.upload(bias), Rows: rows, Cols: cols})
	for i := range rows {
		tensor.Add(x[i*cols:][:cols], bias)
	}
	k.equalFloats("bias", p, x)
}
