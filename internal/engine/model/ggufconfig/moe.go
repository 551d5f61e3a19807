package ggufconfig

import (
	"maps"

	"github.com/shoal-llm/shoal/internal/engine/model"
)

// Families with experts in GGUF whose folders have fields of their own for them.

// sharedGGUF names shared experts and a correction bias. more are further names.
func sharedGGUF(shared, bias string, more map[string]string) map[string]string {
	names := map[string]string{"ffn_gate_shexp": shared + ".gate_proj", "ffn_up_shexp": shared + ".up_proj",
		"ffn_down_shexp": shared + ".down_proj", "exp_probs_b.bias": bias}
	maps.Copy(names, more)
	return names
}

// experts reads a mixture that the family must have.
func (m *metadata) experts() {
	if !m.mixture() {
		m.fail("expert_count", model.ErrMissing, "missing or 0")
	}
}

// sigmoid refuses a router with another function of its outputs.
func (m *metadata) sigmoid() {
	const sigmoid = 2
	if n := m.number("expert_gating_func", 0); n != sigmoid {
		m.fail("expert_gating_func", model.ErrUnsupported, "%g: only %d (sigmoid) is supported for this family", n, sigmoid)
	}
}

func (m *metadata) minimaxM2() {
	m.experts()
	m.need("expert_feed_forward_length", "intermediate_size")
	m.sigmoid()
	m.partial()
}

func (m *metadata) graniteMoE() {
	m.granite()
	m.experts()
}

// ernie45MoE reads the experts. The converter does not write the last layer with experts.
func (m *metadata) ernie45MoE() {
	for _, p := range [][2]string{{"expert_count", "moe_num_experts"}, {"expert_used_count", "moe_k"},
		{"expert_feed_forward_length", "moe_intermediate_size"},
		{"interleave_moe_layer_step", "moe_layer_interval"}, {"leading_dense_block_count", "moe_layer_start_index"}} {
		m.need(p[0], p[1])
	}
	m.sharedExperts("moe_num_shared_experts", 0)
}

func (m *metadata) hunyuanMoE() {
	for _, p := range [][2]string{{"expert_count", "num_experts"}, {"expert_used_count", "moe_topk"},
		{"expert_feed_forward_length", "moe_intermediate_size"}} {
		m.need(p[0], p[1])
	}
	m.sharedExperts("num_shared_expert", 1)
}

// sharedExperts reads the number of shared experts. If the file has their width, the number follows from
// that. least is the minimum.
func (m *metadata) sharedExperts(field string, least int) {
	each, n := m.count("expert_feed_forward_length", model.MaxFFN), m.optional("expert_shared_count", model.MaxExperts)
	if all := m.optional("expert_shared_feed_forward_length", model.MaxFFN); all > 0 {
		if n = all / each; all%each != 0 {
			m.fail("expert_shared_feed_forward_length", model.ErrUnsupported, "%d is not a multiple of the experts' %d", all, each)
		}
	}
	m.set(field, m.arch+".expert_shared_count", max(n, least))
}

// glm4moe excludes the last blocks, which predict further tokens.
func (m *metadata) glm4moe() {
	m.withoutAhead()
	m.deepseekExperts()
	m.sigmoid()
	m.partial()
	m.set("architectures", "general.architecture", []string{"Glm4MoeForCausalLM"})
	m.set("use_qk_norm", "general.architecture", m.has("blk.0.attn_q_norm.weight"))
}

// withoutAhead reads the number of layers, and subtracts those that predict further tokens.
func (m *metadata) withoutAhead() {
	blocks, ahead := m.count("block_count", model.MaxLayers), m.optional("nextn_predict_layers", model.MaxLayers)
	if ahead >= blocks {
		m.fail("nextn_predict_layers", model.ErrOutOfRange, "%d of %d blocks", ahead, blocks)
	}
	m.set("num_hidden_layers", m.arch+".block_count", blocks-ahead)
}
