package modeltest

import (
	"fmt"
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/gguf"
)

// encoderParts are the names of a block's tensors in llama.cpp's converter.
var encoderParts = strings.NewReplacer("post_attention_layernorm", "attn_output_norm", "self_attn.qkv_proj",
	"attn_qkv", "mlp.gate_up_proj", "ffn_up")

// heads maps the tensors of a reranker's head to their names in llama.cpp's converter, which omits BERT's
// pooler.
var heads = [][2]string{{"classifier.dense", "cls"}, {"head.dense", "cls"}, {"head.norm", "cls.norm"},
	{"classifier.out_proj", "cls.output"}, {"classifier", "cls.output"}}

// ConvertEncoder is Convert for BERT, XLM-RoBERTa, Nomic's BERT and ModernBERT, in float32. pool is the value
// of pooling_type.
func ConvertEncoder(c *checkpoint.Checkpoint, pool uint32) *GGUF {
	g, m := &GGUF{}, c.Config
	arch := map[string]string{"NomicBertModel": "nomic-bert", "ModernBertModel": "modern-bert"}[m.Architecture]
	if arch == "" {
		arch = "bert"
	}
	modern := arch == "modern-bert"
	g.Set("general.architecture", arch)
	for key, n := range map[string]int{"block_count": m.Layers, "context_length": m.MaxPositions, "embedding_length": m.Hidden,
		"feed_forward_length": m.FFN, "attention.head_count": m.Heads} {
		g.Set(arch+"."+key, n)
	}
	g.Set(arch+".attention.layer_norm_epsilon", m.NormEps)
	g.Set(arch+".attention.causal", false)
	g.Set(arch+".pooling_type", pool)
	if arch != "bert" {
		g.Set(arch+".rope.freq_base", float32(m.Rope.Theta))
	}
	if modern {
		g.Set(arch+".attention.sliding_window", 2*(m.Window(1)-1))
		g.Set(arch+".attention.sliding_window_pattern", 3)
		g.Set(arch+".rope.scaling.type", "none")
		g.Set(arch+".vocab_size", m.Vocab)
	}
	add := func(name string, shape []int, values []float32) {
		g.Add(name, gguf.F32, shape, Quantize(gguf.F32, values))
	}
	joint := map[int][]float32{}
	for _, spec := range c.Config.Tensors() {
		t, values := whole(c, spec.Name)
		shape := t.Shape
		name, ending := strings.TrimPrefix(spec.Name, "model."), ".weight"
		if strings.HasSuffix(name, ".bias") {
			ending = ".bias"
		}
		name = strings.TrimSuffix(name, ending)
		i := blockOf(strings.Replace(spec.Name, "model.layers.", "blk.", 1))
		switch {
		case name == "embed_positions":
			shape = []int{m.MaxPositions, m.Hidden}
			values = values[m.Inputs.FirstPosition*m.Hidden:]
			name = "position_embd"
		case name == "embed_tokens":
			name = "token_embd"
		case name == "embed_types":
			name = "token_types"
		case name == "embed_norm":
			name = "token_embd_norm"
		case name == "norm" && modern:
			name = "output_norm"
		case name == "norm":
			name = fmt.Sprintf("blk.%d.layer_output_norm", m.Layers-1)
		case strings.HasSuffix(name, "input_layernorm") && !modern:
			name = fmt.Sprintf("blk.%d.layer_output_norm", i-1)
		case arch == "nomic-bert" && strings.Contains(name, "self_attn.") && !strings.HasSuffix(name, "o_proj"):
			if joint[i] = append(joint[i], values...); len(joint[i]) == 3*m.Hidden*m.Hidden {
				add(fmt.Sprintf("blk.%d.attn_qkv.weight", i), []int{3 * m.Hidden, m.Hidden}, joint[i])
			}
			continue
		case !modern:
			name = ggufParts.Replace(encoderParts.Replace("model." + name))
		default:
			name = ggufParts.Replace(strings.NewReplacer("self_attn.qkv_proj", "attn_qkv", "mlp.gate_up_proj", "ffn_up").Replace("model." + name))
		}
		add(name+ending, shape, values)
	}
	for _, h := range heads {
		for _, ending := range []string{".weight", ".bias"} {
			if _, err := c.Tensor(h[0] + ending); err == nil {
				t, values := whole(c, h[0]+ending)
				add(h[1]+ending, t.Shape, values)
			}
		}
	}
	return g
}

// whole reads a tensor.
func whole(c *checkpoint.Checkpoint, name string) (checkpoint.Tensor, []float32) {
	t, err := c.Tensor(name)
	if err != nil {
		panic(err)
	}
	values := make([]float32, t.Elements())
	for r, n := 0, t.Cols(); r < t.Rows(); r++ {
		t.Row(values[r*n:(r+1)*n], r, 0, n)
	}
	return t, values
}
