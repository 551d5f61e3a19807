package shard

import (
	"path/filepath"
	"testing"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
	"github.com/shoal-llm/shoal/topology"
)

// Forms whose codes and scales a type in memory has are kept without loss, on every rank and in both
// mappings. The error of the others is bounded. Matrices that are not quantized are held as q8_0.
func TestFormsAreKept(t *testing.T) {
	pool := tensor.NewPool(2)
	defer pool.Close()
	for name, want := range map[string]struct {
		dt   tensor.DType
		most float64 // relative error of the layers
	}{
		"gptq": {tensor.Int4, 0}, "gptq_sym": {tensor.Int4, 0}, "gptq3": {tensor.Int4, 0}, "gptq8": {tensor.Q8_0, 0}, "awq": {tensor.Int4, 0},
		"w4a16": {tensor.Int4, 0}, "w4a16_asym": {tensor.Int4, 0}, "w8a16": {tensor.Q8_0, 0},
		"w8a8": {tensor.Q8_0, 0}, "mxfp4": {tensor.MXFP4, 0},
		"gptq_v2_act_order": {tensor.Q8_0, 0.01}, "bnb_int8": {tensor.Q8_0, 0.001}, "nf4": {tensor.Q8_0, 0.01}, "fp4": {tensor.Q8_0, 0.01},
		"torchao_int4": {tensor.Int4, 0}, "torchao_int8": {tensor.Q8_0, 0}, "torchao_fp8": {tensor.BF16, 0.003},
		"nvfp4": {tensor.Q8_0, 0.01}, "nvfp4_modelopt": {tensor.Q8_0, 0.01},
		"fp8_block": {tensor.BF16, 0.003}, "fp8_channel": {tensor.BF16, 0.003}, "fp8_tensor": {tensor.BF16, 0.003},
	} {
		t.Run(name, func(t *testing.T) {
			ck, err := checkpoint.Open(filepath.Join("../../../internal/engine/model/testdata/quantized", name))
			if err != nil {
				t.Fatal(err)
			}
			defer ck.Close()
			if ck.Config.DType != want.dt {
				t.Fatalf("held as %v, want %v", ck.Config.DType, want.dt)
			}
			for _, mapping := range topology.Mappings {
				place, err := topology.Place(1, mapping, ShapeOf(&ck.Config),
					[]topology.Member{{ID: "a", Share: 1}, {ID: "b", Share: 2}, {ID: "c", Share: 1}})
				if err != nil {
					t.Fatal(err)
				}
				for rank := range place.Slices {
					s, err := Load(t.Context(), ck, place, rank, want.dt, Options{Pool: pool})
					if err != nil {
						t.Fatal(err)
					}
					if n := Bytes(&ck.Config, place, rank, want.dt); n != s.Bytes() {
						t.Errorf("%d bytes are loaded, %d are predicted", s.Bytes(), n)
					}
					if head := s.Ends.(*layer.Ends).Head; head != nil && kernel.Quantized(want.dt) && head.Type != tensor.Q8_0 {
						t.Errorf("the head is held as %v", head.Type)
					}
					for i, l := range s.Layers {
						w, n := l.(*layer.Weights), ck.Config.Layer(i)
						me := cutOf(&ck.Config, i, place, rank)
						for _, m := range []struct {
							w    *tensor.Weight
							name string
							rows topology.Range
						}{{w.Q, n.Q.Weight, me.q}, {w.K, n.K.Weight, me.k}, {w.V, n.V.Weight, me.k}, {w.O, n.O.Weight, me.out},
							{w.Gate, n.Gate.Weight, me.ffn}, {w.Up, n.Up.Weight, me.ffn}, {w.Down, n.Down.Weight, me.down}} {
							if m.w == nil {
								continue
							}
							x, err := ck.Tensor(m.name)
							if err != nil {
								t.Fatal(err)
							}
							var f fidelity
							row := make([]float32, m.w.Span().Len())
							for r := range m.w.Rows {
								x.Row(row, m.rows.Lo+r, m.w.Span().Lo, m.w.Span().Hi)
								f.add(m.w, r, row, 0, true)
							}
							if e := f.result(want.dt).Error; e > want.most || m.w.Type != want.dt {
								t.Errorf("%v, rank %d: %s is held as %v with an error of %.2g, allowed %.2g", mapping, rank, m.name, m.w.Type, e, want.most)
							}
						}
					}
					if f := s.Fidelity; want.most == 0 && f.Kept < 0.5 || f.Error > want.most+0.01 {
						t.Errorf("reported: %+v", f)
					}
					s.Close()
				}
			}
		})
	}
}

// Forms whose codes are kept have no error, and the others a small one.
func TestHeldError(t *testing.T) {
	for name, most := range map[string]float64{"gptq": 0, "awq": 0, "w4a16_asym": 0, "mxfp4": 0, "w8a8": 0,
		"gptq8": 0, "bnb_int8": 0.0005, "nf4": 0.007, "nvfp4": 0.007, "fp8_block": 0.003, "gptq_v2_act_order": 0.007} {
		c, err := checkpoint.Open(filepath.Join("../../../internal/engine/model/testdata/quantized", name))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		e, err := HeldError(c, c.Config.DType)
		if err != nil {
			t.Fatal(err)
		}
		if e > most || most > 0 && e < most/20 {
			t.Errorf("%s held as %v: relative error %.2g, want at most %g", name, c.Config.DType, e, most)
		}
		if e, err = HeldError(c, tensor.F32); err != nil || e != 0 {
			t.Errorf("%s held as f32: relative error %g, %v", name, e, err)
		}
	}
}
