package socket

import (
	"bytes"
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/model/modeltest"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// TestFP8 serves a checkpoint in FP8 blocks and one with the same numbers in F32. Both must give
// the same bits, although the blocks do not align with the sockets' slices.
func TestFP8(t *testing.T) {
	ck, err := checkpoint.Open(filepath.Join(modelData, "mixtral"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	quantized, plain := filepath.Join(dir, "q"), filepath.Join(dir, "p")
	if err := modeltest.FP8(ck, 48, 24, quantized, plain); err != nil {
		t.Fatal(err)
	}
	if err := ck.Close(); err != nil {
		t.Fatal(err)
	}
	want, got := mixed("full")[:4], mixed("full")[:4]
	newRig(t, rigConfig{dir: plain, sockets: 1, mapping: topology.Gather, kv: tensor.F32}).generate(64, want...)
	newRig(t, rigConfig{dir: quantized, sockets: 3, mapping: topology.Reduce, kv: tensor.F32}).generate(64, got...)
	if !bytes.Equal(bits(t, got), bits(t, want)) {
		t.Error("FP8 weights and the same numbers in F32 give different results")
	}
}

// TestHeldFormsSameBits serves models that keep the codes of their files. Every number of sockets
// gives the same bits, which are near those of the same weights in float32.
func TestHeldFormsSameBits(t *testing.T) {
	for _, name := range []string{"quantized/gptq", "quantized/w4a16_asym", "quantized/mxfp4",
		"gpt_oss_mxfp4", "quantized/w8a8", "quantized/fp8_block", "quantized/w4a16/mixed"} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(modelData, name)
			if from, ok := strings.CutSuffix(name, "/mixed"); ok {
				dir = withPlainKeys(t, filepath.Join(modelData, from))
			}
			ck, err := checkpoint.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			held := ck.Config.DType
			if err := ck.Close(); err != nil {
				t.Fatal(err)
			}
			g := readGoldens(t, dir)
			generate := func(sockets int, m topology.Mapping) (out []*request) {
				for i, it := range g.Items {
					out = append(out, &request{prompt: it.Prompt, max: 8, owner: i, params: greedy(len(it.Logits))})
				}
				newRig(t, rigConfig{dir: dir, sockets: sockets, mapping: m, kv: tensor.F32, weights: held.String()}).generate(64, out...)
				return out
			}
			want := generate(1, topology.Gather)
			for i, it := range g.Items {
				compareLogits(t, want[i].scores[0].Drawn[0].Top, it.Logits, 1)
			}
			for _, n := range []int{3, 4} {
				for _, m := range topology.Mappings {
					if !bytes.Equal(bits(t, generate(n, m)), bits(t, want)) {
						t.Errorf("%d sockets, %v: other bits than on one", n, m)
					}
				}
			}
		})
	}
}

// withPlainKeys copies a checkpoint and stores the key projection of layer 0 and two FFN projections of
// layer 1 as bf16, as a form does with the modules that it does not quantize. Their products share tokens
// with those of int4.
func withPlainKeys(t *testing.T, from string) string {
	t.Helper()
	ck, err := checkpoint.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	file, err := os.ReadFile(filepath.Join(from, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	header, data := modeltest.Parts(file)
	for _, name := range []string{"model.layers.0.self_attn.k_proj", "model.layers.1.self_attn.k_proj",
		"model.layers.1.mlp.up_proj", "model.layers.1.mlp.down_proj"} {
		x, err := ck.Tensor(name + ".weight")
		if err != nil {
			t.Fatal(err)
		}
		for part := range header {
			if strings.HasPrefix(part, name+".") {
				delete(header, part)
			}
		}
		begin := len(data)
		row := make([]float32, x.Cols())
		for r := range x.Rows() {
			x.Row(row, r, 0, len(row))
			for _, v := range row {
				data = binary.LittleEndian.AppendUint16(data, uint16(math.Float32bits(v)>>16))
			}
		}
		header[name+".weight"] = map[string]any{"dtype": "BF16", "shape": x.Shape, "data_offsets": []int{begin, len(data)}}
	}
	// The packed tensors are still in the data, under names of statistics that are not read.
	used := map[int]bool{}
	for _, e := range header {
		if m, ok := e.(map[string]any); ok && m["data_offsets"] != nil {
			switch at := m["data_offsets"].(type) {
			case []any:
				used[int(at[0].(float64))] = true
			case []int:
				used[at[0]] = true
			}
		}
	}
	old, _ := modeltest.Parts(file)
	for name, e := range old {
		if at, ok := e.(map[string]any)["data_offsets"].([]any); ok && !used[int(at[0].(float64))] {
			header[name+".input_scale"] = e
		}
	}
	dir := t.TempDir()
	for _, name := range []string{"config.json", "generation_config.json", "goldens.json"} {
		text, err := os.ReadFile(filepath.Join(from, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "model.safetensors"), modeltest.File(header, data), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}
