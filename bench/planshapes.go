package bench

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/model"
)

// planShapes are public models by name: what their config.json says of their sizes.
var planShapes = map[string]string{
	"llama-3.1-8b": `{"architectures":["LlamaForCausalLM"],"hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,
		"intermediate_size":14336,"vocab_size":128256,"max_position_embeddings":131072,"dtype":"bfloat16"}`,
	"llama-3.1-70b": `{"architectures":["LlamaForCausalLM"],"hidden_size":8192,"num_hidden_layers":80,"num_attention_heads":64,"num_key_value_heads":8,
		"intermediate_size":28672,"vocab_size":128256,"max_position_embeddings":131072,"dtype":"bfloat16"}`,
	"qwen2.5-7b": `{"architectures":["Qwen2ForCausalLM"],"hidden_size":3584,"num_hidden_layers":28,"num_attention_heads":28,"num_key_value_heads":4,
		"intermediate_size":18944,"vocab_size":152064,"max_position_embeddings":131072,"dtype":"bfloat16"}`,
	"mistral-7b-v0.1": `{"architectures":["MistralForCausalLM"],"hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,
		"intermediate_size":14336,"vocab_size":32000,"max_position_embeddings":32768,"sliding_window":4096,"dtype":"bfloat16"}`,
	"gemma-3-27b": `{"architectures":["Gemma3ForCausalLM"],"hidden_size":5376,"num_hidden_layers":62,"num_attention_heads":32,"num_key_value_heads":16,"head_dim":128,
		"intermediate_size":21504,"vocab_size":262208,"max_position_embeddings":131072,"sliding_window":1024,"query_pre_attn_scalar":168,"dtype":"bfloat16"}`,
	// DeepSeek-V3's shape (arXiv 2412.19437, section 4.2); the layer that predicts further tokens is not read.
	"deepseek-r1": `{"architectures":["DeepseekV3ForCausalLM"],"hidden_size":7168,"num_hidden_layers":61,"num_attention_heads":128,"num_key_value_heads":128,
		"intermediate_size":18432,"vocab_size":129280,"max_position_embeddings":163840,"q_lora_rank":1536,"kv_lora_rank":512,"qk_nope_head_dim":128,"qk_rope_head_dim":64,"v_head_dim":128,
		"n_routed_experts":256,"n_shared_experts":1,"num_experts_per_tok":8,"moe_intermediate_size":2048,"n_group":8,"topk_group":4,"routed_scaling_factor":2.5,"first_k_dense_replace":3,
		"rope_scaling":{"type":"yarn","factor":40,"original_max_position_embeddings":4096,"beta_fast":32,"beta_slow":1,"mscale":1.0,"mscale_all_dim":1.0},"dtype":"bfloat16"}`,
	"deepseek-v2-lite": `{"architectures":["DeepseekV2ForCausalLM"],"hidden_size":2048,"num_hidden_layers":27,"num_attention_heads":16,"num_key_value_heads":16,
		"intermediate_size":10944,"vocab_size":102400,"max_position_embeddings":163840,"q_lora_rank":null,"kv_lora_rank":512,"qk_nope_head_dim":128,"qk_rope_head_dim":64,"v_head_dim":128,
		"n_routed_experts":64,"n_shared_experts":2,"num_experts_per_tok":6,"moe_intermediate_size":1408,"n_group":1,"topk_group":1,"routed_scaling_factor":1.0,"first_k_dense_replace":1,"topk_method":"greedy",
		"rope_scaling":{"type":"yarn","factor":40,"original_max_position_embeddings":4096,"beta_fast":32,"beta_slow":1,"mscale":0.707,"mscale_all_dim":0.707},"dtype":"bfloat16"}`,
	"qwen3-30b-a3b": `{"architectures":["Qwen3MoeForCausalLM"],"hidden_size":2048,"num_hidden_layers":48,"num_attention_heads":32,"num_key_value_heads":4,"head_dim":128,
		"intermediate_size":6144,"vocab_size":151936,"max_position_embeddings":40960,"num_experts":128,"num_experts_per_tok":8,"moe_intermediate_size":768,"norm_topk_prob":true,"dtype":"bfloat16"}`,
}

// PlanShapes are the names that PlanShape knows, sorted.
func PlanShapes() []string {
	return slices.Sorted(maps.Keys(planShapes))
}

// PlanShape is a public model by name.
func PlanShape(name string) (PlanModel, error) {
	text, ok := planShapes[name]
	if !ok {
		return PlanModel{}, fmt.Errorf("bench: no model is called %q; give a folder with a config.json, or one of: %s", name, strings.Join(PlanShapes(), ", "))
	}
	c, err := model.ParseConfig(name, []byte(text), nil)
	if err != nil {
		return PlanModel{}, err
	}
	return PlanModelOf(name, &c), nil
}
