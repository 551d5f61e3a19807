package launch

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/cuda/kernels"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Operations of every shape launch kernels that exist.
func TestCallsNameKernels(t *testing.T) {
	known := map[string]bool{}
	for _, n := range kernels.Names {
		known[n] = true
	}
	var all []Operation
	for _, dt := range []tensor.DType{tensor.F32, tensor.BF16, tensor.F16, tensor.Q8_0, tensor.Q4_0} {
		all = append(all, Embed{Type: dt, Rows: 1, Cols: 64})
		for _, n := range []int{1, 2, 8, 9, 16, 17, 32, 33, 64, 65, 1000} {
			all = append(all, Product{W: Weight{Type: dt, Rows: 40, Cols: 64}, N: n})
		}
	}
	all = append(all, Product{W: Weight{Type: tensor.Q4_0, Rows: 8192, Cols: 64}, N: 100},
		Product{W: Weight{Type: tensor.Q8_0, Rows: 40, Cols: 64}, N: 2, Tiled: true},
		Attend{Cache: Cache{Type: tensor.BF16, KVHeads: 2, HeadDim: 64}, Heads: 4, N: 1, Slots: 5, Rotation: Rotation{Cos: 1}})
	for _, dt := range []tensor.DType{tensor.F32, tensor.BF16, tensor.Int8} {
		c := Cache{Type: dt, KVHeads: 2, HeadDim: 64}
		all = append(all, RestoreRows{Type: dt, HeadDim: 64, N: 3}, RopeWrite{Cache: c, Heads: 8, N: 3},
			Attend{Cache: c, Heads: 8, N: 30, Slots: 5000},
			Attend{Cache: c, Heads: 8, N: 3, Slots: 5000}, Attend{Cache: Cache{Type: dt, KVHeads: 2, HeadDim: 128}, Heads: 8, N: 1, Slots: 1000},
			Attend{Cache: c, Heads: 8, N: 3, Slots: 5, Prompt: true, To: Rounded{1, 2}, Out: 3},
			Attend{Cache: c, Heads: 8, N: 3000, Slots: 5000, Prompt: true})
		all = append(all, Mass{Cache: c, Heads: 8, N: 3, Slots: 100, Ld: 100}, Mass{Cache: c, Heads: 8, N: 3, Slots: 100, Ld: 100, Prompt: true})
	}
	all = append(all, Gather{N: 2, Words: 3}, Weigh{Rows: 1, Cols: 3}, JoinExperts{PerToken: 2, Rows: 1, Cols: 3}, Norm{Rows: 1, Cols: 64},
		Norm{Out: 1, Rows: 1, Cols: 64}, Quantize{Rows: 1, Cols: 64}, Gate{Rows: 1, Cols: 64}, Add{Rows: 1, Cols: 3},
		Logits{Cap: 30, Rows: 1, Cols: 3}, Best{Rows: 1, Cols: 3})
	for _, o := range all {
		if x, ok := o.(smaller); ok {
			all = append(all, x.small())
		}
	}
	for _, o := range all {
		calls, err := o.Calls()
		if err != nil || len(calls) == 0 {
			t.Errorf("%+v: %d calls, %v", o, len(calls), err)
		}
		for _, c := range calls {
			if !known[c.Kernel] {
				t.Errorf("%+v launches %q, which does not exist", o, c.Kernel)
			}
		}
	}
}

func TestCallsRefuse(t *testing.T) {
	for message, o := range map[string]Operation{
		"must be a multiple of 32": Norm{Rows: 1, Cols: 33},
		"at most 8192":             Norm{Rows: 1, Cols: 8224},
		"a product of iq4_nl":      Product{W: Weight{Type: tensor.IQ4_NL, Rows: 16, Cols: 64}, N: 1},
		"rotation within attention": Attend{Cache: Cache{Type: tensor.F32, KVHeads: 2, HeadDim: 64},
			Heads: 4, N: 2, Slots: 5, Rotation: Rotation{Cos: 1}},
		"5 query heads for 2":   Attend{Cache: Cache{Type: tensor.F32, KVHeads: 2, HeadDim: 64}, Heads: 5, N: 1},
		"at most 256":           RopeWrite{Cache: Cache{Type: tensor.F32, KVHeads: 2, HeadDim: 264}, Heads: 2, N: 1},
		"heads of 12 elements":  RestoreRows{Type: tensor.BF16, HeadDim: 12, N: 1},
		"a cache of f16":        RopeWrite{Cache: Cache{Type: tensor.F16, KVHeads: 2, HeadDim: 64}, Heads: 2, N: 1},
		"before rounding":       Attend{Cache: Cache{Type: tensor.F32, KVHeads: 2, HeadDim: 80}, Heads: 2, N: 1, Slots: 1, To: Rounded{1, 2}},
		"an embedding of mxfp4": Embed{Type: tensor.MXFP4, Rows: 1, Cols: 64},
	} {
		if _, err := o.Calls(); err == nil || !strings.Contains(err.Error(), message) {
			t.Errorf("%+v: %v, want %q", o, err, message)
		}
	}
}

// Packed weights have every element of a row at its place in the layout.
func TestPack(t *testing.T) {
	const rows, cols = 83, 96 // 6 panels: a group of 4, and 2
	for _, dt := range []tensor.DType{tensor.F32, tensor.BF16, tensor.F16, tensor.Q8_0, tensor.Q4_0} {
		w, err := tensor.NewWeight(dt, rows, cols)
		if err != nil {
			t.Fatal(err)
		}
		r := rand.New(rand.NewPCG(3, 4))
		row := make([]float32, cols)
		for i := range rows {
			for j := range row {
				row[j] = float32(r.NormFloat64())
			}
			w.SetRow(i, row)
		}
		d, s := PackedBytes(dt, rows, cols)
		data, scales := make([]byte, d), make([]byte, s)
		if err := Pack(data, scales, w); err != nil {
			t.Fatal(err)
		}
		for i := range rows {
			w.Row(i, row)
			for j, want := range row {
				if got := element(dt, data, scales, cols, i, j); got != want {
					t.Fatalf("%v: element %d, %d is %g, want %g", dt, i, j, got, want)
				}
			}
		}
		if err := Pack(data[1:], scales, w); err == nil {
			t.Errorf("%v: packed into too little memory", dt)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// element reads one weight by the layout of Pack.
func element(dt tensor.DType, data, scales []byte, cols, row, col int) float32 {
	panel, row := row/PanelRows, row%PanelRows
	widen := func(dt tensor.DType, b []byte) float32 {
		var x [1]float32
		tensor.Widen(x[:], b[:dt.BytesPerRow(1)], dt)
		return x[0]
	}
	half := func(b []byte) float32 { // finite
		h := int(binary.LittleEndian.Uint16(b))
		exponent, mantissa := h>>10&31, h&1023
		if exponent > 0 {
			mantissa |= 1024
		}
		x := math.Ldexp(float64(mantissa), max(exponent, 1)-25)
		return float32(math.Copysign(x, float64(0x7fff-h)))
	}
	switch dt {
	case tensor.F32:
		return widen(dt, data[((panel*cols/4+col/4)*PanelRows+row)*16+col%4*4:])
	case tensor.F16:
		return half(data[((panel*cols/8+col/8)*PanelRows+row)*16+col%8*2:])
	case tensor.BF16:
		return widen(dt, data[((panel*cols/8+col/8)*PanelRows+row)*16+col%8*2:])
	}
	at := (panel*cols/block+col/block)*PanelRows + row
	if dt == tensor.Q8_0 {
		return half(scales[2*at:]) * float32(int8(data[at*32+col%32]))
	}
	return half(scales[2*at:]) * float32(int(data[at*16+col%16]>>(col%32/16*4)&15)-8)
}
