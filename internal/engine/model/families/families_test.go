package families

import (
	"encoding/json"
	"errors"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/recurrent"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// families are the architectures that the package registers.
var families = []string{
	"Cohere2ForCausalLM",
	"CohereForCausalLM",
	"DeepseekV2ForCausalLM",
	"DeepseekV32ForCausalLM",
	"DeepseekV3ForCausalLM",
	"Ernie4_5ForCausalLM",
	"Ernie4_5_MoeForCausalLM",
	"Exaone4ForCausalLM",
	FalconH1,
	"Gemma2ForCausalLM",
	"Gemma3ForCausalLM",
	"Gemma4ForCausalLM",
	"Gemma4UnifiedForCausalLM",
	"GemmaForCausalLM",
	"Glm4ForCausalLM",
	"Glm4MoeForCausalLM",
	"Glm4MoeLiteForCausalLM",
	"GlmForCausalLM",
	"GlmMoeDsaForCausalLM",
	"GptOssForCausalLM",
	"GraniteForCausalLM",
	"GraniteMoeForCausalLM",
	"GraniteMoeHybridForCausalLM",
	"HYV3ForCausalLM",
	"HunYuanDenseV1ForCausalLM",
	"HunYuanMoEV1ForCausalLM",
	"Lfm2ForCausalLM",
	"Lfm2MoeForCausalLM",
	"Llama4ForCausalLM",
	"LlamaForCausalLM",
	"LlamaSwiftKVForCausalLM",
	"MiniMaxM2ForCausalLM",
	"Ministral3ForCausalLM",
	"MistralForCausalLM",
	"MixtralForCausalLM",
	NemotronH,
	"Olmo2ForCausalLM",
	"Olmo3ForCausalLM",
	"OlmoeForCausalLM",
	"Phi3ForCausalLM",
	"Qwen2ForCausalLM",
	"Qwen2MoeForCausalLM",
	"Qwen3ForCausalLM",
	"Qwen3MoeForCausalLM",
	"Qwen3NextForCausalLM",
	"Qwen3_5ForCausalLM",
	"Qwen3_5MoeForCausalLM",
	"SeedOssForCausalLM",
	"SmolLM3ForCausalLM",
}

// Each family's own keys and defaults, as its configuration class in
// transformers has them.
func TestFamilies(t *testing.T) {
	for _, test := range []struct {
		arch string
		c    change
		want func(c *model.Config) bool
	}{
		{"Qwen2", nil, func(c *model.Config) bool {
			return c.QKVBias && !c.OutBias && !c.QKNorm && c.MaxPositions == 256 && c.HeadDim == 16
		}},
		{"Qwen2", change{"max_position_embeddings": remove, "rope_theta": remove},
			func(c *model.Config) bool { return c.MaxPositions == 32768 && c.Rope.Theta == 10000 }},
		{"Qwen2", change{"sliding_window": 64}, func(c *model.Config) bool { return c.MaxPositions == 256 }},
		// from layer 28 on
		{"Qwen2", change{"sliding_window": 64, "use_sliding_window": true}, func(c *model.Config) bool { return c.MaxPositions == 256 }},
		{"Qwen2", change{"sliding_window": 64, "use_sliding_window": true, "max_window_layers": 1},
			func(c *model.Config) bool { return c.MaxPositions == 256 && c.Window(0) == 0 && c.Window(1) == 64 }},
		{"Qwen2", change{"sliding_window": 64, "layer_types": []string{"sliding_attention", "full_attention"}},
			func(c *model.Config) bool { return c.Window(0) == 64 && c.Window(1) == 0 }},
		{"Qwen2", change{"sliding_window": 64, "use_sliding_window": true, "max_window_layers": 0,
			"layer_types": []string{"full_attention", "full_attention"}}, func(c *model.Config) bool { return c.Windows == nil }},
		// null is no window, also if use_sliding_window asks for one
		{"Qwen2", change{"sliding_window": nil, "use_sliding_window": true, "max_window_layers": 0, "max_position_embeddings": 32768},
			func(c *model.Config) bool { return c.Windows == nil }},
		{"Qwen3", change{"sliding_window": nil, "use_sliding_window": true, "max_window_layers": 0, "max_position_embeddings": 32768},
			func(c *model.Config) bool { return c.Windows == nil }},
		{"Qwen2Moe", change{"sliding_window": nil, "use_sliding_window": true, "max_position_embeddings": 32768},
			func(c *model.Config) bool { return c.Windows == nil }},
		{"Qwen3Moe", change{"sliding_window": nil, "use_sliding_window": true, "max_position_embeddings": 32768},
			func(c *model.Config) bool { return c.Windows == nil }},
		{"Qwen3", nil, func(c *model.Config) bool { return c.QKNorm && !c.QKVBias && !c.OutBias && c.HeadDim == 128 }},
		{"Qwen3", change{"head_dim": 32, "attention_bias": true},
			func(c *model.Config) bool { return c.HeadDim == 32 && c.QKVBias && c.OutBias }},
		{"Mistral", change{"sliding_window": nil}, func(c *model.Config) bool { return c.MaxPositions == 256 && !c.QKVBias && !c.QKNorm }},
		// a missing window is 4096
		{"Mistral", change{"max_position_embeddings": 32768},
			func(c *model.Config) bool { return c.MaxPositions == 32768 && c.Window(1) == 4096 }},
		{"Mistral", change{"sliding_window": 100}, func(c *model.Config) bool { return c.Window(0) == 100 }},
		{"Mistral", change{"sliding_window": 256, "head_dim": 128}, func(c *model.Config) bool { return c.Windows == nil && c.HeadDim == 128 }},
		{"Mistral", change{"sliding_window": nil, "max_position_embeddings": remove},
			func(c *model.Config) bool { return c.MaxPositions == 131072 }},
		{"Phi3", change{"rms_norm_eps": remove, "max_position_embeddings": remove, "sliding_window": 100}, func(c *model.Config) bool {
			return c.NormEps == 1e-5 && c.MaxPositions == 4096 && c.Window(1) == 100
		}},
		{"Phi3", change{"sliding_window": nil, "partial_rotary_factor": 1}, func(c *model.Config) bool { return c.Windows == nil }},
		{"Granite", change{"attention_multiplier": 0.0078125, "embedding_multiplier": 12, "residual_multiplier": 0.22,
			"logits_scaling": 16, "attention_bias": true}, func(c *model.Config) bool {
			return c.AttentionScale() == 1./128 && c.Multipliers == model.Multipliers{Embedding: 12, Residual: 0.22, Logits: 1. / 16} &&
				c.QKVBias && c.EmbeddingScale(tensor.BF16) == 12
		}},
		{"Granite", nil, func(c *model.Config) bool {
			return c.AttentionScale() == 1 && c.Multipliers == model.Multipliers{Embedding: 1, Residual: 1, Logits: 1}
		}},
		{"Olmo2", nil, func(c *model.Config) bool { return c.QKNorm && c.QKNormOf == model.OfProjection && c.Windows == nil }},
		{"Olmo3", change{"num_hidden_layers": 4, "rope_theta": 3e5, "rope_scaling": map[string]any{"rope_type": "yarn",
			"factor": 8, "original_max_position_embeddings": 64, "attention_factor": 1.2}}, func(c *model.Config) bool {
			r := c.Rotations()
			return c.Window(2) == 4096 && c.Window(3) == 0 && c.RopeOf(2) == 1 && c.RopeOf(3) == 0 &&
				c.Rope.Type == "yarn" && c.LocalRope.Type == "" && c.LocalRope.Theta == 3e5 &&
				r[0].Amplitude == 1.2 && r[1].Amplitude == 0
		}},
		{"Exaone4", change{"num_hidden_layers": 5}, func(c *model.Config) bool {
			return c.QKNorm && c.QKNormOf == model.OfHeads && c.Window(2) == 4096 && c.Window(3) == 0 && slices.Equal(c.Unrotated, []int{3})
		}},
		{"Exaone4", change{"sliding_window": nil, "sliding_window_pattern": nil},
			func(c *model.Config) bool { return c.Windows == nil && c.Unrotated == nil }},
		{"Exaone4", change{"sliding_window": 64, "sliding_window_pattern": "LLLG",
			"layer_types": []string{"sliding_attention", "full_attention"}}, func(c *model.Config) bool {
			return c.Window(0) == 64 && c.Window(1) == 0 && slices.Equal(c.Unrotated, []int{1})
		}},
		{"GptOss", change{"rope_theta": remove, "head_dim": remove, "rms_norm_eps": remove, "swiglu_limit": 7.0}, func(c *model.Config) bool {
			return c.HeadDim == 64 && c.NormEps == 1e-5 && c.QKVBias && c.OutBias && c.SinkScores &&
				c.Activation == tensor.Clamped && c.Window(0) == 128 && c.Window(1) == 0 &&
				c.Rope.Theta == 150000 && c.Rope.Type == "yarn" && c.Rope.Exact && c.Rope.Factor == 32 &&
				c.Rope.OriginalMax == 4096 && c.MaxPositions == 131072 &&
				math.Abs(c.Rope.Amplitude-1.34657359) < 1e-7 && c.MoE.Experts == 128 && c.MoE.PerToken == 4 &&
				c.MoE.FFN == c.FFN && c.MoE.Biased && c.MoE.Router == model.Router{Score: model.SoftmaxOfChosen, Scale: 1}
		}},
		{"SeedOss", change{"attention_out_bias": true},
			func(c *model.Config) bool { return c.HeadDim == 128 && c.QKVBias && c.OutBias && !c.MLPBias }},
		{"SeedOss", change{"attention_bias": false, "head_dim": 32},
			func(c *model.Config) bool { return c.HeadDim == 32 && !c.QKVBias && !c.OutBias }},
		{"HunYuanDenseV1", change{"rope_theta": 1e4,
			"rope_scaling": map[string]any{"type": "dynamic", "alpha": 1000, "factor": 1, "mscale_all_dim": 0}}, func(c *model.Config) bool {
			return c.QKNormOf == model.OfRotatedHeads && math.Abs(c.Rope.Theta/(1e4*math.Pow(1000, 16./14))-1) < 1e-12 && c.Rope.Type == ""
		}},
		{"HunYuanDenseV1", nil, func(c *model.Config) bool {
			return c.QKNorm && c.Rope.Theta == 500000
		}},
		{"Cohere", change{"layer_norm_eps": 1e-4, "logit_scale": 0.8}, func(c *model.Config) bool {
			return c.MeanNorm && c.Parallel && c.Neighbours && c.NormEps == 1e-4 && c.Multipliers.Logits == 0.8 &&
				c.Unrotated == nil && c.Layer(0).FFNNorm == ""
		}},
		{"Cohere", change{"use_qk_norm": true}, func(c *model.Config) bool { return c.QKNorm && c.QKNormOf == model.OfOwnHeads }},
		{"Cohere2", change{"num_hidden_layers": 5, "sliding_window_pattern": 2}, func(c *model.Config) bool {
			return c.Window(0) == 4096 && c.Window(1) == 0 && slices.Equal(c.Unrotated, []int{1, 3}) && c.Multipliers.Logits == 0.0625
		}},
		{"Gemma", change{"hidden_act": "gelu"}, func(c *model.Config) bool {
			return c.HeadDim == 256 && c.NormsAddOne && c.ScaledEmbedding && c.AttentionScale() == 1./16 && c.Windows == nil
		}},
		{"Gemma2", change{"num_hidden_layers": 3, "hidden_act": "gelu_pytorch_tanh"}, func(c *model.Config) bool {
			return c.Window(0) == 4096 && c.Window(1) == 0 && c.Window(2) == 4096 && c.LogitCap == 30 &&
				c.ScoreCap == 50 && c.AttentionScale() == 1./16 && c.Score().Cap == 50
		}},
		{"Gemma2", change{"final_logit_softcapping": nil, "attn_logit_softcapping": nil, "query_pre_attn_scalar": 144},
			func(c *model.Config) bool {
				return c.LogitCap == 0 && c.ScoreCap == 0 && c.AttentionScale() == 1./12
			}},
		{"Gemma3", change{"num_hidden_layers": 7, "rope_theta": remove, "sliding_window": 32,
			"tie_word_embeddings": remove, "hidden_activation": "gelu_pytorch_tanh"}, func(c *model.Config) bool {
			return c.Window(4) == 32 && c.Window(5) == 0 && c.Window(6) == 32 && c.RopeOf(4) == 1 &&
				c.RopeOf(5) == 0 && c.Rope.Theta == 1e6 && c.LocalRope.Theta == 1e4 &&
				c.Tied && c.HeadDim == 256 && c.AttentionScale() == 1./16 && c.LogitCap == 0
		}},
		{"Gemma4", change{"num_hidden_layers": 7, "tie_word_embeddings": remove,
			"hidden_activation": "gelu_pytorch_tanh", "vocab_size": 1000, "head_dim": 16}, func(c *model.Config) bool {
			return c.Window(0) == 512 && c.Window(5) == 0 && c.Window(6) == 0 && c.Tied &&
				c.Global == model.KVShape{Heads: c.KVHeads, Dim: 512} && c.AttentionScale() == 1 && c.Rope.Theta == 1e6 && c.Rope.Part == 0.25 &&
				c.LocalRope.Theta == 1e4 && c.PerLayer == model.PerLayer{Width: 256, Vocab: 262144} &&
				!c.NormsAddOne && c.VNorm && c.OwnKV == 0 && c.MoE.Experts == 0
		}},
		{"Gemma4", change{"hidden_size_per_layer_input": nil, "rope_parameters": map[string]any{
			"full_attention": map[string]any{"rope_theta": 1e6, "rope_type": "default", "partial_rotary_factor": 1}}}, func(c *model.Config) bool {
			return c.PerLayer.Width == 0 && c.Rope.Type == "" && c.Rope.Part == 0
		}},
		{"Gemma4Unified", change{"num_hidden_layers": 12, "attention_k_eq_v": true, "num_global_key_value_heads": 1,
			"num_kv_shared_layers": 6, "hidden_size_per_layer_input": 256, "enable_moe_block": true}, func(c *model.Config) bool {
			return c.Window(0) == 1024 && c.Global == model.KVShape{Heads: 1, Dim: 512} && c.VFromK &&
				c.OwnKV == 6 && c.KVOwner(11) == 5 && c.KVOwner(6) == 4 && c.PerLayer.Width == 0 && c.MoE.Experts == 0 &&
				c.CachesOf(0) == c.KVHeads && c.CachesOf(5) == 1 && c.CacheLayers() == 5*c.KVHeads+1 && c.CacheOf(11) == 5*c.KVHeads && !c.WideFFN
		}},
		{"Gemma3", change{"sliding_window": 100000, "sliding_window_pattern": 2, "query_pre_attn_scalar": 4, "final_logit_softcapping": 30},
			func(c *model.Config) bool {
				// the rotation stays, although the window has no effect
				return c.Window(0) == 100000 && c.RopeOf(0) == 1 && c.RopeOf(1) == 0 && c.AttentionScale() == 0.5 && c.LogitCap == 30
			}},
		{"Gemma3", change{"rope_theta": remove, "rope_parameters": map[string]any{
			"full_attention":    map[string]any{"rope_type": "linear", "factor": 8, "rope_theta": 5e5},
			"sliding_attention": map[string]any{"rope_theta": 3e4, "rope_type": "default"},
		}}, func(c *model.Config) bool {
			return c.Rope.Theta == 5e5 && c.Rope.Factor == 8 && c.LocalRope.Theta == 3e4 && c.LocalRope.Type == ""
		}},
		{"Qwen3_5", change{"num_hidden_layers": 9, "rope_theta": remove, "full_attention_interval": 3}, func(c *model.Config) bool {
			return slices.Equal(c.Delta.Full, []int{2, 5, 8}) && c.RecurrentLayers() == 6 && c.CacheLayers() == 3 &&
				c.CacheOf(5) == 1 && c.CacheOf(6) == 4 && c.HeadDim == 256 && c.Rotated == 64 &&
				c.Delta.KeyHeads == 16 && c.Delta.ValueHeads == 32 && c.Delta.KeyDim == 128 && c.Delta.ValueDim == 128 &&
				c.Delta.Taps == 4 && c.OutputGate && c.NormsAddOne && c.Rope.Theta == 10000
		}},
		{"Qwen3_5", change{"layer_types": []string{"full_attention", "linear_attention"}, "linear_num_value_heads": 16, "rope_theta": remove,
			"rope_parameters": map[string]any{"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.5,
				"mrope_section": []int{11, 11, 10}, "mrope_interleaved": true}}, func(c *model.Config) bool {
			return slices.Equal(c.Delta.Full, []int{0}) && c.CacheOf(1) == 0 && c.Recurrent(1) && c.Rotated == 128 && c.Rope.Theta == 1e7
		}},
		{"Lfm2", change{"num_hidden_layers": 3, "full_attn_idxs": []int{1}, "intermediate_size": 96, "block_ff_dim": 100,
			"block_multiple_of": 16, "rope_theta": remove, "tie_word_embeddings": remove}, func(c *model.Config) bool {
			return c.FFN == 80 && c.Delta.Kind == recurrent.ShortConv && c.Delta.KeyHeads == 2 && c.Delta.ValueDim == 32 && c.Delta.Taps == 3 &&
				slices.Equal(c.Delta.Full, []int{1}) && c.Recurrent(2) && c.Tied && c.QKNorm && c.Rope.Theta == 1e6 && c.NormEps == 1e-5
		}},
		{"Lfm2", change{"layer_types": []string{"conv", "full_attention"}, "block_auto_adjust_ff_dim": false,
			"tie_embedding": false, "block_ffn_dim_multiplier": 3, "norm_eps": 1e-3}, func(c *model.Config) bool {
			return c.FFN == 96 && slices.Equal(c.Delta.Full, []int{1}) && !c.Tied && c.NormEps == 1e-3
		}},
		{"Lfm2Moe", change{"layer_types": []string{"conv", "full_attention"}, "num_dense_layers": 1, "num_experts": 4, "num_experts_per_tok": 2},
			func(c *model.Config) bool {
				return c.FFN == 96 && c.MoE.FFN == 1792 && c.MoE.Router.Bias && c.MoE.Router.SumPlus == 1e-6 && slices.Equal(c.MoE.Dense, []int{0})
			}},
		{"GraniteMoeHybrid", change{"layer_types": []string{"linear_attention", "full_attention"}, "mamba_n_heads": 12,
			"mamba_d_head": "auto", "hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 16,
			"num_local_experts": 0, "time_step_limit": []float64{0.1, 2}, "shared_intermediate_size": 40}, func(c *model.Config) bool {
			d := c.Delta // 12 heads of width 16: three key heads, as there are KV heads
			return d.Kind == recurrent.Mamba2 && d.KeyHeads == 3 && d.ValueHeads == 12 && d.ValueDim == 16 && d.KeyDim == 256 &&
				d.Taps == 4 && d.Groups == 1 && d.ConvBias && d.TimeStep == [2]float32{0.1, 2} && c.FFN == 40 && len(c.Unrotated) == 2
		}},
		{"GraniteMoeHybrid", change{"layers_block_type": []string{"mamba", "attention"}, "mamba_n_heads": 8,
			"mamba_n_groups": 2, "mamba_conv_bias": false, "position_embedding_type": "rope", "num_local_experts": 4,
			"time_step_limit": []any{0, map[string]string{"__float__": "Infinity"}}}, func(c *model.Config) bool {
			return c.Delta.KeyHeads == 2 && c.Delta.ValueDim == 16 && !c.Delta.ConvBias &&
				c.Delta.TimeStep == [2]float32{} && c.MoE.FFN == 96 && c.MoE.Shared == 1024 && c.Unrotated == nil
		}},
		{"SmolLM3", change{"num_hidden_layers": 8, "rope_theta": remove, "tie_word_embeddings": remove}, func(c *model.Config) bool {
			return slices.Equal(c.Unrotated, []int{3, 7}) && c.RopeOf(2) == 0 && c.RopeOf(3) == 1 &&
				c.Rope.Theta == 2e6 && c.Tied && c.Windows == nil
		}},
		{"SmolLM3", change{"no_rope_layers": []int{0, 1, 1}, "no_rope_layer_interval": 1,
			"layer_types": []string{"sliding_attention", "full_attention"}, "sliding_window": 8}, func(c *model.Config) bool {
			return slices.Equal(c.Unrotated, []int{0}) && c.Window(0) == 8 && c.Window(1) == 0
		}},
		{"SmolLM3", change{"no_rope_layer_interval": 2, "use_sliding_window": true, "sliding_window": 8}, func(c *model.Config) bool {
			return slices.Equal(c.Unrotated, []int{1}) && c.Window(0) == 0 && c.Window(1) == 8
		}},
		{"Glm4", change{"head_dim": remove, "hidden_size": 512, "num_key_value_heads": remove, "rms_norm_eps": remove},
			func(c *model.Config) bool {
				return c.HeadDim == 128 && c.Rotated == 64 && c.Neighbours && c.QKVBias && !c.OutBias && c.KVHeads == 2 && c.NormEps == 1.5625e-7
			}},
		{"Glm", change{"head_dim": 16, "partial_rotary_factor": 1, "attention_bias": false},
			func(c *model.Config) bool { return c.Rotated == 0 && c.Neighbours && !c.QKVBias }},
		{"Glm4", change{"head_dim": 16, "rope_theta": remove, "rope_parameters": map[string]any{"partial_rotary_factor": 0.25,
			"rope_theta": 1e4}}, func(c *model.Config) bool { return c.Rotated == 4 }},
		{"Ernie4_5", change{"tie_word_embeddings": remove, "rope_theta": remove}, func(c *model.Config) bool {
			return c.HeadDim == 128 && c.Neighbours && c.Tied && !c.QKVBias && c.Rope.Theta == 5e5
		}},
		{"Ministral3", change{"max_position_embeddings": 64, "head_dim": nil, "rope_scaling": map[string]any{"type": "yarn", "factor": 16,
			"original_max_position_embeddings": 16, "mscale": 1, "mscale_all_dim": 1, "llama_4_scaling_beta": 0.1}}, func(c *model.Config) bool {
			return c.Growth == model.Growth{Beta: 0.1, Original: 16} && c.MaxPositions == 256 && c.Rope.Amplitude == 1 &&
				c.AttentionScale() == 0.25 && c.Windows == nil
		}},
		{"Cohere", change{"rope_theta": remove}, func(c *model.Config) bool { return c.Rope.Theta == 5e5 }},
		{"Cohere2", change{"rope_theta": remove}, func(c *model.Config) bool { return c.Rope.Theta == 1e4 }},
		{"Mixtral", change{"rms_norm_eps": remove, "num_key_value_heads": remove, "num_attention_heads": 16, "hidden_size": 256},
			func(c *model.Config) bool { return c.NormEps == 1e-5 && c.KVHeads == 8 }},
		// null, unlike a missing key: as the query heads
		{"Mistral", change{"num_key_value_heads": nil}, func(c *model.Config) bool { return c.KVHeads == 4 }},
		{"Qwen2Moe", change{"num_hidden_layers": 5, "use_sliding_window": true, "sliding_window": 8, "max_window_layers": 4},
			func(c *model.Config) bool { return slices.Equal(c.Windows, []int{8, 0, 8, 0, 0}) }},
		{"Qwen3Moe", change{"use_sliding_window": true, "sliding_window": 8, "max_window_layers": 1, "layer_types": []string{"full_attention",
			"full_attention"}}, func(c *model.Config) bool { return slices.Equal(c.Windows, []int{8, 8}) }},
		{"Llama4", change{"num_hidden_layers": 8, "max_position_embeddings": 10485760, "intermediate_size": 16,
			"interleave_moe_layer_step": 2, "attn_temperature_tuning": 4, "no_rope_layers": []int{}}, func(c *model.Config) bool {
			return c.FFN == 16384 && c.MoE.FFN == 16 && c.MoE.Experts == 16 && slices.Equal(c.MoE.Dense, []int{0, 2, 4, 6}) &&
				slices.Equal(c.Unrotated, []int{3, 7}) && c.Growth == model.Growth{Beta: 0.1, Original: 8192, Next: true, Unrotated: true} &&
				c.Chunked && slices.Equal(c.Windows, []int{8192, 8192, 8192, 0, 8192, 8192, 8192, 0}) &&
				c.Layer(0).UnitNorm && !c.Layer(3).UnitNorm && c.Layer(3).Grows && !c.Layer(0).Grows
		}},
		{"Llama4", change{"num_hidden_layers": 4, "max_position_embeddings": 131072, "attention_chunk_size": nil,
			"attn_temperature_tuning": false, "moe_layers": []int{}, "use_qk_norm": false}, func(c *model.Config) bool {
			return c.MoE.Experts == 0 && !c.Chunked && c.Windows == nil && c.Growth == model.Growth{} && !c.Layer(0).UnitNorm
		}},
	} {
		full := change{"architectures": []string{test.arch + "ForCausalLM"}}
		for k, v := range test.c {
			full[k] = v
		}
		if c, err := model.ParseConfig("d", with(full), nil); err != nil || !test.want(&c) {
			t.Errorf("%s %v: %+v, %v", test.arch, test.c, c, err)
		}
	}
}

// moe returns the keys of a family with experts.
func moe(arch string, c change) change {
	full := change{"architectures": []string{arch + "ForCausalLM"}, "num_hidden_layers": 6}
	for k, v := range c {
		full[k] = v
	}
	return full
}

// glmFlash returns the keys of GLM-4.7-Flash.
func glmFlash() change {
	return change{"architectures": []string{"Glm4MoeLiteForCausalLM"}, "kv_lora_rank": 16, "num_hidden_layers": 3}
}

func TestFamiliesWithExperts(t *testing.T) {
	for _, test := range []struct {
		c    change
		want model.MoE
	}{
		{moe("Mixtral", nil), model.MoE{Experts: 8, PerToken: 2, FFN: 96, Router: model.Router{Score: model.Softmax, Normalise: true, Scale: 1}}},
		{moe("Mixtral", change{"num_local_experts": 4, "num_experts_per_tok": 4}),
			model.MoE{Experts: 4, PerToken: 4, FFN: 96, Router: model.Router{Score: model.Softmax, Normalise: true, Scale: 1}}},
		{moe("Qwen3Moe", nil), model.MoE{Experts: 128, PerToken: 8, FFN: 768, Router: model.Router{Score: model.Softmax, Scale: 1}}},
		{moe("Qwen3Moe", change{"num_local_experts": 16, "norm_topk_prob": true, "moe_intermediate_size": 40,
			"decoder_sparse_step": 2, "mlp_only_layers": []int{5, 4}}),
			model.MoE{Experts: 16, PerToken: 8,
				FFN: 40, Router: model.Router{Score: model.Softmax, Normalise: true, Scale: 1}, Dense: []int{0, 2, 4, 5}}},
	} {
		if c, err := model.ParseConfig("d", with(test.c), nil); err != nil || !reflect.DeepEqual(c.MoE, test.want) {
			t.Errorf("%v: %+v, %v; want %+v", test.c, c.MoE, err, test.want)
		}
	}
	if _, err := model.ParseConfig("d", with(moe("Qwen3Moe", change{"num_experts": 4096, "num_hidden_layers": 1024})),
		nil); !errors.Is(err, model.ErrOutOfRange) {
		t.Errorf("12 million expert tensors: %v", err)
	}
	if c, err := model.ParseConfig("d", with(glmFlash()), nil); err != nil || c.MoE.Experts != 64 || c.MoE.Router.Groups != 0 ||
		c.MoE.Router.Scale != 1.8 || !slices.Equal(c.MoE.Dense, []int{0}) || c.HeadDim != 256 || c.Latent.Value != 256 {
		t.Errorf("GLM-4.7-Flash: %+v, %v", c, err)
	}
	moe45 := change{"architectures": []string{"Glm4MoeForCausalLM"}, "num_hidden_layers": 3, "head_dim": 16, "use_qk_norm": true}
	if c, err := model.ParseConfig("d", with(moe45), nil); err != nil || c.Rotated != 8 || c.Neighbours || !c.QKNorm || c.QKVBias ||
		c.MoE.Experts != 128 || c.MoE.Shared != 1408 || !c.MoE.Router.Bias || c.MoE.Router.Scale != 1 || !slices.Equal(c.MoE.Dense, []int{0}) {
		t.Errorf("GLM-4.5: %+v, %v", c, err)
	}
	if c, err := model.ParseConfig("d", with(change{"architectures": []string{"Qwen2MoeForCausalLM"}, "qkv_bias": false}), nil); err != nil ||
		c.QKVBias || !c.MoE.Gated || c.MoE.Shared != 5632 || c.MoE.Router.Normalise || c.MoE.Experts != 60 {
		t.Errorf("Qwen2 with experts: %+v, %v", c, err)
	}
}

// TestRefusedFields: a family refuses values that it does not support. The error names the field.
func TestRefusedFields(t *testing.T) {
	for _, test := range []struct{ base, fields change }{
		{moe("Qwen3Moe", nil), change{"num_experts": 0, "num_experts_per_tok": 129, "mlp_only_layers": []int{6},
			"decoder_sparse_step": 0, "moe_intermediate_size": -1}},
		{change{"architectures": []string{"Phi3ForCausalLM"}}, change{"partial_rotary_factor": 0.1,
			"rope_scaling": map[string]any{"type": "longrope"}, "hidden_act": "gelu", "sliding_window": 0}},
		{change{"architectures": []string{"SmolLM3ForCausalLM"}}, change{"no_rope_layers": []int{1}, "no_rope_layer_interval": 0,
			"attention_bias": 2, "partial_rotary_factor": 0.5}},
		{glmFlash(), change{"mlp_layer_types": []string{"dense", "sparse"},
			"scoring_func": "softmax", "partial_rotary_factor": 0.5}},
		{change{"architectures": []string{"Qwen3_5ForCausalLM"}, "num_hidden_layers": 4},
			change{"linear_num_value_heads": 17, "linear_num_key_heads": 0,
				"linear_conv_kernel_dim": 17, "layer_types": []string{"linear_attention", "sliding_attention"}, "attention_bias": true,
				"attn_output_gate": false, "output_gate_type": "sigmoid", "partial_rotary_factor": 0.001,
				"hidden_act": "gelu", "full_attention_interval": 0, "mrope_section": "x", "no_rope_layers": []int{0, 1}}},
		{change{"architectures": []string{"Lfm2ForCausalLM"}, "full_attn_idxs": []int{1}},
			change{"conv_bias": true, "layer_types": []string{"conv", "conv"},
				"full_attn_idxs": []int{9}, "conv_L_cache": 0, "block_multiple_of": 0}},
		{change{"architectures": []string{"Gemma3ForCausalLM"}, "rope_theta": remove},
			change{"attn_logit_softcapping": 0, "hidden_activation": "gelu", "layer_types": []string{"full_attention"},
				"query_pre_attn_scalar": 0, "rope_parameters": map[string]any{"full_attention": map[string]any{"rope_type": "yarn"}}}},
		{change{"architectures": []string{"Exaone4ForCausalLM"}}, change{"sliding_window_pattern": "LLLG",
			"layer_types": []string{"chunked_attention", "full_attention"}, "hidden_act": "gelu", "sliding_window": 0}},
		{change{"architectures": []string{"GlmMoeDsaForCausalLM"}, "num_hidden_layers": 2},
			change{"indexer_types": []string{"full", "shared"}, "index_topk_freq": 2,
				"index_topk_pattern": "FS", "index_head_dim": 8}},
		{change{"architectures": []string{"Cohere2ForCausalLM"}}, change{"use_qk_norm": true, "logit_scale": 0, "layer_norm_eps": -1,
			"use_parallel_block": false, "sliding_window_pattern": 0}},
		{change{"architectures": []string{"GraniteForCausalLM"}}, change{"attention_multiplier": 0, "embedding_multiplier": "x",
			"residual_multiplier": -1, "logits_scaling": 1e9}},
		{change{"architectures": []string{"Qwen2ForCausalLM"}, "use_sliding_window": true, "max_window_layers": 0},
			change{"sliding_window": 0, "hidden_act": "gelu", "layer_types": 3,
				"max_window_layers": -1, "use_sliding_window": "yes"}},
		{moe("GptOss", nil), change{"swiglu_limit": 5, "swiglu_alpha": 1.5, "hidden_act": "gelu",
			"sliding_window": 0, "num_experts_per_tok": 129}},
	} {
		for field, v := range test.fields {
			full := maps.Clone(test.base)
			full[field] = v
			if _, err := model.ParseConfig("d", with(full), nil); err == nil || !strings.Contains(err.Error(), field) {
				t.Errorf("%v, %s %v: %v", test.base["architectures"], field, v, err)
			}
		}
	}
	for _, r := range []struct {
		arch, field string
		v           any
	}{{"Glm4", "partial_rotary_factor", 0.1}, {"Glm4", "partial_rotary_factor", 1.5}, {"Glm4", "rope_parameters",
		map[string]any{"partial_rotary_factor": 0.5, "rope_theta": 7}}, {"Glm4", "rotary_dim", 4}, {"Ernie4_5", "partial_rotary_factor", 0.5},
		{"Ministral3", "rope_parameters", nil}, {"Ministral3", "rope_parameters", map[string]any{"llama_4_scaling_beta": 0.1}},
		{"Ministral3", "rope_parameters", map[string]any{"llama_4_scaling_beta": -1, "original_max_position_embeddings": 16}}} {
		if _, err := model.ParseConfig("d", with(change{"architectures": []string{r.arch + "ForCausalLM"}, "head_dim": 16, r.field: r.v}),
			nil); err == nil || !strings.Contains(err.Error(), r.field) {
			t.Errorf("%s, %s %v: %v", r.arch, r.field, r.v, err)
		}
	}
}

// TestRefusedLayers: a family refuses layers, states and rotations that it does not support.
func TestRefusedLayers(t *testing.T) {
	latent := glmFlash()
	latent["mlp_layer_types"] = []string{"sparse", "other", "dense"}
	if _, err := model.ParseConfig("d", with(latent), nil); err == nil || !strings.Contains(err.Error(), `layer 1: "other" is not supported`) {
		t.Errorf("GLM-4.7-Flash, a layer of another kind: %v", err)
	}
	if _, err := model.ParseConfig("d", with(change{"architectures": []string{"SmolLM3ForCausalLM"}, "no_rope_layers": []int{1, 2}}),
		nil); err == nil || !strings.Contains(err.Error(), "layer 1: 2 is neither 0 nor 1") {
		t.Errorf("SmolLM3, a layer that is neither: %v", err)
	}
	for field, v := range map[string]any{"mamba_n_heads": 7, "mamba_n_groups": 3, "mamba_d_head": 5, "layer_types": []string{"mamba"},
		"mamba_proj_bias": true, "time_step_limit": []int{2, 1}, "mamba_expand": 0, "mamba_d_conv": 99, "position_embedding_type": 3} {
		full := change{"architectures": []string{GraniteHybrid}, "num_local_experts": 0,
			"layer_types": []string{"mamba", "attention"}, "mamba_n_heads": 8, field: v}
		if _, err := model.ParseConfig("d", with(full), nil); err == nil ||
			!strings.Contains(err.Error(), strings.TrimSuffix(field, "s")) && !strings.Contains(err.Error(), "mamba_") {
			t.Errorf("%s %v: %v", field, v, err)
		}
	}
	if _, err := model.ParseConfig("d", with(change{
		"architectures": []string{"Qwen3_5ForCausalLM"},
		"layer_types":   []string{"linear_attention", "linear_attention"},
	}), nil); !errors.Is(err, model.ErrUnsupported) {
		t.Errorf("Qwen3.5 without attention: %v", err)
	}
	for field, v := range map[string]any{
		"rope_scaling": map[string]any{"type": "dynamic", "factor": 2},
		"alpha":        map[string]any{"type": "dynamic", "alpha": 0},
	} {
		full := change{"architectures": []string{"HunYuanDenseV1ForCausalLM"}, "rope_scaling": v}
		if _, err := model.ParseConfig("d", with(full), nil); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("Hunyuan, %s %v: %v", field, v, err)
		}
	}
}

func TestRefusedGemma4(t *testing.T) {
	layerHeads := func(layer int, v map[string]any) map[string]any { return map[string]any{strconv.Itoa(layer): v} }
	for i, test := range []change{{"attention_k_eq_v": "x"}, {"num_kv_shared_layers": 7}, {"num_kv_shared_layers": 6},
		{"num_kv_shared_layers": -1}, {"global_head_dim": 15}, {"global_head_dim": 1 << 20},
		{"attention_k_eq_v": true, "num_global_key_value_heads": 3}, {"hidden_size_per_layer_input": 1 << 20},
		{"vocab_size_per_layer_input": 7}, {"per_layer_config": layerHeads(0, map[string]any{"head_dim": 64})},
		{"per_layer_config": layerHeads(5, map[string]any{"head_dim": 64})},
		{"per_layer_config": layerHeads(5, map[string]any{"sliding_window": 64})},
		{"rope_parameters": map[string]any{"full_attention": map[string]any{"rope_theta": 1e6, "rope_type": "yarn"}}},
		{"rope_parameters": map[string]any{"rope_theta": 1e6}},
		{"rope_parameters": map[string]any{"full_attention": map[string]any{"rope_theta": 1e6, "partial_rotary_factor": 0.5}}},
		{"rope_parameters": map[string]any{"sliding_attention": map[string]any{"rope_theta": 1e6, "rope_type": "default", "factor": 2}}},
		{"rope_scaling": map[string]any{"rope_type": "linear", "factor": 2}},
		{"enable_moe_block": true, "top_k_experts": 2, "moe_intermediate_size": 8}, {"enable_moe_block": true, "num_experts": 4,
			"top_k_experts": 5, "moe_intermediate_size": 8}, {"use_bidirectional_attention": "all"}, {"final_logit_softcapping": -1}} {
		full := change{"architectures": []string{Gemma4}, "num_hidden_layers": 7, "hidden_activation": "gelu_pytorch_tanh"}
		var fields []string
		for k, v := range test {
			full[k] = v
			fields = append(fields, k)
		}
		_, err := model.ParseConfig("d", with(full), nil)
		if err == nil || !slices.ContainsFunc(fields, func(field string) bool { return strings.Contains(err.Error(), field) }) &&
			!strings.Contains(err.Error(), "num_experts") {
			t.Errorf("Gemma 4, case %d, %v: %v", i, test, err)
		}
	}
}

func marshal(t *testing.T, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// A layer with a window whose size is null is refused, as by transformers. A missing size is the family's default.
func TestWindowsWithoutSize(t *testing.T) {
	for _, arch := range []string{"Gemma2ForCausalLM", "Gemma3ForCausalLM", "Gemma4ForCausalLM", "GptOssForCausalLM", "Olmo3ForCausalLM",
		"Cohere2ForCausalLM", "Qwen2ForCausalLM"} {
		c := change{"architectures": []string{arch}, "num_hidden_layers": 4, "head_dim": 16, "rms_norm_eps": 1e-5, "rope_theta": remove,
			"layer_types": []string{"sliding_attention", "full_attention", "sliding_attention", "full_attention"}, "sliding_window": 8}
		if arch == "Gemma4ForCausalLM" {
			c["global_head_dim"], c["hidden_size_per_layer_input"] = 16, 0
		}
		if got, err := model.ParseConfig("m", with(c), nil); err != nil || got.Window(0) != 8 {
			t.Errorf("%s: window %d, %v", arch, got.Window(0), err)
		}
		c["sliding_window"] = nil
		_, err := model.ParseConfig("m", with(c), nil)
		if e, ok := errors.AsType[*model.Error](err); !ok || e.Field != "sliding_window" {
			t.Errorf("%s with a window of null: %v", arch, err)
		}
	}
}
