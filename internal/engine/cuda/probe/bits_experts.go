package probe

import (
	"fmt"
	"math/rand/v2"

	"github.com/shoal-llm/shoal/internal/engine/cuda/launch"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/engine/tensor/f32"
)

var expertComparisons = []comparison{
	{"rows of experts", []string{"gather_rows", "weigh_rows"}, (*card).expertRows},
	{"sum of experts", []string{"join_experts"}, (*card).expertSums},
}

func (k *card) expertRows(r *rand.Rand) {
	const rows, cols = 5, 300
	from, factors := normal(r, rows*cols, 1), normal(r, 2*rows, 1)
	of := make([]uint32, 2*rows)
	gathered, weighed := make([]float32, len(of)*cols), make([]float32, len(of)*cols)
	for i := range of {
		of[i] = r.Uint32N(rows)
		copy(gathered[i*cols:], from[int(of[i])*cols:][:cols])
		copy(weighed[i*cols:], gathered[i*cols:][:cols])
		tensor.Scale(weighed[i*cols:][:cols], factors[i])
	}
	to := k.alloc(4 * len(gathered))
	k.run(launch.Gather{To: to, From: k.upload(from), Rows: k.upload(of), N: len(of), Words: cols})
	k.equalFloats("gathered", to, gathered)
	x := k.upload(gathered)
	k.run(launch.Weigh{X: x, Factors: k.upload(factors), Rows: len(of), Cols: cols})
	k.equalFloats("weighed", x, weighed)
}

func (k *card) expertSums(r *rand.Rand) {
	const rows, perToken, cols, ld = 4, 3, 290, 320
	y, x, factors := normal(r, rows*ld, 1), normal(r, rows*perToken*ld, 1), normal(r, rows, 3)
	pairs := make([]uint32, rows*perToken)
	for i, p := range r.Perm(len(pairs)) {
		pairs[i] = uint32(p)
	}
	for _, fresh := range []bool{false, true} {
		for _, scaled := range []bool{false, true} {
			if fresh && scaled {
				continue
			}
			o := launch.JoinExperts{
				Y: k.upload(y), X: k.upload(x), Pairs: k.upload(pairs), PerToken: perToken, Fresh: fresh, Ld: ld, Rows: rows,
				Cols: cols,
			}
			if scaled {
				o.Factors = k.upload(factors)
			}
			want := append([]float32{}, y...)
			for t := range rows {
				row := want[t*ld:][:cols]
				if scaled {
					tensor.Scale(row, 1/(1+f32.Exp(-factors[t])))
				}
				for j := range perToken {
					if answer := x[int(pairs[t*perToken+j])*ld:][:cols]; fresh && j == 0 {
						copy(row, answer)
					} else {
						tensor.Add(row, answer)
					}
				}
			}
			k.run(o)
			k.equalFloats(fmt.Sprintf("fresh %v, scaled %v", fresh, scaled), o.Y, want)
		}
	}
}
