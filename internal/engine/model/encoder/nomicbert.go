package encoder

import "github.com/shoal-llm/shoal/internal/engine/model"

// Nomic's BERT (Nussbaum et al., arXiv 2402.01613): BERT with rotary positions instead of learned
// ones, without biases of projections, and with a gated FFN:
//
//	x = LayerNorm(x + O attention(RoPE(Q x), RoPE(K x), V x), AttnOut)
//	x = LayerNorm(x + Down (SiLU(Gate x) * Up x), FFNOut)
//
// Files of the hub have GPT-2's names of settings, and q, k and v in one matrix. With rotary_scaling_factor,
// texts are at most as long as the trained ones.
func init() {
	model.Register(model.Family{
		Name: "NomicBertModel", Tiny: tiny(map[string]any{"hidden_act": "silu"}),
		Defaults: map[string]string{"type_vocab_size": "2", "num_hidden_layers": "12"},
		Aliases: map[string]string{"hidden_size": "n_embd", "num_hidden_layers": "n_layer",
			"num_attention_heads": "n_head", "intermediate_size": "n_inner",
			"max_position_embeddings": "n_positions", "layer_norm_eps": "layer_norm_epsilon", "rope_theta": "rotary_emb_base"},
		Read: readNomicBert, Layer: encoderLayer, Extra: encoderExtra, Rename: nomicBertName,
	})
}

func readNomicBert(f *model.Fields, c *model.Config) {
	readEncoder(f, c)
	c.Activation = 0 // SiLU
	c.PostNorm, c.NormBias = true, true
	c.Inputs = model.Inputs{Types: f.Size("type_vocab_size", 2, 1<<10), Norm: true}
	f.ReadActivation("hidden_act", "silu")
	if f.Has("activation_function") {
		f.OneOf("activation_function", "swiglu", "swiglu")
	}
	for _, key := range []string{"qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias", "prenorm", "use_rms_norm",
		"rotary_emb_interleaved", "parallel_block", "causal"} {
		f.MustBe(key, false)
	}
	if f.Number("rotary_emb_fraction", 1, 0, 1) != 1 || f.Number("num_experts", 0, 0, 1<<16) > 0 {
		f.Refuse("rotary_emb_fraction", "only whole rotations and dense layers are implemented")
	}
	if f.Has("rotary_emb_scale_base") {
		f.Refuse("rotary_emb_scale_base", "is set: rotations that also scale (xPos) are not implemented; only null is")
	}
	// Nomic's code raises the base of the rotation for a text that is longer than the trained ones.
	if f.Number("rotary_scaling_factor", 0, 0, 1e6) != 0 {
		c.MaxPositions = min(c.MaxPositions, f.Size("max_trained_positions", 2048, model.MaxPositions))
	}
	model.ReadRope(f, c, 1000)
}

var nomicBertNames = map[string]string{
	"attn.Wqkv": "self_attn.qkv_proj", "attn.out_proj": "self_attn.o_proj", "mlp.fc11": "mlp.up_proj",
	"mlp.fc12": "mlp.gate_proj", "mlp.fc2": "mlp.down_proj",
	"norm1": "post_attention_layernorm", "norm2": endNorm,
}

// nomicNativeNames are the tensor names of transformers' own class.
var nomicNativeNames = map[string]string{
	"self_attn.q_proj": "self_attn.q_proj", "self_attn.k_proj": "self_attn.k_proj", "self_attn.v_proj": "self_attn.v_proj",
	"self_attn.o_proj": "self_attn.o_proj",
	"mlp.gate_proj":    "mlp.gate_proj", "mlp.up_proj": "mlp.up_proj", "mlp.down_proj": "mlp.down_proj",
	"post_attention_layernorm": "post_attention_layernorm", "post_mlp_layernorm": endNorm,
}

func nomicBertName(c *model.Config, name string) string {
	return renamed(name, func(module, part string) (string, bool) {
		if module == "emb_ln" {
			return "model.embed_norm." + part, true
		}
		if own, ok := encoderName(c, module, part, "encoder.layers.", nomicBertNames); ok {
			return own, true
		}
		return encoderName(c, module, part, "layers.", nomicNativeNames)
	})
}
