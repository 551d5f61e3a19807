// Package tinyconfig has a config of a small model of every architecture.
package tinyconfig

import (
	"encoding/json"
	"fmt"
	"maps"
)

// tinies has one config of every architecture with all of its special settings, as small as
// possible. Self-tests compute them, and tests of broken files and fuzzers start from them.
var tinies = map[string]map[string]any{
	"LlamaForCausalLM": {"rope_scaling": map[string]any{"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
		"original_max_position_embeddings": 16}},
	"LlamaSwiftKVForCausalLM": {"num_hidden_layers": 4, "num_key_value_layers": 1, "key_value_group_size": 2, "swiftkv": true},
	"MistralForCausalLM":      {"sliding_window": 16},
	"Phi3ForCausalLM":         {"sliding_window": 16},
	"Qwen2ForCausalLM":        {"use_sliding_window": true, "sliding_window": 8, "max_window_layers": 0},
	"Qwen3ForCausalLM":        {"tie_word_embeddings": true},
	"Ernie4_5ForCausalLM":     {"use_bias": true},
	"GlmForCausalLM":          {"attention_bias": true, "partial_rotary_factor": 0.5},
	"Glm4ForCausalLM":         {"attention_bias": false, "partial_rotary_factor": 0.5},
	"Ministral3ForCausalLM": {"rope_scaling": map[string]any{"rope_type": "yarn", "factor": 4,
		"original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.1}},
	"Llama4ForCausalLM": {"no_rope_layers": []int{1, 0}, "attention_chunk_size": 24, "floor_scale": 8, "num_local_experts": 3,
		"interleave_moe_layer_step": 2, "intermediate_size_mlp": 24},
	"SmolLM3ForCausalLM": {"no_rope_layers": []int{1, 0}},
	"MixtralForCausalLM": {"num_local_experts": 3, "num_experts_per_tok": 2},
	"Qwen3MoeForCausalLM": {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 8,
		"norm_topk_prob": true, "mlp_only_layers": []int{1}},
	"GraniteForCausalLM": {"embedding_multiplier": 12, "attention_multiplier": 0.25, "residual_multiplier": 0.22, "logits_scaling": 3},
	"GemmaForCausalLM":   {"hidden_act": "gelu"},
	"Gemma2ForCausalLM": {"hidden_act": "gelu_pytorch_tanh", "sliding_window": 8, "query_pre_attn_scalar": 8,
		"attn_logit_softcapping": 2, "final_logit_softcapping": 8},
	"Qwen3_5MoeForCausalLM": {"layer_types": []string{"linear_attention", "full_attention"}, "linear_num_key_heads": 2,
		"linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 4,
		"num_attention_heads": 4, "num_key_value_heads": 2, "partial_rotary_factor": 0.5, "num_experts": 3, "num_experts_per_tok": 2,
		"moe_intermediate_size": 8, "shared_expert_intermediate_size": 16},
	"Qwen3NextForCausalLM": {"layer_types": []string{"linear_attention", "full_attention"}, "linear_num_key_heads": 2,
		"linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 4,
		"num_attention_heads": 4, "num_key_value_heads": 2, "partial_rotary_factor": 0.5, "num_experts": 3, "num_experts_per_tok": 2,
		"moe_intermediate_size": 8, "shared_expert_intermediate_size": 8, "mlp_only_layers": []int{0}},
	"Qwen3_5ForCausalLM": {"layer_types": []string{"linear_attention", "full_attention"}, "linear_num_key_heads": 2,
		"linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 4,
		"num_attention_heads": 4, "num_key_value_heads": 2, "partial_rotary_factor": 0.5},
	"Lfm2ForCausalLM": {"layer_types": []string{"conv", "full_attention"}, "num_attention_heads": 4,
		"num_key_value_heads": 2, "block_auto_adjust_ff_dim": false},
	"Lfm2MoeForCausalLM": {"layer_types": []string{"full_attention", "conv"}, "num_dense_layers": 1, "num_experts": 3,
		"num_experts_per_tok": 2, "moe_intermediate_size": 8},
	"GraniteMoeHybridForCausalLM": {"layer_types": []string{"mamba", "attention"}, "mamba_n_heads": 4, "mamba_d_state": 8,
		"num_local_experts": 3, "num_experts_per_tok": 2, "intermediate_size": 8, "shared_intermediate_size": 16,
		"num_attention_heads": 4, "num_key_value_heads": 2, "embedding_multiplier": 12, "attention_multiplier": 0.25,
		"residual_multiplier": 0.22, "logits_scaling": 3},
	"GptOssForCausalLM": {"sliding_window": 8, "num_local_experts": 3, "num_experts_per_tok": 2,
		"rope_scaling": map[string]any{"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 16, "truncate": false}},
	"Olmo2ForCausalLM":          {},
	"Olmo3ForCausalLM":          {"num_hidden_layers": 4, "sliding_window": 8},
	"Exaone4ForCausalLM":        {"num_hidden_layers": 4, "sliding_window": 8},
	"SeedOssForCausalLM":        {},
	"HunYuanDenseV1ForCausalLM": {"rope_scaling": map[string]any{"type": "dynamic", "alpha": 1000}},
	"CohereForCausalLM":         {"logit_scale": 0.25, "use_qk_norm": true},
	"Cohere2ForCausalLM":        {"num_hidden_layers": 4, "sliding_window": 8, "logit_scale": 0.25},
	"Gemma3ForCausalLM": {"hidden_activation": "gelu_pytorch_tanh", "sliding_window": 8, "sliding_window_pattern": 2,
		"rope_theta": 1e6, "rope_local_base_freq": 1e4,
		"query_pre_attn_scalar": 8, "rope_scaling": map[string]any{"rope_type": "linear", "factor": 8}},
	"Gemma4ForCausalLM": {"num_hidden_layers": 4, "layer_types": []string{"sliding_attention", "full_attention", "sliding_attention",
		"full_attention"}, "sliding_window": 8, "num_key_value_heads": 2,
		"global_head_dim": 16, "num_global_key_value_heads": 1, "attention_k_eq_v": true, "num_kv_shared_layers": 2,
		"hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": 12,
		"enable_moe_block": true, "num_experts": 3, "top_k_experts": 2, "moe_intermediate_size": 8, "tie_word_embeddings": true,
		"final_logit_softcapping": 30, "hidden_activation": "gelu_pytorch_tanh"},
	"Gemma4UnifiedForCausalLM": {"num_hidden_layers": 4, "layer_types": []string{"sliding_attention", "full_attention", "sliding_attention",
		"full_attention"}, "sliding_window": 8, "num_key_value_heads": 2,
		"global_head_dim": 16, "num_kv_shared_layers": 2, "use_double_wide_mlp": true, "tie_word_embeddings": true,
		"hidden_activation": "gelu_pytorch_tanh"},
	"MiniMaxM2ForCausalLM": {"num_local_experts": 3, "num_experts_per_tok": 2, "rotary_dim": 4},
	"OlmoeForCausalLM":     {"num_experts": 3, "num_experts_per_tok": 2},
	"GraniteMoeForCausalLM": {"num_local_experts": 3, "num_experts_per_tok": 2, "embedding_multiplier": 12, "attention_multiplier": 0.25,
		"residual_multiplier": 0.22, "logits_scaling": 3},
	"Ernie4_5_MoeForCausalLM": {"moe_num_experts": 3, "moe_k": 2, "moe_intermediate_size": 8, "moe_num_shared_experts": 1},
	"HYV3ForCausalLM":         {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 8},
	"HunYuanMoEV1ForCausalLM": {"num_experts": 3, "moe_topk": []int{2, 2}, "moe_intermediate_size": 8,
		"rope_scaling": map[string]any{"type": "dynamic", "alpha": 1000}},
	"DeepseekV2ForCausalLM": tinyLatent(map[string]any{"q_lora_rank": nil, "topk_method": "group_limited_greedy",
		"scoring_func": "softmax", "norm_topk_prob": false}),
	"Glm4MoeForCausalLM": {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "first_k_dense_replace": 1,
		"use_qk_norm": true, "attention_bias": true, "partial_rotary_factor": 0.5},
	"Qwen2MoeForCausalLM": {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 8,
		"shared_expert_intermediate_size": 8, "mlp_only_layers": []int{1}},
	"Glm4MoeLiteForCausalLM": tinyLatent(map[string]any{"q_lora_rank": 8, "mlp_layer_types": []string{"sparse", "dense"}}),
	"GlmMoeDsaForCausalLM": tinyLatent(map[string]any{"q_lora_rank": 8, "norm_topk_prob": true, "index_n_heads": 2,
		"index_head_dim": 16, "index_topk": 8}),
	"DeepseekV32ForCausalLM": tinyLatent(map[string]any{"q_lora_rank": 8, "norm_topk_prob": true, "index_n_heads": 2,
		"index_head_dim": 16, "index_topk": 8}),
	"DeepseekV3ForCausalLM": tinyLatent(map[string]any{"q_lora_rank": 8, "topk_method": "noaux_tc",
		"scoring_func": "sigmoid", "norm_topk_prob": true}),
}

func tinyLatent(own map[string]any) map[string]any {
	maps.Copy(own, map[string]any{"num_key_value_heads": 2, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8,
		"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "n_group": 2, "topk_group": 1,
		"routed_scaling_factor": 2.5, "first_k_dense_replace": 1,
		"rope_scaling": map[string]any{"type": "yarn", "factor": 4, "original_max_position_embeddings": 16, "beta_fast": 32, "beta_slow": 1,
			"mscale": 0.707, "mscale_all_dim": 0.707}})
	return own
}

// Add adds the settings of an architecture that another package reads. It is called by init functions.
func Add(architecture string, settings map[string]any) { tinies[architecture] = settings }

// Of returns config.json of a small model of an architecture, in bf16.
func Of(architecture string) ([]byte, error) {
	own, ok := tinies[architecture]
	if !ok {
		return nil, fmt.Errorf("tinyconfig: %s has no small config: add a row to tinies", architecture)
	}
	c := map[string]any{"architectures": []string{architecture}, "hidden_size": 32, "num_hidden_layers": 2,
		"num_attention_heads": 2, "num_key_value_heads": 1,
		"head_dim": 8, "intermediate_size": 16, "vocab_size": 12, "max_position_embeddings": 64,
		"rms_norm_eps": 1e-5, "tie_word_embeddings": false,
		"bos_token_id": 0, "eos_token_id": 1, "rope_theta": 10000, "hidden_act": "silu", "torch_dtype": "bfloat16"}
	maps.Copy(c, own)
	return json.Marshal(c)
}
