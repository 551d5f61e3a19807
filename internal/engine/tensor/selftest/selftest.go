package selftest

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"math"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/engine/tensor/f32"
	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
)

// Sum runs every kernel in use on fixed numbers and returns a hash of the results. It is the
// same on all machines, instruction sets and numbers of threads, and differs if a kernel is wrong.
// It takes some milliseconds of one thread.
func Sum() ([sha256.Size]byte, error) {
	t := &selfTest{h: sha256.New(), pool: tensor.NewPool(1)}
	defer t.pool.Close()
	t.operations()
	for _, dt := range []tensor.DType{tensor.F32, tensor.BF16, tensor.F16, tensor.Q8_0, tensor.Q4_0,
		tensor.IQ4_NL, tensor.Int4, tensor.MXFP4} {
		if err := t.products(dt); err != nil {
			return [sha256.Size]byte{}, err
		}
	}
	for _, l := range selfTestLayouts() {
		t.attention(l)
	}
	t.long()
	t.deltaRule()
	return [sha256.Size]byte(t.h.Sum(nil)), nil
}

// selfTest is the hash so far and the state of the number generator.
type selfTest struct {
	h     hash.Hash
	state uint64
	pool  *tensor.Pool
	s     tensor.AttnScratch
	text  []byte
}

// numbers returns n finite numbers of both signs, a few of them large or small, so that another
// order of summation changes the result.
func (t *selfTest) numbers(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		t.state = t.state*6364136223846793005 + 1442695040888963407
		x[i] = float32(int32(t.state>>52)-1<<11) / (1 << 10)
		switch t.state >> 40 & 31 {
		case 0:
			x[i] *= 64
		case 1:
			x[i] /= 4096
		}
	}
	return x
}

func (t *selfTest) floats(rows ...[]float32) {
	t.text = t.text[:0]
	for _, x := range rows {
		for _, f := range x {
			t.text = binary.LittleEndian.AppendUint32(t.text, math.Float32bits(f))
		}
	}
	t.h.Write(t.text)
}

// operations tests the operations between products, each with whole vectors and a partial one.
func (t *selfTest) operations() {
	const n = 3*kernel.GroupRows + 13
	x, y, w := t.numbers(n), t.numbers(n), t.numbers(n)
	op := func(f func(dst []float32)) {
		dst := append([]float32(nil), x...)
		f(dst)
		t.floats(dst)
	}
	op(func(dst []float32) { tensor.RMSNorm(dst, x, w, 1e-5) })
	op(func(dst []float32) { tensor.NormBy(dst, x, w, kernel.RMSFactor(tensor.SumSquares(x), n, 1e-5)) })
	op(func(dst []float32) { tensor.Add(dst, y) })
	op(func(dst []float32) { tensor.Scale(dst, w[0]) })
	op(func(dst []float32) { tensor.SiLUMul(dst, x, y) })
	op(func(dst []float32) { tensor.GELUMul(dst, x, y) })
	op(func(dst []float32) { tensor.SoftCap(dst, 3) })
	op(func(dst []float32) { tensor.ClampedMul(dst, x, y) })
	op(func(dst []float32) {
		for i := range dst {
			dst[i] = f32.Exp(x[i])
		}
	})
	op(func(dst []float32) {
		for i := range dst {
			dst[i] = f32.Log(x[i] * x[i])
		}
	})
	op(func(dst []float32) {
		for i := range dst {
			dst[i] = tensor.Round(tensor.BF16, w[i]*y[i]) + tensor.Round(tensor.F16, w[i]*y[i])
		}
	})
	tensor.RopeRotateHalf(x[:2*(n/2)], y[:n/2], w[:n/2])
	t.floats(x, []float32{float32(tensor.ArgMax(y)), tensor.LogSumExp(y)})
	tensor.Scale(y, 1./256)
	t.floats([]float32{tensor.LogSumExp(y)})
	t.text = append(t.text[:0], make([]byte, 2*n)...)
	tensor.RoundBF16(t.text, t.h16(y, w))
	t.h.Write(t.text)
}

// h16 returns products that a bfloat16 cannot represent.
func (t *selfTest) h16(x, y []float32) []float32 {
	out := make([]float32, len(x))
	for i := range out {
		out[i] = x[i] * y[i]
	}
	return out
}

// products multiplies weights of a type. It covers all tile shapes (1, 2 and 4 panels of 1 to 6 tokens)
// and several groups of panels in one call. It also covers short last blocks and rows, and a part of
// the units.
func (t *selfTest) products(dt tensor.DType) error {
	for _, c := range []struct{ rows, cols, lo, hi, most int }{{11*kernel.PanelRows - 3, 4*tensor.BlockWidth + 19, 0, 5, 7},
		{kernel.PanelRows, 6 * tensor.BlockWidth, 1, 4, 2}, {16*kernel.GroupRows + 1, tensor.BlockWidth, 0, 1, 1}} {
		w, err := tensor.NewWeightUnits(dt, c.rows, c.cols, c.lo, c.hi)
		if err != nil {
			return err
		}
		k := w.Span().Len()
		for r := range c.rows {
			w.SetRow(r, t.numbers(k))
		}
		back := make([]float32, k)
		w.Row(c.rows-1, back)
		t.floats(back)
		for n := 1; n <= c.most; n++ {
			x, parts := t.numbers(n*k), make([][]float32, len(tensor.Subtrees(c.lo, c.hi, tensor.Units(c.cols))))
			for i := range parts {
				parts[i] = make([]float32, n*c.rows)
			}
			t.pool.MatMulPartial(parts, w, x, k, n)
			t.floats(parts...)
		}
		if err := w.Close(); err != nil {
			return err
		}
	}
	return nil
}

// selfTestLayouts are rows of every type, in widths that select different attention kernels.
func selfTestLayouts() (out []tensor.KVLayout) {
	for _, dt := range []tensor.DType{tensor.F32, tensor.BF16, tensor.Int8} {
		for _, d := range [...][2]int{{32, 32}, {64, 64}, {64, 128}, {24, 56}} {
			out = append(out, tensor.KVLayout{Type: dt, KDim: d[0], VDim: d[1]})
		}
		out = append(out, tensor.KVLayout{Type: dt, KDim: 40, VDim: 32, Latent: true})
	}
	return out
}

// attention writes rows and attends to them: whole blocks and a rest, few heads and many, one token
// and several, all slots and some. It also tests the attention received by each slot, bounds of
// pages and their scores, and rotated keys.
func (t *selfTest) attention(l tensor.KVLayout) {
	score := tensor.Score{Scale: 1. / 512} // so that no slot gets all of the attention
	const slots = 2*tensor.BlockSlots + 21
	blocks := make([][]byte, 3)
	for i := range blocks {
		blocks[i] = make([]byte, l.BlockBytes())
	}
	for i := 0; i < slots; {
		n := min(7, slots-i, tensor.BlockSlots-i%tensor.BlockSlots)
		l.PutRun(blocks[i/tensor.BlockSlots], i%tensor.BlockSlots, n, t.numbers(n*l.KDim), l.KDim, t.numbers(n*l.VDim), l.VDim, nil, 0)
		i += n
	}
	valid := []uint64{^uint64(0), 0xffff0f0f00ff3333, 0x155555}
	for _, g := range []int{1, 2, 3, 4, 5, 6, 20} {
		if g == 20 && !l.Latent {
			continue
		}
		q, out := t.numbers(g*l.KDim), make([]float32, g*l.VDim)
		tensor.Attend(out, q, g, score, l, blocks, slots, nil, &t.s)
		t.floats(out)
		tensor.Attend(out, q, g, score, l, blocks, slots, valid, &t.s)
		t.floats(out)
		tensor.Attend(out, q, g, score, l, blocks, tensor.BlockSlots+2, nil, &t.s)
		t.floats(out)
	}
	for _, c := range [...]struct{ nq, g, window int }{{1, 1, 0}, {1, 2, 0}, {5, 2, 0}, {5, 2, 33}} {
		first := slots - c.nq
		q, out := t.numbers(c.nq*c.g*l.KDim), make([]float32, c.nq*c.g*l.VDim)
		tensor.AttendCausal(out, c.g*l.VDim, q, c.g*l.KDim, c.nq, first, c.window, c.g, score, l, blocks, &t.s)
		t.floats(out)
		mass := make([]float32, slots)
		tensor.AttentionMass(mass, q, c.g*l.KDim, c.nq, first, c.g, score, l, blocks, &t.s)
		t.floats(mass)
		capped := tensor.Score{Scale: 1. / 64, Cap: 0.5}
		tensor.AttendCausal(out, c.g*l.VDim, q, c.g*l.KDim, c.nq, first, c.window, c.g, capped, l, blocks, &t.s)
		t.floats(out)
	}
	t.pages(l, blocks)
}

// long tests attention over more slots than the short cases cover.
func (t *selfTest) long() {
	const slots, g, nq = 18*tensor.BlockSlots + 5, 2, 3
	l := tensor.KVLayout{Type: tensor.BF16, KDim: 32, VDim: 32}
	blocks, rows := make([][]byte, 19), t.numbers(tensor.BlockSlots*(l.KDim+l.VDim))
	for i := range blocks {
		blocks[i] = make([]byte, l.BlockBytes())
		rows[i] += 0.5 // make each block different
		l.PutRun(blocks[i], 0, tensor.BlockSlots, rows, l.KDim, rows[tensor.BlockSlots*l.KDim:], l.VDim, nil, 0)
	}
	q, out := t.numbers(nq*g*l.KDim), make([]float32, nq*g*l.VDim)
	tensor.Attend(out, q, g, tensor.Score{Scale: 1. / 512}, l, blocks, slots, nil, &t.s)
	tensor.AttendCausal(out[g*l.VDim:], g*l.VDim, q, g*l.KDim, nq-1, slots-nq+1, 0, g, tensor.Score{Scale: 1. / 512}, l, blocks, &t.s)
	t.floats(out)
}

func (t *selfTest) pages(l tensor.KVLayout, blocks [][]byte) {
	const page, pages = 16, 2 * tensor.BlockSlots / 16
	index, row := make([]byte, l.IndexBytes()+256), make([]float32, 3*l.KDim) // a kernel prefetches beyond the bounds
	for p := range pages {
		slot := p * page % tensor.BlockSlots
		l.Bound(index, p, blocks[p*page/tensor.BlockSlots], slot, slot, slot+page, row)
	}
	t.floats(t.s.ScorePages(l, [][]byte{index}, pages, t.numbers(2*l.KDim), 2))
	turned, key, value := make([]byte, l.BlockBytes()), make([]float32, l.KDim), make([]float32, l.VDim)
	half := l.KDim / 2
	if l.Latent {
		half = (l.KDim - l.VDim) / 2
	}
	angles := t.numbers(2 * half)
	l.RotateKeys(turned, blocks[0], nil, []int32{0, 3, 1}, func(int) (cos, sin []float32) { return angles[:half], angles[half:] }, row)
	for slot := range 4 {
		l.Get(turned, slot, key, value)
		t.floats(key, value)
	}
}

// deltaRule tests the gated delta rule and its gates, with wide, narrow and partial blocks of columns.
func (t *selfTest) deltaRule() {
	const rows, cols = 9, 6*kernel.GroupRows + 5
	s, k, q, v, gate := t.numbers(rows*cols), t.numbers(rows), t.numbers(rows), t.numbers(cols), t.numbers(cols)
	u, read, out, conv := make([]float32, cols), make([]float32, cols), make([]float32, cols), append([]float32(nil), v...)
	tensor.Scale(k, 0.25)
	tensor.Scale(q, 0.25)
	tensor.DeltaPredict(u, s, k, 0.875)
	tensor.DeltaUpdate(u, v, u, 0.375)
	tensor.DeltaRead(read, s, k, q, u, 0.875)
	tensor.DeltaAdvance(out, s, k, q, u, 0.875)
	tensor.SigmoidMul(gate, gate, v)
	tensor.AddProduct(conv, v, u)
	t.floats(u, read, out, s, gate, conv, []float32{f32.Softplus(v[0]), f32.Softplus(-v[0] / 4096)})
}
