package encoder

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/tinyconfig"
)

var names = []string{"BertModel", "XLMRobertaModel", "RobertaModel", "NomicBertModel", "ModernBertModel", "DistilBertModel"}

// TestHostileSettings: each setting with a hostile value is refused, or gives a config whose layers and
// tensors can be listed.
func TestHostileSettings(t *testing.T) {
	for _, name := range names {
		text, err := tinyconfig.Of(name)
		if err != nil {
			t.Fatal(err)
		}
		var config map[string]any
		if err := json.Unmarshal(text, &config); err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"hidden_size", "n_embd", "num_hidden_layers", "num_attention_heads",
			"intermediate_size", "vocab_size", "max_position_embeddings", "type_vocab_size", "pad_token_id", "layer_norm_eps",
			"hidden_act", "position_embedding_type", "local_attention", "global_attn_every_n_layers", "layer_types",
			"rope_parameters", "global_rope_theta", "norm_bias", "attention_bias", "rotary_emb_fraction", "head_dim"} {
			for _, v := range []any{nil, 0, -1, 1, 3, 7, 1 << 13, 1e9, 1e300, 0.5, "", "x", true,
				[]any{}, []any{"x"}, map[string]any{}, map[string]any{"full_attention": map[string]any{}}} {
				c := map[string]any{}
				for k, old := range config {
					c[k] = old
				}
				c[key] = v
				text, err := json.Marshal(c)
				if err != nil {
					t.Fatal(err)
				}
				got, err := model.ParseConfig("d", text, nil)
				if err != nil {
					if !strings.HasPrefix(err.Error(), "model: ") {
						t.Errorf("%s with %s %v: %v", name, key, v, err)
					}
					continue
				}
				if len(got.Tensors()) == 0 || got.MaxPositions <= 0 || got.IDs() < got.Vocab {
					t.Errorf("%s with %s %v: %+v", name, key, v, got)
				}
			}
		}
	}
}

// TestNames: tensors of published files have these names here.
func TestNames(t *testing.T) {
	c := &model.Config{Layers: 2}
	for _, test := range []struct {
		rename    func(*model.Config, string) string
		file, own string
	}{
		{bertName, "bert.embeddings.word_embeddings.weight", model.Embedding},
		{bertName, "embeddings.LayerNorm.gamma", model.EmbedNorm},
		{bertName, "roberta.encoder.layer.0.output.LayerNorm.bias", "model.layers.1.input_layernorm.bias"},
		{bertName, "encoder.layer.1.output.LayerNorm.weight", model.FinalNorm},
		{bertName, "encoder.layer.2.output.LayerNorm.weight", "model.layers.3.input_layernorm.weight"},
		{bertName, "encoder.layer.-1.output.dense.weight", "encoder.layer.-1.output.dense.weight"},
		{bertName, "bert.pooler.dense.weight", "pooler.dense.weight"},
		{distilBertName, "distilbert.transformer.layer.1.output_layer_norm.weight", model.FinalNorm},
		{nomicBertName, "emb_ln.weight", model.EmbedNorm},
		{nomicBertName, "encoder.layers.1.attn.Wqkv.weight", "model.layers.1.self_attn.qkv_proj.weight"},
		{nomicBertName, "encoder.layers.0.norm2.weight", "model.layers.1.input_layernorm.weight"},
		{modernBertName, "model.layers.0.mlp.Wi.weight", "model.layers.0.mlp.gate_up_proj.weight"},
		{modernBertName, "model.final_norm.weight", model.FinalNorm},
		{modernBertName, "model.layers.1.self_attn.qkv_proj.weight", "model.layers.1.self_attn.qkv_proj.weight"},
	} {
		if got := test.rename(c, test.file); got != test.own {
			t.Errorf("%s is %s here, want %s", test.file, got, test.own)
		}
	}
}

// With rotary_scaling_factor, Nomic's own code changes the rotation of texts that are longer than the trained
// ones. Such texts are not served. Settings that change every text are refused.
func TestNomicRotations(t *testing.T) {
	parse := func(change map[string]any) (model.Config, error) {
		c := map[string]any{"architectures": []string{"NomicBertModel"}, "n_embd": 64, "n_head": 4, "n_layer": 2, "n_inner": 128,
			"n_positions": 8192, "vocab_size": 100, "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "activation_function": "swiglu",
			"qkv_proj_bias": false, "mlp_fc1_bias": false, "mlp_fc2_bias": false}
		for k, v := range change {
			c[k] = v
		}
		text, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		return model.ParseConfig("d", text, nil)
	}
	for _, test := range []struct {
		change map[string]any
		want   int
	}{
		{nil, 8192},
		{map[string]any{"rotary_scaling_factor": nil, "max_trained_positions": 2048}, 8192},
		{map[string]any{"rotary_scaling_factor": 2, "max_trained_positions": 2048}, 2048}, // nomic-embed-text-v1
		{map[string]any{"rotary_scaling_factor": 2.0}, 2048},
		{map[string]any{"rotary_scaling_factor": 2, "max_trained_positions": 16384}, 8192},
	} {
		if c, err := parse(test.change); err != nil || c.MaxPositions != test.want {
			t.Errorf("%v: texts of %d tokens, want %d; %v", test.change, c.MaxPositions, test.want, err)
		}
	}
	for key, v := range map[string]any{"rotary_emb_scale_base": 512, "causal": true, "rotary_scaling_factor": "x",
		"max_trained_positions": 0} {
		c := map[string]any{"rotary_scaling_factor": 2, key: v}
		if _, err := parse(c); err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("%v: %v", c, err)
		}
	}
}

// A BERT with causal attention is not an encoder.
func TestDecoderRefused(t *testing.T) {
	for _, arch := range []string{"BertModel", "XLMRobertaModel", "RobertaModel"} {
		text := `{"architectures": ["` + arch + `"], "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 1, ` +
			`"intermediate_size": 64, "vocab_size": 10, "is_decoder": `
		if _, err := model.ParseConfig("d", []byte(text+"false}"), nil); err != nil {
			t.Error(arch, err)
		}
		if _, err := model.ParseConfig("d", []byte(text+"true}"), nil); err == nil || !strings.Contains(err.Error(), "is_decoder") {
			t.Errorf("%s: %v", arch, err)
		}
	}
}
