package ggufconfig

import (
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/internal/attempt"
	"github.com/shoal-llm/shoal/internal/engine/gguf"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/recurrent"
)

// Families that combine attention, Mamba-2 and FFNs in other ways: Falcon-H1 and Nemotron-H.

var falconH1GGUF = mambaGGUF("mamba", map[string]string{"ffn_norm": "pre_ff_layernorm", "ffn_gate": "feed_forward.gate_proj",
	"ffn_up": "feed_forward.up_proj", "ffn_down": "feed_forward.down_proj"})

var nemotronHGGUF = mambaGGUF("mixer", map[string]string{
	"attn_norm": "norm", "attn_q": "mixer.q_proj", "attn_k": "mixer.k_proj", "attn_v": "mixer.v_proj", "attn_output": "mixer.o_proj",
	"ffn_up": "mixer.up_proj", "ffn_down": "mixer.down_proj", "ffn_up_shexp": "mixer.shared_experts.up_proj",
	"ffn_down_shexp":   "mixer.shared_experts.down_proj",
	"exp_probs_b.bias": "mixer.gate.e_score_correction_bias",
})

// falconH1 reads from the tensors whether there is a norm. The norm follows the gate.
func (m *metadata) falconH1() {
	m.mamba("mamba_d_conv", "mamba_d_state", "mamba_n_groups", "mamba_n_heads", "mamba_d_head")
	m.need("ssm.inner_size", "mamba_d_ssm")
	m.set("mamba_rms_norm", m.arch+".ssm.inner_size", m.hasPart("ssm_norm.weight"))
	m.set("mamba_norm_before_gate", m.arch+".ssm.inner_size", false)
	m.set("mamba_conv_bias", m.arch+".ssm.conv_kernel", m.hasPart("ssm_conv1d.bias"))
}

// nemotronH reads the kind of each block: with KV heads attention, with an inner width an FFN or experts.
func (m *metadata) nemotronH() {
	blocks := m.count("block_count", model.MaxLayers)
	kv, ffn := m.listFrom(headCounts, blocks, 0, model.MaxHeads), m.listFrom("feed_forward_length", blocks, 0, model.MaxFFN)
	pattern := make([]byte, blocks)
	for i := range pattern {
		pattern[i] = recurrent.MambaBlock
		switch {
		case kv[i] > 0 && ffn[i] > 0:
			m.fail("feed_forward_length", model.ErrUnsupported,
				"block %d has attention and an FFN, as blocks that predict further tokens have; convert the model with --no-mtp", i)
		case kv[i] > 0:
			pattern[i] = recurrent.AttentionBlock
			m.setEqual("num_key_value_heads", headCounts, kv[i])
		case ffn[i] > 0 && m.arch == "nemotron_h_moe" && !m.has(fmt.Sprintf("blk.%d.ffn_down.weight", i)):
			pattern[i] = recurrent.ExpertBlock
		case ffn[i] > 0:
			pattern[i] = recurrent.DenseBlock
			m.setEqual("intermediate_size", "feed_forward_length", ffn[i])
		}
	}
	m.set("hybrid_override_pattern", m.arch+".feed_forward_length", string(pattern))
	m.take("attention.layer_norm_rms_epsilon", "layer_norm_epsilon")
	m.mamba("conv_kernel", "ssm_state_size", "n_groups", "mamba_num_heads", "mamba_head_dim")
	m.set("use_conv_bias", m.arch+".ssm.conv_kernel", m.hasPart("ssm_conv1d.bias"))
	m.set("mlp_hidden_act", "general.architecture", "relu2")
	if m.arch == "nemotron_h_moe" {
		for _, p := range [][2]string{{"expert_count", "n_routed_experts"}, {"expert_used_count", "num_experts_per_tok"},
			{"expert_feed_forward_length", "moe_intermediate_size"},
			{"expert_shared_feed_forward_length", "moe_shared_expert_intermediate_size"}} {
			m.need(p[0], p[1])
		}
		for _, p := range [][2]string{{"expert_weights_scale", "routed_scaling_factor"}, {"expert_group_count", "n_group"},
			{"expert_group_used_count", "topk_group"}, {"moe_latent_size", "moe_latent_size"}} {
			m.take(p[0], p[1])
		}
		const norm = "expert_weights_norm"
		m.set("norm_topk_prob", m.arch+"."+norm, attempt.Must(m.f.Bool(m.arch+"."+norm, true)))
		m.read[m.arch+"."+norm] = true
		if _, ok := m.f.Value(m.arch + ".expert_gating_func"); ok {
			m.sigmoid()
		}
		m.take("expert_shared_count", "n_shared_experts")
	}
}

// setEqual sets a field that several blocks have, which must agree.
func (m *metadata) setEqual(field, key string, n int) {
	if have, ok := m.config[field].(int); ok && have != n {
		m.fail(key, model.ErrUnsupported, "blocks have %d and %d", have, n)
	}
	m.set(field, m.arch+"."+key, n)
}

// hasPart reports whether any block has a part.
func (m *metadata) hasPart(part string) bool {
	return slices.ContainsFunc(m.tensors, func(t gguf.Tensor) bool { return strings.HasSuffix(t.Name, "."+part) })
}
