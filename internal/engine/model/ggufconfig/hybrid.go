package ggufconfig

import (
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/model"
)

// Families with layers that have a state: in GGUF, layers without KV heads.

// headCounts is the number of KV heads of each layer.
const headCounts = "attention.head_count_kv"

// hybrid reads which layers have attention. field and kinds are config.json's list and its two names.
func (m *metadata) hybrid(field, linear, full string) {
	key, layers := m.arch+"."+headCounts, m.count("block_count", model.MaxLayers)
	v, _ := m.f.Value(key)
	all, ok := v.Ints()
	if m.read[key] = true; !ok || len(all) != layers {
		m.fail(headCounts, model.ErrFormat, "%v is not a list of %d", v, layers)
	}
	kinds := slices.Repeat([]string{linear}, layers)
	for i, n := range all {
		have, _ := m.config["num_key_value_heads"].(int64)
		switch {
		case n == 0:
			continue
		case n < 0 || n > model.MaxHeads:
			m.fail(headCounts, model.ErrOutOfRange, "layer %d has %d; want 0..%d", i, n, model.MaxHeads)
		case have > 0 && have != n:
			m.fail(headCounts, model.ErrUnsupported, "layers have %d and %d KV heads", have, n)
		}
		kinds[i] = full
		m.set("num_key_value_heads", key, n)
	}
	m.set(field, key, kinds)
}

var lfm2GGUF = map[string]string{
	"attn_norm": "operator_norm", "ffn_norm": "ffn_norm", "attn_output": "self_attn.out_proj", "attn_q_norm": "self_attn.q_layernorm",
	"attn_k_norm": "self_attn.k_layernorm",
	"ffn_gate":    "feed_forward.w1", "ffn_up": "feed_forward.w3", "ffn_down": "feed_forward.w2",
	"exp_probs_b.bias":  "feed_forward.expert_bias",
	"shortconv.in_proj": "conv.in_proj", "shortconv.conv": "conv.conv", "shortconv.out_proj": "conv.out_proj",
}

func (m *metadata) lfm2() {
	m.hybrid("layer_types", "conv", "full_attention")
	m.need("shortconv.l_cache", "conv_L_cache")
	m.take("attention.layer_norm_rms_epsilon", "norm_eps")
	m.set("block_auto_adjust_ff_dim", m.arch+".feed_forward_length", false)
}

func (m *metadata) lfm2moe() {
	m.lfm2()
	for _, p := range [][2]string{{"expert_count", "num_experts"}, {"expert_used_count", "num_experts_per_tok"},
		{"expert_feed_forward_length", "moe_intermediate_size"}, {"leading_dense_block_count", "num_dense_layers"}} {
		m.need(p[0], p[1])
	}
	m.sigmoid()
}

// mambaGGUF names the tensors of Mamba-2 in a mixer's module.
func mambaGGUF(module string, more map[string]string) map[string]string {
	for part, name := range map[string]string{"ssm_in": "in_proj", "ssm_conv1d": "conv1d", "ssm_dt.bias": "dt_bias", "ssm_a": "A_log",
		"ssm_d": "D", "ssm_norm": "norm", "ssm_out": "out_proj"} {
		more[part] = module + "." + name
	}
	return more
}

var graniteHybridGGUF = mambaGGUF("mamba", map[string]string{
	"ffn_gate": "shared_mlp.gate_proj", "ffn_up": "shared_mlp.up_proj", "ffn_down": "shared_mlp.output_linear",
	"ffn_gate_shexp": "shared_mlp.gate_proj", "ffn_up_shexp": "shared_mlp.up_proj", "ffn_down_shexp": "shared_mlp.output_linear",
})

// graniteHybrid reads from rope.scaling.finetuned whether there are rotary positions.
func (m *metadata) graniteHybrid() {
	m.granite()
	m.hybrid("layer_types", "mamba", "attention")
	const rotates = "rope.scaling.finetuned"
	if v, ok := m.f.Value(m.arch + "." + rotates); !ok {
		m.set("position_embedding_type", m.arch+"."+rotates, "rope")
	} else if yes, _ := v.Bool(); yes {
		m.set("position_embedding_type", m.arch+"."+rotates, "rope")
	}
	m.set("shared_intermediate_size", m.arch+".feed_forward_length", m.config["intermediate_size"])
	m.take("expert_shared_feed_forward_length", "shared_intermediate_size")
	if !m.mixture() {
		m.set("num_local_experts", m.arch+".expert_count", 0)
	}
	m.mamba("mamba_d_conv", "mamba_d_state", "mamba_n_groups", "mamba_n_heads", "mamba_d_head")
	inner, hidden := m.count("ssm.inner_size", model.MaxDeltaWidth), m.count("embedding_length", model.MaxHidden)
	if inner%hidden != 0 {
		m.fail("ssm.inner_size", model.ErrUnsupported, "%d is not a multiple of the hidden size %d", inner, hidden)
	}
	m.set("mamba_expand", m.arch+".ssm.inner_size", inner/hidden)
	m.set("mamba_conv_bias", m.arch+".ssm.conv_kernel", m.hasPart("ssm_conv1d.bias"))
}

// mamba reads the sizes of Mamba-2 under the field names of a family.
func (m *metadata) mamba(taps, state, groups, heads, width string) {
	for _, p := range [][2]string{{"ssm.conv_kernel", taps}, {"ssm.state_size", state},
		{"ssm.group_count", groups}, {"ssm.time_step_rank", heads}} {
		m.need(p[0], p[1])
	}
	n, inner := m.count("ssm.time_step_rank", model.MaxHeads), m.count("ssm.inner_size", model.MaxDeltaWidth)
	if inner%n != 0 {
		m.fail("ssm.inner_size", model.ErrFormat, "%d is not a multiple of the %d heads", inner, n)
	}
	m.set(width, m.arch+".ssm.inner_size", inner/n)
}

func finishMamba(c *model.Config) { c.Delta.Negated = c.Delta.KeyHeads > 0 }
