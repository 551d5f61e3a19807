package probe

import (
	"fmt"
	"math/rand/v2"

	"github.com/shoal-llm/shoal/internal/engine/cuda/launch"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
)

var productComparisons = func() (all []comparison) {
	compare := func(name string, t tensor.DType, kernel string, tiled bool, tokens ...int) {
		all = append(all, comparison{name, []string{kernel}, func(k *card, r *rand.Rand) {
			k.products(r, t, tokens, tiled)
			k.partial(r, t, tokens[len(tokens)-1], tiled)
		}})
	}
	add := func(name string, t tensor.DType, kernel string, tokens ...int) {
		compare(name, t, kernel, false, tokens...)
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
		compare(fmt.Sprintf("tiled product of %v weights", t), t, kernel+"_tiled_shared", true, 3, 70)
		all = append(all, small(all[len(all)-1], kernel+"_tiled"))
	}
	return all
}()

// weight uploads a random matrix, of some units or of all.
func (k *card) weight(r *rand.Rand, t tensor.DType, rows, cols int, units tensor.Span) (on launch.Weight, w *tensor.Weight) {
	w, err := tensor.NewWeightUnits(t, rows, cols, units.Lo, units.Hi)
	if err != nil {
		k.fail(err)
		return on, nil
	}
	for i := range rows {
		row := normal(r, w.Span().Len(), 0.02)
		if i%5 == 1 { // the scale is subnormal as float16
			tensor.Scale(row, 1e-3)
		}
		w.SetRow(i, row)
	}
	d, s := launch.PackedBytes(t, rows, w.Span().Len())
	data, scales := make([]byte, d), make([]byte, s)
	k.fail(launch.Pack(data, scales, w))
	on = launch.Weight{Type: t, Rows: rows, Cols: cols, UnitLo: units.Lo, UnitHi: units.Hi, Data: k.upload(data)}
	if s > 0 {
		on.Scales = k.upload(scales)
	}
	return on, w
}

// products multiplies weights by numbers of tokens: columns with fewer blocks than units, and with
// blocks that the units share unevenly; rows that fill no panel.
func (k *card) products(r *rand.Rand, t tensor.DType, tokens []int, tiled bool) {
	pool := tensor.NewPool(1)
	defer pool.Close()
	for _, s := range [][2]int{{16, 32}, {40, 224}, {83, 1056}} {
		rows, cols := s[0], s[1]
		w, host := k.weight(r, t, rows, cols, tensor.Span{Lo: 0, Hi: tensor.Units(cols)})
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
			o := launch.Product{W: w, N: n, Y: k.upload(want), LdY: ld, Tiled: tiled}
			pool.MatMul(want, ld, host, x, cols, n)
			k.multiply(&o, x)
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

// partial multiplies weights that hold some units of their columns: sums of one node and of several,
// of axes with 16 units and with 7.
func (k *card) partial(r *rand.Rand, t tensor.DType, n int, tiled bool) {
	pool := tensor.NewPool(1)
	defer pool.Close()
	const rows = 40
	for _, s := range []struct {
		cols  int
		units tensor.Span
	}{{1056, tensor.Span{Lo: 3, Hi: 12}}, {1056, tensor.Span{Lo: 8, Hi: 16}}, {224, tensor.Span{Lo: 1, Hi: 7}}} {
		w, host := k.weight(r, t, rows, s.cols, s.units)
		if k.err != nil {
			return
		}
		width := host.Span().Len()
		x := normal(r, n*width, 1)
		parts := make([][]float32, len(w.Nodes()))
		for i := range parts {
			parts[i] = make([]float32, n*rows)
		}
		pool.MatMulPartial(parts, host, x, width, n)
		o := launch.Product{W: w, N: n, Y: k.alloc(4 * n * rows * len(parts)), LdY: rows, Tiled: tiled}
		k.multiply(&o, x)
		for i, want := range parts {
			k.equalFloats(fmt.Sprintf("units %v of %d columns, node %d", s.units, s.cols, i), o.Y.Add(int64(4*n*rows*i)), want)
		}
		k.fail(host.Close())
	}
}

// multiply sets the tokens of a product and runs it.
func (k *card) multiply(o *launch.Product, x []float32) {
	if kernel.Quantized(o.W.Type) {
		b, scales := quantized(x)
		o.Rounded = launch.Rounded{Bytes: k.upload(b), Scales: k.upload(scales)}
	} else {
		o.X = k.upload(x)
	}
	k.run(*o)
}
