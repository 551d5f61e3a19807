package families

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/model"
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
// sides. A window then reaches half its size to each side.
func init() {
	model.Register(model.Family{
		Name: Gemma3,
		Defaults: map[string]string{"hidden_size": "2304", "intermediate_size": "9216", "num_hidden_layers": "26", "num_attention_heads": "8",
			"num_key_value_heads": "4", "head_dim": "256", "vocab_size": "262208", "max_position_embeddings": "131072"},
		Rotary: []string{"rope_local_base_freq"},
		Read:   readGemma3,
		Layer:  gemma3Layer,
	})
}

const Gemma3 = "Gemma3ForCausalLM"

func readGemma3(f *model.Fields, c *model.Config) {
	readGemma(f, c)
	c.QKNorm = true
	c.QueryScale = f.Number("query_pre_attn_scalar", 256, 1e-3, 1e6)
	c.LogitCap = readCap(f, "final_logit_softcapping", 0)
	c.ScoreCap = readCap(f, "attn_logit_softcapping", 0)
	pattern := f.Size("sliding_window_pattern", f.Size("_sliding_window_pattern", 6, model.MaxLayers), model.MaxLayers)
	model.ReadWindows(f, c, 4096, func(layer int) bool { return (layer+1)%pattern != 0 })
	if c.NonCausal { // the setting counts tokens of both sides together
		for i, w := range c.Windows {
			c.Windows[i] = w/2 + min(w, 1)
		}
	}
	full := f.Number("rope_theta", 1e6, 2, model.MaxTheta)
	if f.ReadRopes(c, full, f.Number("rope_local_base_freq", 1e4, 2, model.MaxTheta)) {
		if local := f.Number("rope_local_base_freq", c.LocalRope.Theta, 2, model.MaxTheta); local != c.LocalRope.Theta {
			f.Fail("rope_local_base_freq", model.ErrFormat, "%g differs from the rope_theta %g of rope_parameters.sliding_attention",
				local, c.LocalRope.Theta)
		}
		return
	}
	model.ReadRope(f, c, 1e6)
	c.LocalRope = rotary.Rope{Theta: f.Number("rope_local_base_freq", 1e4, 2, model.MaxTheta)}
}

func gemma3Layer(c *model.Config, i int) model.LayerSpec {
	l := model.DecoderLayer(c, i)
	p := fmt.Sprintf("model.layers.%d.", i)
	l.PostAttnNorm = p + "post_attention_layernorm.weight" // Llama's name for the norm before the FFN
	l.FFNNorm = p + "pre_feedforward_layernorm.weight"
	l.PostFFNNorm = p + "post_feedforward_layernorm.weight"
	return l
}
