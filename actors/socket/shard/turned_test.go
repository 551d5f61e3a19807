package shard

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/modeltest"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// packedFolder copies a folder. Matrices whose names end in one of some suffixes get random codes of 4 bits, with a
// scale for each 32 columns, as compressed-tensors stores them.
func packedFolder(t *testing.T, from string, scale float32, suffixes ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(from, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(filepath.Join(from, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	var config map[string]any
	if err := json.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	config["quantization_config"] = map[string]any{"quant_method": "compressed-tensors", "format": "pack-quantized",
		"config_groups": map[string]any{"group_0": map[string]any{"weights": map[string]any{"num_bits": 4, "group_size": 32}}}}
	if text, err = json.Marshal(config); err != nil {
		t.Fatal(err)
	}
	old, data := modeltest.Parts(file)
	header, out, r, n := map[string]any{}, []byte(nil), rand.New(rand.NewPCG(1, 2)), 0
	add := func(name, dtype string, shape []int, data []byte) {
		header[name] = map[string]any{"dtype": dtype, "shape": shape, "data_offsets": []int{len(out), len(out) + len(data)}}
		out = append(out, data...)
	}
	for name, e := range old {
		entry, ok := e.(map[string]any)
		if !ok || name == "__metadata__" {
			continue
		}
		var shape []int
		for _, d := range entry["shape"].([]any) {
			shape = append(shape, int(d.(float64)))
		}
		at := entry["data_offsets"].([]any)
		packed := false
		for _, suffix := range suffixes {
			packed = packed || strings.HasSuffix(name, suffix+".weight")
		}
		if !packed {
			add(name, entry["dtype"].(string), shape, data[int(at[0].(float64)):int(at[1].(float64))])
			continue
		}
		n++
		module, rows, cols := strings.TrimSuffix(name, ".weight"), shape[0], shape[1]
		if cols%32 != 0 {
			t.Fatalf("%s has %d columns", name, cols)
		}
		codes, scales := make([]byte, rows*cols/2), make([]byte, 0, rows*cols/8)
		for i := range codes {
			codes[i] = byte(r.Uint32())
		}
		for range rows * cols / 32 {
			scales = binary.LittleEndian.AppendUint32(scales, math.Float32bits(scale*float32(r.IntN(8)+1)))
		}
		add(module+".weight_packed", "I32", []int{rows, cols / 8}, codes)
		add(module+".weight_scale", "F32", []int{rows, cols / 32}, scales)
		add(module+".weight_shape", "I64", []int{2},
			binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, uint64(rows)), uint64(cols)))
	}
	if n == 0 {
		t.Fatal("no matrix has one of the names")
	}
	dir := t.TempDir()
	for name, data := range map[string][]byte{"config.json": text, "model.safetensors": modeltest.File(header, out)} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// loadWhole loads a folder for one rank.
func loadWhole(t *testing.T, dir string) (*checkpoint.Checkpoint, *Weights, error) {
	t.Helper()
	ck, err := checkpoint.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ck.Close() })
	place, err := topology.Place(1, topology.Gather, ShapeOf(&ck.Config), make([]topology.Member, 1))
	if err != nil {
		t.Fatal(err)
	}
	pool := tensor.NewPool(2)
	t.Cleanup(pool.Close)
	w, err := Load(t.Context(), ck, place, 0, ck.Config.DType, Options{Pool: pool})
	if err == nil {
		t.Cleanup(w.Close)
	}
	return ck, w, err
}

// relative returns the error of rows of w, compared with rows of a matrix of the files from first on.
func relative(t *testing.T, ck *checkpoint.Checkpoint, w *tensor.Weight, at int, name string, rows int) float64 {
	t.Helper()
	x, err := ck.Tensor(name)
	if err != nil {
		t.Fatal(err)
	}
	var f fidelity
	row, part := make([]float32, x.Cols()), make([]float32, x.Cols())
	for r := range rows {
		x.Row(row, r, 0, len(row))
		w.Row(at+r, part)
		for i, v := range row {
			f.squaredError, f.squares = f.squaredError+math.Pow(float64(part[i]-v), 2), f.squares+float64(v)*float64(v)
		}
	}
	return f.result(w.Type).Error
}

// The up projection of latents is applied to queries transposed, so its codes do not have the scales of its
// blocks there. It is held as q8_0 if the rest is held as int4.
func TestTurnedCodes(t *testing.T) {
	ck, s, err := loadWhole(t, packedFolder(t, "../../../internal/engine/model/testdata/deepseek_v3", 0.01, "kv_b_proj", "kv_a_proj_with_mqa"))
	if err != nil {
		t.Fatal(err)
	}
	d := &ck.Config.Latent
	if ck.Config.DType != tensor.Int4 {
		t.Fatalf("held as %v", ck.Config.DType)
	}
	for i, l := range s.Layers {
		w, n := l.(*layer.Weights).Latent, ck.Config.Layer(i).Latent
		x, err := ck.Tensor(n.KVUp.Weight)
		if err != nil {
			t.Fatal(err)
		}
		var f fidelity
		row, part := make([]float32, d.Rank), make([]float32, d.Nope)
		for head := range ck.Config.Heads {
			for c := range d.Rank {
				w.KUp[head].Row(c, part)
				for k, v := range part {
					x.Row(row[:1], head*(d.Nope+d.Value)+k, c, c+1)
					f.squaredError, f.squares = f.squaredError+math.Pow(float64(v-row[0]), 2), f.squares+float64(row[0])*float64(row[0])
				}
			}
			for r := range d.Value {
				x.Row(row, head*(d.Nope+d.Value)+d.Nope+r, 0, d.Rank)
				part := make([]float32, d.Rank)
				w.VUp[head].Row(r, part)
				for k, v := range part {
					f.squaredError, f.squares = f.squaredError+math.Pow(float64(v-row[k]), 2), f.squares+float64(row[k])*float64(row[k])
				}
			}
		}
		if e := f.result(w.KUp[0].Type).Error; e > 0.01 {
			t.Errorf("layer %d: the up projection is held as %v with an error of %.2g", i, w.KUp[0].Type, e)
		}
	}
}

// A matrix that is joined from several of the files is not held as int4 if one of them has no codes.
func TestJoinedWithPlain(t *testing.T) {
	ck, s, err := loadWhole(t, packedFolder(t, "../../../internal/engine/model/testdata/deepseek_v32", 0.01, "kv_a_proj_with_mqa"))
	if err != nil {
		t.Fatal(err)
	}
	for i, l := range s.Layers {
		w, n := l.(*layer.Weights).Latent, ck.Config.Layer(i).Latent
		parts, rows := n.Down(&ck.Config.Latent)
		at := 0
		for k, p := range parts {
			if p.Order == (model.Order{}) {
				if e := relative(t, ck, w.Down, at, p.Weight, rows[k]); e > 0.01 {
					t.Errorf("%s is held as %v with an error of %.2g", p.Weight, w.Down.Type, e)
				}
			}
			at += rows[k]
		}
	}
	mixed := packedFolder(t, "../../../internal/engine/model/testdata/qwen3_5", 0.01, "linear_attn.out_proj")
	if ck, s, err = loadWhole(t, mixed); err != nil {
		t.Fatal(err)
	}
	for i, l := range s.Layers {
		if w := l.(*layer.Weights).Delta; w != nil && w.In.Type != tensor.Q8_0 {
			t.Errorf("layer %d of %s: the joint projection is held as %v", i, ck.Dir, w.In.Type)
		}
	}
	mixed = packedFolder(t, "../../../internal/engine/model/testdata/deepseek_v3", 0.01, "experts.0.gate_proj")
	if ck, s, err = loadWhole(t, mixed); err != nil {
		t.Fatal(err)
	}
	for i, l := range s.Layers {
		w := l.(*layer.Weights)
		if w.Experts == nil {
			continue
		}
		gate, _, _ := ck.Config.Layer(i).Experts.Expert(3)
		if e := relative(t, ck, w.Experts.Gate.At(3), 0, gate, ck.Config.MoE.FFN); e > 0.01 {
			t.Errorf("%s is held as %v with an error of %.2g", gate, w.Experts.Gate.At(3).Type, e)
		}
	}
}

// A damaged scale of the up projection of latents is an error, as that of any other matrix.
func TestDamagedTurned(t *testing.T) {
	_, _, err := loadWhole(t, packedFolder(t, "../../../internal/engine/model/testdata/deepseek_v3", float32(math.Inf(1)), "kv_b_proj"))
	if !errors.Is(err, model.ErrNotFinite) || !strings.Contains(err.Error(), "kv_b_proj") {
		t.Errorf("got %v", err)
	}
}
