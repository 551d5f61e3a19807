package probe

import (
	"fmt"
	"math/rand/v2"

	"github.com/shoal-llm/shoal/internal/engine/cuda/launch"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

var productComparisons = func() (all []comparison) {
	add := func(name string, t tensor.DType, kernel string, tokens ...int) {
		all = append(all, comparison{name, []string{kernel}, func(k *card, r *rand.Rand) { k.products(r, t, tokens) }})
	}
	for _, t := range []tensor.DType{tensor.F32, tensor.BF16, tensor.F16} {
		add(fmt.Sprintf("product of %v weights with a token", t), t, t.String()+"_product", 1)
		add(fmt.Sprintf("product of %v weights with up to 8 tokens", t), t, t.String()+"_product_8", 2, 8, 13)
	}
	for _, t := range []tensor.DType{tensor.Q8_0, tensor.Q4_0} {
		kernel := t.String()[:2] + "_product"
		add(fmt.Sprintf("product of %v weights with a token", t), t, kernel, 1)
		add(fmt.Sprintf("product of %v weights with up to 8 tokens", t), t, kernel+"_8", 2, 8)
		add(fmt.Sprintf("product of %v weights with up to 16 tokens", t), t, kernel+"_16", 9, 16)
		add(fmt.Sprintf("product of %v weights with up to 32 tokens", t), t, kernel+"_32", 17, 32)
		add(fmt.Sprintf("product of %v weights with more tokens", t), t, kernel+"_64", 33, 70)
	}
	return all
}()

// weight uploads a random matrix.
func (k *card) weight(r *rand.Rand, t tensor.DType, rows, cols int) (on launch.Weight, w *tensor.Weight) {
	w, err := tensor.NewWeight(t, rows, cols)
	if err != nil {
		k.fail(err)
		return on, nil
	}
	for i := range rows {
		row := normal(r, cols, 0.02)
		if i%5 == 1 { // the scale is subnormal as float16
			tensor.Scale(row, 1e-3)
		}
		w.SetRow(i, row)
	}
	d, s := launch.PackedBytes(t, rows, cols)
	data, scales := make([]byte, d), make([]byte, s)
	k.fail(launch.Pack(data, scales, w))
	on = launch.Weight{Type: t, Rows: rows, Cols: cols, Data: k.upload(data)}
	if s > 0 {
		on.Scales = k.upload(scales)
	}
	return on, w
}

// products multiplies weights by numbers of tokens: columns with fewer blocks than units, and with
// blocks that the units share unevenly; rows that fill no panel.
func (k *card) products(r *rand.Rand, t tensor.DType, tokens []int) {
	pool := tensor.NewPool(1)
	defer pool.Close()
	for _, s := range [][2]int{{16, 32}, {40, 224}, {83, 1056}} {
		rows, cols := s[0], s[1]
		w, host := k.weight(r, t, rows, cols)
		if k.err != nil {
			return
		}
		for _, n := range tokens {
			what := fmt.Sprintf("%dx%d, %d tokens", rows, cols, n)
			ld := rows + 3
			x, bias, residual, want := normal(r, n*cols, 1), normal(r, rows, 1), normal(r, n*ld, 1), make([]float32, n*ld)
			if n > 1 {
				hard(x[(n-1)*cols:])
			}
			o := launch.Product{W: w, N: n, Y: k.upload(want), LdY: ld}
			if tensor.Quantised(t) {
				b, scales := quantized(x)
				o.Rounded = launch.Rounded{Bytes: k.upload(b), Scales: k.upload(scales)}
			} else {
				o.X = k.upload(x)
			}
			pool.MatMul(want, ld, host, x, cols, n)
			k.run(o)
			k.equalFloats(what, o.Y, want)
			sums := append([]float32{}, want...)
			for i := range n {
				tensor.Add(sums[i*ld:][:rows], bias)
			}
			o.Bias = k.upload(bias)
			k.run(o)
			k.equalFloats(what+", bias", o.Y, sums)
			copy(want, residual)
			for i := range n {
				tensor.Add(want[i*ld:][:rows], sums[i*ld:][:rows])
			}
			o.Residual = k.upload(residual)
			o.Y = o.Residual
			k.run(o)
			k.equalFloats(what+", bias and residual", o.Y, want)
		}
		k.fail(host.Close())
	}
}
