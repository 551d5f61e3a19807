package families

import "github.com/shoal-llm/shoal/internal/engine/model"

// Cohere Command R and Aya. Differences from llama.go: one norm, which subtracts the mean, feeds
// both attention and FFN; pairs of neighbours rotate; logits have a factor.
//
//	h = LayerNorm(x, AttnNorm)
//	x += O attention(RoPE(Q h), RoPE(K h), V h) + Down (SiLU(Gate h) * Up h)
//	logits = logit_scale * Embedding LayerNorm(x, Norm)
//
// With use_qk_norm, a LayerNorm precedes the rotation of query and key heads, with weights of its own
// for each head: QNorm (heads, dim), KNorm (kv, dim).
//
// Cohere 2 has a sliding window in three of four layers; the other layers do not rotate.
func init() {
	defaults := map[string]string{"max_position_embeddings": "8192"}
	model.Register(model.Family{Name: cohere, Defaults: defaults, Read: readCohere, Layer: parallelLayer})
	model.Register(model.Family{Name: "Cohere2ForCausalLM", Defaults: defaults, Read: readCohere2, Layer: parallelLayer})
}

const cohere = "CohereForCausalLM"

func readCohere(f *model.Fields, c *model.Config) {
	c.Tied = f.Bool("tie_word_embeddings", true)
	c.QKVBias = f.Bool("attention_bias", false)
	c.OutBias = c.QKVBias
	c.NormEps = float32(f.Number("layer_norm_eps", 1e-5, 1e-12, 0.1))
	c.MeanNorm, c.Parallel, c.Neighbours = true, true, true
	c.Multipliers.Logits = float32(f.Number("logit_scale", 0.0625, 1e-6, 1e6))
	f.ReadActivation("hidden_act", "silu")
	if c.QKNorm = f.Bool("use_qk_norm", false); c.QKNorm {
		c.QKNormOf = model.OfOwnHeads
	}
	for _, key := range []string{"use_parallel_block", "use_gated_activation"} {
		if !f.Bool(key, true) {
			f.Refuse(key, "false: only true is implemented")
		}
	}
	theta := 10000.0
	if c.Architecture == cohere {
		theta = 500000
	}
	model.ReadRope(f, c, theta)
}

func readCohere2(f *model.Fields, c *model.Config) {
	f.MustBe("use_qk_norm", false)
	readCohere(f, c)
	pattern := f.Size("sliding_window_pattern", 4, model.MaxLayers)
	model.ReadWindows(f, c, 4096, func(layer int) bool { return (layer+1)%pattern != 0 })
	for layer := range c.Layers {
		if c.Windows == nil || c.Windows[layer] == 0 {
			c.Unrotated = append(c.Unrotated, layer)
		}
	}
}

// parallelLayer has one norm for attention and FFN.
func parallelLayer(c *model.Config, i int) model.LayerSpec {
	l := model.DecoderLayer(c, i)
	l.FFNNorm = ""
	return l
}
