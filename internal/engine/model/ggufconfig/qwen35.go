package ggufconfig

import "github.com/shoal-llm/shoal/internal/engine/model"

// Qwen3.5 (qwen35, qwen35moe) and Qwen3-Next (qwen3next) in GGUF. The converter adds the 1 of norms,
// and writes -exp(A_log). Qwen3.5's value heads are stored in turn: head 0 of every key head, then
// head 1 of every key head, and so on. The block of multi-token prediction follows the others.
var qwen35GGUF = map[string]string{
	"post_attention_norm": "post_attention_layernorm",
	"attn_qkv":            "linear_attn.in_proj_qkv", "attn_gate": "linear_attn.in_proj_z", "ssm_beta": "linear_attn.in_proj_b",
	"ssm_alpha": "linear_attn.in_proj_a",
	"ssm_ba":    "linear_attn.in_proj_ba", "ssm_conv1d": "linear_attn.conv1d",
	"ssm_norm": "linear_attn.norm", "ssm_out": "linear_attn.out_proj",
	"ssm_a": "linear_attn.A_log", "ssm_dt.bias": "linear_attn.dt_bias",
	"ffn_gate_shexp": "mlp.shared_expert.gate_proj", "ffn_up_shexp": "mlp.shared_expert.up_proj",
	"ffn_down_shexp":     "mlp.shared_expert.down_proj",
	"ffn_gate_inp_shexp": "mlp.shared_expert_gate",
}

func (m *metadata) qwen35() {
	m.withoutAhead()
	m.take("full_attention_interval", "full_attention_interval")
	m.need("ssm.conv_kernel", "linear_conv_kernel_dim")
	m.need("ssm.state_size", "linear_key_head_dim")
	m.need("ssm.group_count", "linear_num_key_heads")
	m.need("ssm.time_step_rank", "linear_num_value_heads")
	heads, inner := m.count("ssm.time_step_rank", model.MaxHeads), m.count("ssm.inner_size", model.MaxDeltaWidth)
	if inner%heads != 0 {
		m.fail("ssm.inner_size", model.ErrFormat, "%d is not a multiple of the %d value heads", inner, heads)
	}
	m.set("linear_value_head_dim", m.arch+".ssm.inner_size", inner/heads)
	m.read[m.arch+".rope.dimension_sections"] = true // see qwenVL
	dim, _ := m.config["head_dim"].(int64)
	if n := m.optional("rope.dimension_count", model.MaxHeadDim); n > 0 && dim > 0 {
		m.set("partial_rotary_factor", m.arch+".rope.dimension_count", float64(n)/float64(dim))
	}
}

func (m *metadata) qwen35moe() {
	m.qwen35()
	m.need("expert_count", "num_experts")
	m.need("expert_used_count", "num_experts_per_tok")
	m.need("expert_feed_forward_length", "moe_intermediate_size")
	m.need("expert_shared_feed_forward_length", "shared_expert_intermediate_size")
	if m.arch == "qwen3next" {
		m.set("mlp_only_layers", m.arch+".block_count", m.dense())
	}
}

func finishQwen35(c *model.Config) { c.NormsAddOne, c.Delta.Negated = false, c.Delta.KeyHeads > 0 }
