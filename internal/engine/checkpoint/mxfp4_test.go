package checkpoint_test

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/gguf"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/modeltest"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

const packedFolder = "../model/testdata/gpt_oss_mxfp4"

// The experts of a gpt-oss folder and of a GGUF file in MXFP4 are the same numbers, all exact in bf16.
func TestMXFP4(t *testing.T) {
	hub := open(t, packedFolder)
	got := convert(t, hub, func(name string) gguf.Type {
		if strings.Contains(name, "_exps.") {
			return gguf.MXFP4
		}
		return gguf.BF16
	})
	stored := map[string]int{}
	for _, s := range hub.Config.Tensors() {
		equalTensors(t, hub, got, s.Name, 0)
		for _, c := range []*checkpoint.Checkpoint{hub, got} {
			x, err := c.Tensor(s.Name)
			check(t, err)
			stored[x.Stored()]++
			row := make([]float32, x.Cols())
			x.Row(row, 0, 0, len(row))
			for _, v := range row {
				if x.Stored() == "mxfp4" && math.Float32bits(v)&0xffff != 0 {
					t.Fatalf("%s holds %v, which is not exact in bf16", s.Name, v)
				}
			}
		}
	}
	if want := 2 * 3 * 4 * 6; stored["mxfp4"] != want {
		t.Errorf("%v: want %d tensors in mxfp4", stored, want)
	}
	for _, c := range []*checkpoint.Checkpoint{hub, got} {
		attention, experts := c.HeldAs("model.layers.0.self_attn.q_proj.weight", c.Config.DType),
			c.HeldAs("model.layers.0.mlp.experts.1.down_proj.weight", c.Config.DType)
		if c.Config.DType != tensor.MXFP4 || attention != tensor.Q8_0 || experts != tensor.MXFP4 {
			t.Errorf("held as %v, attention as %v, experts as %v", c.Config.DType, attention, experts)
		}
		for _, name := range []string{"model.layers.0.self_attn.q_proj.weight",
			"model.layers.0.mlp.experts.1.down_proj.weight", "lm_head.weight", "model.layers.0.mlp.router.weight"} {
			if planned := c.Config.HeldAs(name, c.Config.DType); planned != c.HeldAs(name, c.Config.DType) {
				t.Errorf("%s is planned as %v", name, planned)
			}
		}
	}
	for _, c := range []*checkpoint.Checkpoint{hub, got} {
		if r, err := c.Verify(t.Context(), nil); err != nil || r.Err() != nil || len(c.Extra()) != 0 {
			t.Errorf("%+v, %v, extra %v", r, err, c.Extra())
		}
	}
}

// packed copies the folder with a change of the header and data of its tensors.
func packed(t *testing.T, change func(header map[string]any, data []byte)) string {
	t.Helper()
	dir := t.TempDir()
	config, err := os.ReadFile(filepath.Join(packedFolder, "config.json"))
	check(t, err)
	put(t, filepath.Join(dir, "config.json"), config)
	file, err := os.ReadFile(filepath.Join(packedFolder, "model.safetensors"))
	check(t, err)
	header, data := modeltest.Parts(file)
	change(header, data)
	put(t, filepath.Join(dir, "model.safetensors"), modeltest.File(header, data))
	return dir
}

func TestMXFP4IsChecked(t *testing.T) {
	const name = "model.layers.1.mlp.experts.down_proj"
	for want, change := range map[string]func(header map[string]any, data []byte){
		name + "_scales\": missing": func(h map[string]any, _ []byte) { h["x.scales"] = h[name+"_scales"]; delete(h, name+"_scales") },
		name + "_blocks\": is U8 of shape": func(h map[string]any,
			_ []byte) {
			h[name+"_blocks"].(map[string]any)["shape"] = []int{6, 32, 16, 2}
		},
		name + "_scales\": is I8 of shape": func(h map[string]any, _ []byte) { h[name+"_scales"].(map[string]any)["dtype"] = "I8" },
	} {
		if _, err := checkpoint.Open(packed(t, change)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	// A scale of 255 is NaN.
	dir := packed(t, func(h map[string]any, data []byte) {
		at := h[name+"_scales"].(map[string]any)["data_offsets"].([]any)
		data[int(at[0].(float64))+5] = 255
	})
	r, err := checkpoint.Verify(dir)
	if err != nil || !errors.Is(r.Err(), model.ErrNotFinite) ||
		!strings.Contains(r.Err().Error(), "experts.0.down_proj.weight\": 32 elements") {
		t.Errorf("%+v, %v", r, err)
	}
	// Blocks without the method in config.json are not part of the model.
	dir = packed(t, func(map[string]any, []byte) {})
	config, err := os.ReadFile("../model/testdata/gpt_oss/config.json")
	check(t, err)
	put(t, filepath.Join(dir, "config.json"), config)
	if _, err := checkpoint.Open(dir); !errors.Is(err, model.ErrMissing) || !errors.Is(err, model.ErrMismatch) {
		t.Error(err)
	}
	if _, err := model.ParseConfig("d", []byte(`{"architectures":["LlamaForCausalLM"],"hidden_size":64,"num_hidden_layers":1,"num_attention_heads":4,"intermediate_size":64,"vocab_size":100,"quantization_config":{"quant_method":"mxfp4"}}`), nil); !errors.Is(err, model.ErrUnsupported) {
		t.Error(err)
	}
}
