package families

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// gpt-oss (OpenAI, arXiv 2508.10925). Differences from llama.go: every second layer has a window, all
// projections have biases, each head has a sink, and every layer has experts with biases:
//
//	attention weights = softmax over scores and the head's sink, which has no value
//	w = softmax of the PerToken largest of Router h + RouterBias
//	g, u = min(Gate_e h + GateBias_e, 7), Up_e h + UpBias_e within -7 and 7
//	y = sum over chosen e of w_e (Down_e (g sigmoid(1.702 g) (u+1)) + DownBias_e)
func init() {
	model.Register(model.Family{
		Name: GptOss,
		Defaults: map[string]string{"hidden_size": "2880", "intermediate_size": "2880", "num_hidden_layers": "36", "num_attention_heads": "64",
			"num_key_value_heads": "8", "head_dim": "64", "vocab_size": "201088", "max_position_embeddings": "131072", "rms_norm_eps": "1e-5"},
		Aliases:     map[string]string{"num_local_experts": "num_experts"},
		Read:        readGptOss,
		Alternating: true,
		Layer:       gptOssLayer,
	})
}

const GptOss = "GptOssForCausalLM"

func readGptOss(f *model.Fields, c *model.Config) {
	c.Tied = f.Bool("tie_word_embeddings", false)
	c.QKVBias = f.Bool("attention_bias", true)
	c.OutBias = c.QKVBias
	c.SinkScores = true
	f.ReadActivation("hidden_act", "silu")
	c.Activation = tensor.Clamped
	for key, v := range map[string]float64{"swiglu_alpha": 1.702, "swiglu_limit": 7} {
		if got := f.Number(key, v, -1e300, 1e300); got != v {
			f.Refuse(key, "%g is not implemented; only %g is", got, v)
		}
	}
	model.ReadWindows(f, c, 128, func(layer int) bool { return layer%2 == 0 })
	if !f.Has("rope_scaling") && !f.Has("rope_parameters") { // as its configuration class
		f.Assume(map[string]string{"rope_scaling": `{"rope_type": "yarn", "factor": 32, "beta_fast": 32, "beta_slow": 1, "truncate": false, "original_max_position_embeddings": 4096}`})
	}
	model.ReadRope(f, c, 150000)
	c.MoE = model.MoE{
		Experts:  f.Size("num_local_experts", 128, model.MaxExperts),
		PerToken: f.Size("num_experts_per_tok", 4, model.MaxExperts),
		FFN:      c.FFN,
		Router:   model.Router{Score: model.SoftmaxOfChosen, Scale: 1},
		Biased:   true,
	}
	model.CheckMoE(f, c, "num_local_experts", "num_experts_per_tok", "", "")
}

func gptOssLayer(c *model.Config, i int) model.LayerSpec {
	l := model.DecoderLayer(c, i)
	p := fmt.Sprintf("model.layers.%d.", i)
	l.Sinks = p + "self_attn.sinks"
	p += "mlp."
	l.Experts = model.MLPExperts(p)
	l.Experts.Router = p + "router.weight"
	l.Experts.Biases = &model.ExpertBiases{Router: p + "router.bias", Gate: p + "experts.gate_proj_bias", Up: p + "experts.up_proj_bias",
		Down: p + "experts.down_proj_bias"}
	return l
}
