package model

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/model/rotary"
)

// Gemma 3, text (Gemma Team, arXiv 2503.19786). Differences from llama.go:
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
// Every norm multiplies by 1 + its weight. Five of six layers (by sliding_window_pattern or
// layer_types) attend to a sliding window, with another base of their rotary positions. The sixth
// attends to everything. With use_bidirectional_attention (EmbeddingGemma) every token attends to both
// sides, in layers with a window to those at a distance of at most half of it.
func init() {
	register(architecture{
		Name: gemma3,
		defaults: map[string]string{"hidden_size": "2304", "intermediate_size": "9216", "num_hidden_layers": "26", "num_attention_heads": "8",
			"num_key_value_heads": "4", "head_dim": "256", "vocab_size": "262208", "max_position_embeddings": "131072"},
		read:  readGemma3,
		layer: gemma3Layer,
		extra: llamaExtra,
	})
}

const gemma3 = "Gemma3ForCausalLM"

func readGemma3(f *fields, c *Config) {
	readGemma(f, c)
	c.QKNorm = true
	c.QueryScale = f.Number("query_pre_attn_scalar", 256, 1e-3, 1e6)
	c.LogitCap = f.readCap("final_logit_softcapping", 0)
	c.ScoreCap = f.readCap("attn_logit_softcapping", 0)
	pattern := f.Size("sliding_window_pattern", f.Size("_sliding_window_pattern", 6, maxLayers), maxLayers)
	readWindows(f, c, 4096, func(layer int) bool { return (layer+1)%pattern != 0 })
	if c.NonCausal { // the setting counts tokens of both sides together
		for i, w := range c.Windows {
			c.Windows[i] = w/2 + min(w, 1)
		}
	}
	if f.readRopes(c, 1e6, 1e4) {
		if local := f.Number("rope_local_base_freq", c.LocalRope.Theta, 2, maxTheta); local != c.LocalRope.Theta {
			f.fail("rope_local_base_freq", ErrFormat, "%g differs from the rope_theta %g of rope_parameters.sliding_attention", local, c.LocalRope.Theta)
		}
		return
	}
	readRope(f, c, 1e6)
	c.LocalRope = rotary.Rope{Theta: f.Number("rope_local_base_freq", 1e4, 2, maxTheta)}
}

func gemma3Layer(c *Config, i int) LayerSpec {
	l := llamaLayer(c, i)
	p := fmt.Sprintf("model.layers.%d.", i)
	l.PostAttnNorm = p + "post_attention_layernorm.weight" // what Llama calls the norm before the FFN
	l.FFNNorm = p + "pre_feedforward_layernorm.weight"
	l.PostFFNNorm = p + "post_feedforward_layernorm.weight"
	return l
}
