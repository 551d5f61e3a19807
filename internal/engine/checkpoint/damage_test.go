package checkpoint_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/modeltest"
	"github.com/shoal-llm/shoal/internal/engine/model/tinyconfig"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// keysOf lists the metadata keys in order.
func keysOf(g *modeltest.GGUF) []string {
	var keys []string
	for _, k := range g.Meta {
		keys = append(keys, k.Name)
	}
	return keys
}

// cut removes the last n bytes of the data.
func cut(g *modeltest.GGUF, n int) {
	left := max(0, len(g.Data)-n)
	g.Data = g.Data[:left:left] // appending must not write into a clone's data
}

// clone copies all but the data, which both share.
func clone(g *modeltest.GGUF) *modeltest.GGUF {
	c := *g
	c.Meta, c.Table = slices.Clone(g.Meta), slices.Clone(g.Table)
	for i := range c.Table {
		c.Table[i].Shape = slices.Clone(c.Table[i].Shape)
	}
	return &c
}

// header is the file up to its data, and the size of the data.
func header(g *modeltest.GGUF) (head []byte, size int) {
	all := g.Bytes()
	return all[:len(all)-len(g.Data)], len(g.Data)
}

// splitGGUF distributes the tensors over n files in runs, like llama-gguf-split: the first has all
// metadata.
func splitGGUF(g *modeltest.GGUF, n int) []*modeltest.GGUF {
	parts := make([]*modeltest.GGUF, n)
	for i := range parts {
		p := &modeltest.GGUF{Version: g.Version, Alignment: g.Alignment}
		if i == 0 {
			p.Meta = slices.Clone(g.Meta)
		}
		p.Set("split.no", i)
		p.Set("split.count", n)
		for j := len(g.Table) * i / n; j < len(g.Table)*(i+1)/n; j++ {
			t, end := g.Table[j], uint64(len(g.Data))
			if j+1 < len(g.Table) {
				end = g.Table[j+1].Offset
			}
			p.Add(t.Name, t.Type, t.Shape, g.Data[t.Offset:end])
		}
		parts[i] = p
	}
	return parts
}

// ggufs are the architectures that a GGUF file can hold; encoders, whose names end in Model, are not read from one.
func ggufs() []string {
	return slices.DeleteFunc(model.Architectures(), func(name string) bool {
		return strings.HasSuffix(name, "Model") ||
			slices.Contains([]string{"Gemma4UnifiedForCausalLM", "Glm4MoeLiteForCausalLM", "GlmForCausalLM", "Qwen2MoeForCausalLM",
				"HYV3ForCausalLM", "LlamaSwiftKVForCausalLM", "DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM"}, name)
	})
}

// writeTiny writes a checkpoint of a few kilobytes, in bf16.
func writeTiny(dir, architecture string) error {
	text, err := tinyconfig.Of(architecture)
	if err != nil {
		return err
	}
	config, err := model.ParseConfig(dir, text, nil)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), text, 0o600); err != nil {
		return err
	}
	return modeltest.Shape{DType: tensor.BF16}.WriteFile(filepath.Join(dir, "model.safetensors"), config.Tensors(), 1)
}
