package socket

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/modeltest"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/testlevel"
	"github.com/shoal-llm/shoal/topology"
)

// resized writes a model with the configuration of a test model and other sizes, and with random weights.
func resized(t *testing.T, name string, sizes map[string]int) string {
	t.Helper()
	read := func(file string) []byte {
		b, err := os.ReadFile(filepath.Join(modelData, name, file))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	var config map[string]any
	if err := json.Unmarshal(read("config.json"), &config); err != nil {
		t.Fatal(err)
	}
	for k, n := range sizes {
		if config[k] == nil {
			t.Fatalf("%s has no %s", name, k)
		}
		config[k] = n
	}
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	dir, generation := t.TempDir(), read("generation_config.json")
	c, err := model.ParseConfig(dir, text, generation)
	if err != nil {
		t.Fatal(err)
	}
	for file, b := range map[string][]byte{"config.json": text, "generation_config.json": generation} {
		if err := os.WriteFile(filepath.Join(dir, file), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := (modeltest.Shape{DType: tensor.BF16}).WriteFile(filepath.Join(dir, "model.safetensors"), c.Tensors(), 7); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestCardExperts checks that models with experts have the processor's tokens and log-probabilities, to the bit:
// routers of every kind that a card serves, with and without shared experts, on a card alone and on several ranks.
func TestCardExperts(t *testing.T) {
	c := testCard(t)
	qwen2 := map[string]int{"hidden_size": 64, "num_attention_heads": 8, "intermediate_size": 64,
		"moe_intermediate_size": 32, "shared_expert_intermediate_size": 64}
	glm4 := map[string]int{"hidden_size": 64, "intermediate_size": 64, "moe_intermediate_size": 32}
	for i, x := range []struct {
		model   string
		sizes   map[string]int
		weights string
		kv      tensor.DType
		kinds   string // devices of the ranks (ranksOn); c: a card alone
		mapping topology.Mapping
	}{
		{"mixtral", map[string]int{"intermediate_size": 96}, "q8_0", tensor.BF16, "c", topology.Gather},
		{"qwen3_moe", map[string]int{"moe_intermediate_size": 64}, "bf16", tensor.BF16, "c", topology.Gather},
		{"qwen2_moe", qwen2, "q4_0", tensor.Int8, "c", topology.Gather}, // shared experts with a factor
		{"glm4_moe", glm4, "q8_0", tensor.F32, "c", topology.Gather},    // groups, biases of the router, shared experts
		{"granitemoe", map[string]int{"intermediate_size": 32}, "f32", tensor.F32, "c", topology.Gather},
		{"qwen2_moe", qwen2, "q8_0", tensor.BF16, "cp", topology.Gather},
		{"glm4_moe", glm4, "q8_0", tensor.BF16, "pc", topology.Reduce},
	} {
		if !testlevel.Long() && realCard == "" && i%2 > 0 {
			continue
		}
		t.Run(fmt.Sprint(x.model, " ", x.weights, " ", x.kv, " ", x.kinds, " ", x.mapping), func(t *testing.T) {
			dir := resized(t, x.model, x.sizes)
			base := rigConfig{dir: dir, sockets: 1, mapping: topology.Gather, weights: x.weights, kv: x.kv}
			want, got := load("full"), load("full")
			newRig(t, base).generate(200, want...)
			base.device, base.sockets, base.mapping = onCard(t, c, 1<<25, dir, x.kv), len(x.kinds), x.mapping
			if len(x.kinds) > 1 {
				base.device, base.shares = ranksOn(t, x.kinds, dir, x.kv), []float64{2, 3}
			}
			newRig(t, base).generate(31, got...)
			if !bytes.Equal(bits(t, got), bits(t, want)) {
				t.Error("results differ from those of the processor")
			}
		})
	}
}
