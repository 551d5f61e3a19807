package probe

import (
	"fmt"
	"math/rand/v2"

	"github.com/shoal-llm/shoal/internal/engine/cuda/launch"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

var normedComparisons = func() (all []comparison) {
	for _, t := range []tensor.DType{tensor.Q8_0, tensor.Q4_0} {
		name := t.String()[:2]
		all = append(all,
			comparison{fmt.Sprintf("norm and product of %v weights", t), []string{name + "_product_normed"},
				func(k *card, r *rand.Rand) { k.normed(r, t) }},
			comparison{fmt.Sprintf("norm and gate of %v weights", t), []string{name + "_gate_normed"},
				func(k *card, r *rand.Rand) { k.gateNormed(r, t) }})
	}
	return all
}()

// normedInput is a token and the weights of its norm, and the norm as package tensor computes it.
func (k *card) normedInput(r *rand.Rand, cols int) (o launch.Normed, norm []float32) {
	x, weight, norm := normal(r, cols, 1), normal(r, cols, 1), make([]float32, cols)
	tensor.Scale(x[:32], 1e-12) // a block of small numbers
	o.X, o.Norm, o.Eps = k.upload(x), k.upload(weight), 1e-5
	tensor.RMSNorm(norm, x, weight, o.Eps)
	return o, norm
}

// normed multiplies weights by the norm of a token: axes with fewer blocks than units and with uneven ones, and rows
// that fill neither a panel nor a thread block.
func (k *card) normed(r *rand.Rand, t tensor.DType) {
	pool := tensor.NewPool(1)
	defer pool.Close()
	for _, s := range [][2]int{{40, 32}, {83, 1056}, {16, 4096}} {
		rows, cols := s[0], s[1]
		w, host := k.weight(r, t, rows, cols, tensor.Span{Lo: 0, Hi: tensor.Units(cols)})
		if k.err != nil {
			return
		}
		o, norm := k.normedInput(r, cols)
		bias, want := normal(r, rows, 1), make([]float32, rows)
		pool.MatMul(want, rows, host, norm, cols, 1)
		for _, panels := range []int{0, 1, 3, 4} {
			o.W, o.Panels, o.Bias, o.Y = w, panels, 0, k.alloc(4*rows)
			k.run(o)
			k.equalFloats(fmt.Sprintf("%dx%d, %d panels", rows, cols, panels), o.Y, want)
		}
		tensor.Add(want, bias)
		o.Bias = k.upload(bias)
		k.run(o)
		k.equalFloats(fmt.Sprintf("%dx%d, bias", rows, cols), o.Y, want)
		k.fail(host.Close())
	}
}

func (k *card) gateNormed(r *rand.Rand, t tensor.DType) {
	pool := tensor.NewPool(1)
	defer pool.Close()
	for _, s := range [][2]int{{32, 64}, {96, 1056}} {
		ffn, cols := s[0], s[1]
		w, host := k.weight(r, t, 2*ffn, cols, tensor.Span{Lo: 0, Hi: tensor.Units(cols)})
		if k.err != nil {
			return
		}
		both := make([]float32, 2*ffn)
		for _, a := range []tensor.Activation{tensor.SiLU, tensor.GELUTanh} {
			o, norm := k.normedInput(r, cols)
			pool.MatMul(both, 2*ffn, host, norm, cols, 1)
			for _, biased := range []bool{false, true} {
				o.W, o.Activation, o.To = w, a, k.rounded(ffn)
				if biased {
					gate, up := normal(r, ffn, 1), normal(r, ffn, 1)
					o.GateBias, o.UpBias = k.upload(gate), k.upload(up)
					tensor.Add(both[:ffn], gate)
					tensor.Add(both[ffn:], up)
				}
				want := make([]float32, ffn)
				a.Mul(want, both[:ffn], both[ffn:])
				k.run(o)
				k.equalRounded(fmt.Sprintf("%d gates of %d columns, activation %d, biases %v", ffn, cols, a, biased), o.To, want)
			}
		}
		k.fail(host.Close())
	}
}
