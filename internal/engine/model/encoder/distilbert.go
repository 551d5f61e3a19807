package encoder

import "github.com/shoal-llm/shoal/internal/engine/model"

// DistilBERT (Sanh et al., arXiv 1910.01108): BERT with fewer layers and without token types, under other
// names.
func init() {
	model.Register(model.Family{
		Name: "DistilBertModel", Tiny: tiny(nil),
		Defaults: map[string]string{"max_position_embeddings": "512", "vocab_size": "30522", "hidden_size": "768", "num_hidden_layers": "6",
			"num_attention_heads": "12", "intermediate_size": "3072"},
		Aliases: map[string]string{"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
			"intermediate_size": "hidden_dim", "hidden_act": "activation"},
		Read: readDistilBert, Layer: bertLayer, Extra: encoderExtra, Rename: distilBertName,
	})
}

// readDistilBert: sinusoidal_pos_embds only chooses how training begins.
func readDistilBert(f *model.Fields, c *model.Config) {
	readBert(f, c)
	c.NormEps, c.Inputs.Types = 1e-12, 0
}

var distilBertNames = map[string]string{
	"attention.q_lin": "self_attn.q_proj", "attention.k_lin": "self_attn.k_proj", "attention.v_lin": "self_attn.v_proj",
	"attention.out_lin": "self_attn.o_proj",
	"sa_layer_norm":     "post_attention_layernorm", "ffn.lin1": "mlp.up_proj", "ffn.lin2": "mlp.down_proj", "output_layer_norm": endNorm,
}

func distilBertName(c *model.Config, name string) string {
	return renamed(name, func(module, part string) (string, bool) {
		return encoderName(c, module, part, "transformer.layer.", distilBertNames)
	})
}
