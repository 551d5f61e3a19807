package model

import (
	"fmt"
	"math"
	"slices"

	"shoal/tensor"
)

// Gemma 3, text (Gemma Team, arXiv 2503.19786). Against llama.go:
//
//	x = embedding[token] * sqrt(hidden)                   rounded as the embedding is stored
//	for each layer:
//	    h = RMSNorm(x, AttnNorm)
//	    q, k, v = Q h, K h, V h
//	    q, k = RoPE(RMSNorm(q, QNorm)), RoPE(RMSNorm(k, KNorm))
//	    x += RMSNorm(O attention(q, k, v), PostAttnNorm)  scores scaled by 1/sqrt(query_pre_attn_scalar)
//	    h = RMSNorm(x, MLPNorm)
//	    x += RMSNorm(Down (GELU(Gate h) * Up h), PostMLPNorm)
//	logits = Embedding RMSNorm(x, Norm)                   optionally capped: c tanh(logits/c)
//
// Every norm multiplies by 1 + its weight. Five of six layers (of every
// sliding_window_pattern, or as layer_types says) attend to a sliding window, with
// rotary positions of their own base; the sixth attends to everything.
func init() {
	register(architecture{
		Name: "Gemma3ForCausalLM",
		defaults: map[string]string{"hidden_size": "2304", "intermediate_size": "9216", "num_hidden_layers": "26", "num_attention_heads": "8",
			"num_key_value_heads": "4", "head_dim": "256", "vocab_size": "262208", "max_position_embeddings": "131072"},
		read:    readGemma3,
		tensors: llamaTensors,
		extra:   llamaExtra,
	})
}

func readGemma3(f *fields, c *Config) {
	c.Tied = f.Bool("tie_word_embeddings", true)
	c.QKVBias = f.Bool("attention_bias", false)
	c.OutBias = c.QKVBias
	c.QKNorm, c.PostNorms, c.NormsAddOne, c.ScaledEmbedding = true, true, true, true
	c.Activation = tensor.GELUTanh
	f.OneOf("hidden_activation", "gelu_pytorch_tanh", "gelu_pytorch_tanh")
	c.QueryScale = f.Number("query_pre_attn_scalar", 256, 1e-3, 1e6)
	c.LogitCap = float32(f.Number("final_logit_softcapping", 0, 1e-3, 1e6))
	if f.has("attn_logit_softcapping") {
		f.fail("attn_logit_softcapping", ErrUnsupported, "attention scores are not capped here; published Gemma 3 models have none")
	}
	if f.Bool("use_bidirectional_attention", false) {
		f.fail("use_bidirectional_attention", ErrUnsupported, "attention here is causal")
	}
	pattern := f.Size("sliding_window_pattern", f.Size("_sliding_window_pattern", 6, maxLayers), maxLayers)
	readWindows(f, c, 4096, func(layer int) bool { return (layer+1)%pattern != 0 })
	if p := f.Object("rope_parameters"); p != nil && (p.has("full_attention") || p.has("sliding_attention")) {
		full, local := p.Object("full_attention"), p.Object("sliding_attention")
		c.Rope, c.LocalRope = Rope{Theta: 1e6}, Rope{Theta: 1e4}
		if full != nil {
			c.Rope = full.rope(1e6)
			f.take(full)
		}
		if local != nil {
			c.LocalRope = local.rope(1e4)
			f.take(local)
		}
		f.take(p)
		return
	}
	c.Rope = readRope(f, 1e6)
	c.LocalRope = Rope{Theta: f.Number("rope_local_base_freq", 1e4, 2, maxTheta)}
}

// readWindows says which layers attend to a sliding window: those that layer_types
// names, else those that slides picks.
func readWindows(f *fields, c *Config, def int, slides func(layer int) bool) {
	var kinds []string // one a layer
	if f.get("layer_types", &kinds, "a list of names") {
		if len(kinds) != c.Layers {
			f.fail("layer_types", ErrFormat, "%d entries for %d layers", len(kinds), c.Layers)
			return
		}
		for i, k := range kinds {
			if k != "sliding_attention" && k != "full_attention" {
				f.fail("layer_types", ErrUnsupported, "layer %d: %q is not supported; known: full_attention, sliding_attention", i, clip(k))
				return
			}
		}
		slides = func(layer int) bool { return kinds[layer] == "sliding_attention" }
	}
	windows, some := make([]int, c.Layers), false
	for i := range windows {
		if slides(i) {
			windows[i], some = f.Size("sliding_window", def, maxPositions), true
		}
	}
	if some {
		c.Windows = windows
	}
}

// dropIdle forgets windows that hide nothing, being as long as the context.
func (c *Config) dropIdle() {
	if c.Windows != nil && slices.Max(c.Windows) >= c.MaxPositions {
		c.Windows = nil
	}
}

// Window is the sliding window of a layer in tokens, the newest included: position i
// attends to positions i-Window+1 to i. 0: to all of them.
func (c *Config) Window(layer int) int {
	if c.Windows == nil {
		return 0
	}
	return c.Windows[layer]
}

// Rotations are the angles per position that layers choose from, see RopeOf.
func (c *Config) Rotations() [][]float64 {
	if c.LocalRope.Theta == 0 {
		return [][]float64{c.InvFreq()}
	}
	return [][]float64{c.InvFreq(), c.LocalRope.InvFreq(c.HeadDim)}
}

// RopeOf says which of Rotations a layer uses.
func (c *Config) RopeOf(layer int) int {
	if c.LocalRope.Theta != 0 && c.Window(layer) > 0 {
		return 1
	}
	return 0
}

// AttentionScale multiplies attention scores: 1/sqrt(HeadDim), or of QueryScale
// where the family says so.
func (c *Config) AttentionScale() float32 {
	if c.Latent.Rank > 0 {
		return c.latentScale()
	}
	if c.QueryScale > 0 {
		return float32(1 / math.Sqrt(c.QueryScale))
	}
	return float32(1 / math.Sqrt(float64(c.HeadDim)))
}

// EmbeddingScale multiplies an embedding that is stored as dt. transformers rounds the
// root to the type of the weights: sqrt(2560) becomes 50.5 in bf16. What is
// quantised comes from such weights.
func (c *Config) EmbeddingScale(dt tensor.DType) float32 {
	if !c.ScaledEmbedding {
		return 1
	}
	root := float32(math.Sqrt(float64(c.Hidden)))
	if c.TrainedAs != 0 {
		dt = c.TrainedAs
	}
	if dt != tensor.F32 && dt != tensor.F16 {
		dt = tensor.BF16
	}
	return tensor.Round(dt, root)
}

// LayerNames names the tensors of layer i, counted from 0. With norms behind attention
// and FFN too, the name that Llama gives to the norm before the FFN is that of the one
// behind attention.
func (c *Config) LayerNames(i int) LlamaNames {
	n := LlamaLayer(i)
	if c.PostNorms {
		p := fmt.Sprintf("model.layers.%d.", i)
		n.PostAttnNorm, n.MLPNorm, n.PostMLPNorm = n.MLPNorm, p+"pre_feedforward_layernorm.weight", p+"post_feedforward_layernorm.weight"
	}
	return n
}
