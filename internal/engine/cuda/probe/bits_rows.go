package probe

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/cuda/launch"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
)

var rowComparisons = []comparison{
	{"embedding", []string{"embed"}, (*card).embeddings},
	{"rounding of activations", []string{"quantize_rows"}, (*card).rounding},
	{"RMS norm", []string{"rms_norm", "rms_norm_split"}, (*card).norms},
	{"gated activations", []string{"gate_rows"}, (*card).gates},
	{"residual sum", []string{"add_rows"}, (*card).sums},
	{"scaled and capped logits", []string{"scale_rows"}, (*card).logits},
	{"best token", []string{"best_of_parts", "best_of_rows"}, (*card).best},
	{"copies of tiles", []string{"copy_rows"}, (*card).copies},
	{"rounded tiles", []string{"pack_rounded", "unpack_rounded"}, (*card).tiles},
}

var (
	inf = float32(math.Inf(1))
	nan = float32(math.NaN())
)

// embeddings looks up rows of each type; the rows are built here as a checkpoint file has them.
func (k *card) embeddings(r *rand.Rand) {
	const vocab, scale = 7, 1.7
	tokens := []uint32{6, 0, 3, 3}
	for _, t := range []tensor.DType{tensor.F32, tensor.BF16, tensor.F16, tensor.Q8_0, tensor.Q4_0} {
		for _, cols := range []int{32, 288} {
			var table []byte
			values := make([][]float32, vocab)
			for i := range values {
				row := normal(r, cols, 1)
				values[i] = make([]float32, cols)
				if !kernel.Quantized(t) {
					b := make([]byte, t.BytesPerRow(cols))
					tensor.Store(b, row, t)
					table = append(table, b...)
					for j, v := range row {
						values[i][j] = tensor.Round(t, v)
					}
					continue
				}
				for b := 0; b < cols; b += tensor.BlockWidth {
					d := tensor.Round(tensor.F16, row[b]/100)
					half := make([]byte, 2)
					tensor.Store(half, []float32{d}, tensor.F16)
					table = append(table, half...)
					codes := make([]byte, t.BytesPerRow(tensor.BlockWidth)-2)
					for j := range codes {
						codes[j] = byte(r.Uint32())
					}
					table = append(table, codes...)
					for j := range tensor.BlockWidth {
						q := float32(int(codes[j%16]>>(j/16*4)&15) - 8)
						if t == tensor.Q8_0 {
							q = float32(int8(codes[j]))
						}
						values[i][b+j] = d * q
					}
				}
			}
			want := make([]float32, 0, len(tokens)*cols)
			for _, token := range tokens {
				for _, v := range values[token] {
					want = append(want, v*scale)
				}
			}
			out := k.alloc(4 * len(want))
			k.run(launch.Embed{Type: t, Table: k.upload(table), Tokens: k.upload(tokens), Out: out, Rows: len(tokens), Cols: cols, Scale: scale})
			k.equalFloats(fmt.Sprintf("%v, %d columns", t, cols), out, want)
		}
	}
}

// quantized returns the bytes and the scales of tensor.Quantize.
func quantized(x []float32) (b []byte, scales []float32) {
	records := make([]byte, tensor.QuantizedBytes(len(x)))
	tensor.Quantize(records, len(records), tensor.Q8_0, x, len(x), len(x), 1)
	size := tensor.QuantizedBytes(tensor.BlockWidth)
	for ; len(records) > 0; records = records[size:] {
		b = append(b, records[:tensor.BlockWidth]...)
		scales = append(scales, math.Float32frombits(binary.LittleEndian.Uint32(records[tensor.BlockWidth:])))
	}
	return b, scales
}

// rounded allocates rounded activations of n numbers.
func (k *card) rounded(n int) launch.Rounded {
	return launch.Rounded{Bytes: k.alloc(n), Scales: k.alloc(n / 8)}
}

// equalRounded compares rounded activations.
func (k *card) equalRounded(what string, r launch.Rounded, want []float32) {
	wantBytes, wantScales := quantized(want)
	k.equal(what+", rounded", r.Bytes, wantBytes)
	k.equalFloats(what+", scales", r.Scales, wantScales)
}

// hard replaces some of the numbers of whole blocks by NaN, infinity, zeros, subnormal and huge ones.
func hard(x []float32) []float32 {
	for i := range x {
		switch i / tensor.BlockWidth % 7 {
		case 1:
			x[i] = 0
		case 2:
			x[i] *= 1e-42
		case 3:
			x[i] *= 1e30
		case 4:
			if i%tensor.BlockWidth == 9 {
				x[i] = -inf
			}
		case 5:
			if i%tensor.BlockWidth == 17 {
				x[i] = nan
			}
		}
	}
	return x
}

func (k *card) rounding(r *rand.Rand) {
	for _, s := range [][3]int{{1, 32, 32}, {3, 288, 300}, {2, 1024, 1024}} {
		rows, cols, ld := s[0], s[1], s[2]
		x := hard(normal(r, rows*ld, 1))
		var want []float32
		for i := range rows {
			want = append(want, x[i*ld:][:cols]...)
		}
		to := k.rounded(rows * cols)
		k.run(launch.Quantize{X: k.upload(x), LdX: ld, To: to, Rows: rows, Cols: cols})
		k.equalRounded(fmt.Sprintf("%d columns", cols), to, want)
	}
}

func (k *card) norms(r *rand.Rand) {
	const rows, eps = 2, 1e-5
	for _, n := range []int{32, 96, 544, 4096, 6176} {
		for _, by := range []float32{1, 1e-20, 1e15} {
			what := fmt.Sprintf("%d columns near %g", n, by)
			x, weight, residual, want := normal(r, rows*n, by), normal(r, n, 1), normal(r, rows*n, 1), make([]float32, rows*n)
			for i := range rows {
				tensor.RMSNorm(want[i*n:][:n], x[i*n:][:n], weight, eps)
			}
			o := launch.Norm{X: k.upload(x), Weight: k.upload(weight), Eps: eps, Out: k.alloc(4 * rows * n), Rows: rows, Cols: n}
			plain := o.Out
			sum := slices.Clone(want)
			tensor.Add(sum, residual)
			for _, o.Whole = range []bool{false, true} {
				o.Residual, o.Out, o.To = 0, plain, k.rounded(rows*n)
				k.run(o)
				k.equalFloats(what, o.Out, want)
				k.equalRounded(what, o.To, want)
				o.Residual, o.To = k.upload(residual), launch.Rounded{}
				o.Out = o.Residual
				k.run(o)
				k.equalFloats(what+" and a residual", o.Out, sum)
			}
			o.Residual, o.Out = 0, o.X
			k.run(o)
			k.equalFloats(what+" in place", o.Out, want)
		}
	}
}

func (k *card) gates(r *rand.Rand) {
	const rows = 2
	for _, a := range []tensor.Activation{tensor.SiLU, tensor.GELUTanh, tensor.Clamped, tensor.GELU} {
		for _, cols := range []int{35, 288} {
			for _, biased := range []bool{false, true} {
				ld := cols + 13 // the second row is not aligned
				gate, up := normal(r, rows*ld, 6), normal(r, rows*ld, 6)
				copy(gate, []float32{-100, 100, 88.5, -88.5, 1e-40, -1e30, inf, nan, 0})
				gateBias, upBias := normal(r, cols, 1), normal(r, cols, 1)
				o := launch.Gate{Activation: a, Gate: k.upload(gate), Up: k.upload(up), Ld: ld, Out: k.alloc(4 * rows * cols),
					Rows: rows, Cols: cols}
				if cols%tensor.BlockWidth == 0 {
					o.To = k.rounded(rows * cols)
				}
				if biased {
					o.GateBias, o.UpBias = k.upload(gateBias), k.upload(upBias)
				}
				var want []float32
				for i := range rows {
					g, u := gate[i*ld:][:cols], up[i*ld:][:cols]
					if biased {
						tensor.Add(g, gateBias)
						tensor.Add(u, upBias)
					}
					a.Mul(g, g, u)
					want = append(want, g...)
				}
				k.run(o)
				what := fmt.Sprintf("activation %d, %d columns, biases %v", a, cols, biased)
				k.equalFloats(what, o.Out, want)
				if o.To != (launch.Rounded{}) {
					k.equalRounded(what, o.To, want)
				}
			}
		}
	}
}

func (k *card) sums(r *rand.Rand) {
	const rows, cols = 3, 300
	x, y, bias := normal(r, rows*cols, 1), normal(r, rows*cols, 1), normal(r, cols, 1)
	plain, biased := k.upload(x), k.upload(x)
	k.run(launch.Add{X: plain, Y: k.upload(y), Rows: rows, Cols: cols})
	tensor.Add(x, y)
	k.equalFloats("sum", plain, x)
	k.run(launch.Add{X: biased, Y: k.upload(y), Bias: k.upload(bias), Rows: rows, Cols: cols})
	for i := range rows {
		tensor.Add(x[i*cols:][:cols], bias)
	}
	k.equalFloats("sum and bias", biased, x)
}

func (k *card) logits(r *rand.Rand) {
	const rows, cols, ld, scale, top = 2, 300, 310, 0.37, 30
	x := normal(r, rows*ld, 100)
	copy(x, []float32{inf, -inf, nan, 1e30, 1e-40})
	p := k.upload(x)
	k.run(launch.Logits{X: p, Ld: ld, Scale: scale, Cap: top, Rows: rows, Cols: cols})
	for i := range rows {
		tensor.Scale(x[i*ld:][:cols], scale)
		tensor.SoftCap(x[i*ld:][:cols], top)
	}
	k.equalFloats("scaled and capped", p, x)
	k.run(launch.Logits{X: p, Ld: ld, Scale: scale, Rows: rows, Cols: cols})
	for i := range rows {
		tensor.Scale(x[i*ld:][:cols], scale)
	}
	k.equalFloats("scaled", p, x)
}

func (k *card) best(r *rand.Rand) {
	const cols, ld = 3001, 3010
	var x []float32
	row := func(change func(x []float32)) {
		y := normal(r, ld, 1)
		change(y)
		x = append(x, y...)
	}
	all := func(v float32) func(x []float32) {
		return func(x []float32) {
			for i := range x {
				x[i] = v
			}
		}
	}
	row(func(x []float32) { x[1234] = 60 })
	row(func(x []float32) { x[7], x[2000], x[0] = 50, 50, nan })
	row(func(x []float32) { x[3000], x[2999] = inf, nan })
	row(func(x []float32) { all(float32(math.Copysign(0, -1)))(x); x[40] = 0 })
	row(all(nan))
	row(func(x []float32) { all(nan)(x); x[33] = -inf })
	rows := len(x) / ld
	o := launch.Best{X: k.upload(x), Ld: ld, Index: k.alloc(4 * rows), Value: k.alloc(4 * rows), Rows: rows, Cols: cols,
		Scratch: k.alloc(int(launch.BestBytes(rows, cols)))}
	k.run(o)
	index, value := make([]uint32, rows), make([]float32, rows)
	for i := range rows {
		index[i] = uint32(tensor.ArgMax(x[i*ld:][:cols]))
		value[i] = x[i*ld+int(index[i])]
	}
	k.equal("index", o.Index, bytesOf(index))
	k.equalFloats("value", o.Value, value)
}

func (k *card) copies(r *rand.Rand) {
	const rows, cols, from, to = 3, 300, 310, 305
	x, want := normal(r, rows*from, 1), normal(r, rows*to, 1)
	p := k.upload(want)
	for i := range rows {
		copy(want[i*to:][:cols], x[i*from:])
	}
	k.run(launch.CopyRows{To: p, LdTo: to, From: k.upload(x), LdFrom: from, Rows: rows, Cols: cols})
	k.equalFloats("rows", p, want)
}

// tiles packs some columns of rounded rows as package tensor would, and unpacks them into other rows.
func (k *card) tiles(r *rand.Rand) {
	const rows, all, first, cols = 3, 1024, 96, 448
	for _, t := range []tensor.DType{tensor.Q8_0, tensor.Q4_0} {
		x := hard(normal(r, rows*all, 1))
		b, scales := quantized(x)
		size := tensor.QuantizedBytes(cols)
		want := make([]byte, rows*size)
		tensor.Quantize(want, size, t, x[first:], all, cols, rows)
		offset := 128
		if t == tensor.Q4_0 {
			offset = 8
		}
		o := launch.PackRounded{Records: k.alloc(len(want)), Rounded: launch.Rounded{Bytes: k.upload(b), Scales: k.upload(scales)}, All: all,
			First: first, Offset: offset, Rows: rows, Cols: cols}
		k.run(o)
		k.equal(t.String()+" records", o.Records, want)
		var part []float32
		for i := range rows {
			part = append(part, x[i*all+first:][:cols]...)
		}
		o.Rounded, o.All, o.First = k.rounded(rows*cols), cols, 0
		k.run(launch.UnpackRounded(o))
		k.equalRounded(t.String(), o.Rounded, part)
	}
}
