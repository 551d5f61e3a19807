// Package encoder describes encoders: models that read a whole text and make a vector of it. Importing
// it registers their architectures with package model.
package encoder

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// BERT (Devlin et al., arXiv 1810.04805) and XLM-RoBERTa (arXiv 1911.02116) as encoders. Every token
// attends to the whole text, without a rotation. Norms subtract the mean, have biases, and follow
// the sums:
//
//	x = LayerNorm(embedding[token] + types[type] + positions[position], EmbedNorm)
//	for each layer:
//	    x = LayerNorm(x + O attention(Q x, K x, V x), AttnOut)
//	    x = LayerNorm(x + Down GELU(Up x), FFNOut)
//
// Here AttnOut is the layer's FFNNorm, and FFNOut is the next layer's AttnNorm or the final norm: with
// Config.PostNorm a norm replaces the residual stream that it reads.
//
// XLM-RoBERTa's positions begin after the padding token's id.
func init() {
	defaults := map[string]string{"max_position_embeddings": "512", "type_vocab_size": "2"}
	model.Register(model.Family{Name: "BertModel", Tiny: tiny(map[string]any{"type_vocab_size": 2, "layer_norm_eps": 1e-12}),
		Defaults: defaults, Read: readBert, Layer: bertLayer, Extra: encoderExtra, Rename: bertName})
	model.Register(model.Family{Name: "XLMRobertaModel", Tiny: tiny(map[string]any{"type_vocab_size": 1, "pad_token_id": 1}),
		Defaults: defaults, Read: readXLMRoberta, Layer: bertLayer, Extra: encoderExtra, Rename: bertName})
	model.Register(model.Family{Name: "RobertaModel", Tiny: tiny(map[string]any{"type_vocab_size": 1, "pad_token_id": 1}), Defaults: defaults,
		Read: readXLMRoberta, Layer: bertLayer, Extra: encoderExtra, Rename: bertName})
}

func readBert(f *model.Fields, c *model.Config) {
	readEncoder(f, c)
	f.ReadActivation("hidden_act", "gelu")
	c.QKVBias, c.OutBias, c.MLPBias = true, true, true
	c.PostNorm, c.NormBias = true, true
	c.Inputs = model.Inputs{Positions: c.MaxPositions, Types: f.Size("type_vocab_size", 2, 1<<10), Norm: true}
	f.OneOf("position_embedding_type", "absolute", "absolute")
	f.MustBe("is_decoder", false)
	for i := range c.Layers {
		c.Unrotated = append(c.Unrotated, i)
	}
	model.ReadRope(f, c, 10000) // not used
}

func readXLMRoberta(f *model.Fields, c *model.Config) {
	readBert(f, c)
	c.Inputs.FirstPosition = f.Size("pad_token_id", 1, model.MaxVocab) + 1
	if c.MaxPositions -= c.Inputs.FirstPosition; c.MaxPositions <= 0 {
		f.Refuse("max_position_embeddings", "%d leaves no position after the padding token's", c.Inputs.Positions)
	}
}

// readEncoder sets the fields that all encoders share.
func readEncoder(f *model.Fields, c *model.Config) {
	c.Headless, c.NonCausal, c.MeanNorm = true, true, true
	c.Activation = tensor.GELU
	c.NormEps = float32(f.Number("layer_norm_eps", 1e-12, 1e-13, 0.1))
}

func bertLayer(c *model.Config, i int) model.LayerSpec {
	l := encoderLayer(c, i)
	p := fmt.Sprintf("model.layers.%d.mlp.", i)
	l.Gate, l.Up = model.Projection(p+"up_proj", true), model.Linear{}
	return l
}

// encoderLayer returns a decoder's layer, except that the first one reads the embedding without a norm.
func encoderLayer(c *model.Config, i int) model.LayerSpec {
	l := model.DecoderLayer(c, i)
	l.NormBias = c.NormBias
	if i == 0 {
		l.AttnNorm = ""
	}
	return l
}

// encoderPrefixes are the first parts of tensor names in checkpoints with heads.
var encoderPrefixes = []string{"bert.", "roberta.", "xlm_roberta.", "distilbert.", "model."}

// bare removes the prefix of a checkpoint with heads.
func bare(name string) string {
	for _, p := range encoderPrefixes {
		if rest, ok := strings.CutPrefix(name, p); ok {
			return rest
		}
	}
	return name
}

// renamed applies a family's names to a tensor without its prefix. An unknown name without its prefix
// is returned. An unknown name that begins with "model." stays whole, since it may be one of this
// package's.
func renamed(name string, rename func(module, part string) (string, bool)) string {
	rest := bare(name)
	module, part := cutLast(rest)
	if own, ok := rename(module, part); ok {
		return own
	}
	if strings.HasPrefix(name, "model.") {
		return name
	}
	return rest
}

// encoderExtra allows the heads of an encoder, which work on its final states, and counters.
func encoderExtra(name string) bool {
	switch first, rest, _ := strings.Cut(name, "."); first {
	case "pooler", "cls", "classifier", "pre_classifier", "lm_head", "head", "decoder", "score",
		"vocab_transform", "vocab_layer_norm", "vocab_projector":
		return true
	case "embeddings":
		return rest == "position_ids"
	}
	return false
}

// embeddingNames are the tensor names of BERT's inputs.
var embeddingNames = map[string]string{
	"word_embeddings": "model.embed_tokens", "position_embeddings": "model.embed_positions", "token_type_embeddings": "model.embed_types",
	"LayerNorm": "model.embed_norm",
}

var bertNames = map[string]string{
	"attention.self.query": "self_attn.q_proj", "attention.self.key": "self_attn.k_proj", "attention.self.value": "self_attn.v_proj",
	"attention.output.dense":     "self_attn.o_proj",
	"attention.output.LayerNorm": "post_attention_layernorm", "intermediate.dense": "mlp.up_proj",
	"output.dense": "mlp.down_proj", "output.LayerNorm": endNorm,
}

// endNorm marks the norm at the end of a layer, which is the next layer's first norm here.
const endNorm = "end"

// bertName renames the tensors of BERT. Files of TensorFlow's time call weights of norms gamma and beta.
func bertName(c *model.Config, name string) string {
	return renamed(name, func(module, part string) (string, bool) {
		switch part {
		case "gamma":
			part = "weight"
		case "beta":
			part = "bias"
		}
		return encoderName(c, module, part, "encoder.layer.", bertNames)
	})
}

func cutLast(name string) (module, part string) {
	at := strings.LastIndexByte(name, '.')
	return name[:max(0, at)], name[at+1:]
}

// encoderName renames a tensor of a layer or of the inputs by the names of modules; false: it is neither.
func encoderName(c *model.Config, module, part, layers string, names map[string]string) (string, bool) {
	if in, ok := strings.CutPrefix(module, "embeddings."); ok && embeddingNames[in] != "" {
		return embeddingNames[in] + "." + part, true
	}
	in, ok := strings.CutPrefix(module, layers)
	number, in, _ := strings.Cut(in, ".")
	i, err := strconv.Atoi(number)
	if !ok || err != nil || i < 0 || names[in] == "" {
		return "", false
	}
	switch to := names[in]; {
	case to == endNorm && i+1 == c.Layers:
		return "model.norm." + part, true
	case to == endNorm:
		return fmt.Sprintf("model.layers.%d.input_layernorm.%s", i+1, part), true
	default:
		return fmt.Sprintf("model.layers.%d.%s.%s", i, to, part), true
	}
}
