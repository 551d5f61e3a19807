package ggufconfig

import (
	"fmt"
	"maps"
	"strconv"

	"github.com/shoal-llm/shoal/internal/attempt"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/families"
)

// Gemma 4 in GGUF. Settings that differ between layers are lists. The converter writes norms as
// they are, and the factors of proportional rotation as rope_freqs.weight: 1 for pairs that rotate,
// 1e30 for the others.
var gemma4GGUF = func() map[string]string {
	names := maps.Clone(gemmaGGUF)
	maps.Copy(names, map[string]string{
		"post_ffw_norm_1": "post_feedforward_layernorm_1", "post_ffw_norm_2": "post_feedforward_layernorm_2",
		"pre_ffw_norm_2": "pre_feedforward_layernorm_2",
		"inp_gate":       "per_layer_input_gate", "proj": "per_layer_projection", "post_norm": "post_per_layer_input_norm",
		"layer_output_scale.weight": "layer_scalar",
		"ffn_gate_inp":              "router.proj", "ffn_gate_inp.scale": "router.scale", "ffn_down_exps.scale": "router.per_expert_scale",
	})
	return names
}()

// listsGGUF names settings of all families that some read by layer.
var listsGGUF = map[string][]string{"gemma4": {"feed_forward_length", headCounts, "attention.key_length"}, "lfm2": {headCounts},
	"lfm2moe": {headCounts}, "granitehybrid": {headCounts}, "nemotron_h": {headCounts, "feed_forward_length"},
	"nemotron_h_moe": {headCounts, "feed_forward_length"}}

func (m *metadata) gemma4() {
	layers := m.count("block_count", model.MaxLayers)
	sliding, kinds := m.sliding(layers), make([]string, layers)
	shared := m.optional("shared_kv_layers", model.MaxLayers)
	if m.window(); shared >= layers {
		m.fail("shared_kv_layers", model.ErrOutOfRange, "%d of %d layers", shared, layers)
	}
	global, local := m.count("attention.key_length", model.MaxHeadDim), m.count("attention.key_length_swa", model.MaxHeadDim)
	kv, ffn := m.list("attention.head_count_kv", layers, model.MaxHeads), m.list("feed_forward_length", layers, 2*model.MaxFFN)
	m.set("head_dim", m.arch+".attention.key_length_swa", local)
	m.set("num_key_value_heads", m.arch+".attention.head_count_kv", kv[0])
	own, shapes, keys := layers-shared, map[string]any{}, false
	values := map[int]bool{}
	for _, t := range m.tensors {
		if layer, part, ok := BlockName(t.Name); ok && part == "attn_v.weight" {
			values[layer] = true
		}
	}
	for i := range layers {
		if kinds[i] = "full_attention"; sliding[i] {
			kinds[i] = "sliding_attention"
			m.set("num_key_value_heads", m.arch+".attention.head_count_kv", kv[i])
			continue
		}
		shapes[strconv.Itoa(i)] = map[string]any{"head_dim": global, "num_key_value_heads": kv[i]}
		keys = keys || i < own && !values[i]
	}
	for i := range layers {
		if sliding[i] && kv[i] != m.config["num_key_value_heads"] {
			m.fail("attention.head_count_kv", model.ErrUnsupported, "layers with a window have %d and %v KV heads",
				kv[i], m.config["num_key_value_heads"])
		}
	}
	m.set("layer_types", m.arch+".attention.sliding_window_pattern", kinds)
	m.set("per_layer_config", m.arch+".attention.head_count_kv", shapes)
	m.set("attention_k_eq_v", m.arch+".attention.head_count_kv", keys)
	m.set("num_kv_shared_layers", m.arch+".shared_kv_layers", shared)

	m.set("intermediate_size", m.arch+".feed_forward_length", ffn[0])
	wide := shared > 0 && ffn[layers-1] == 2*ffn[0]
	for i, n := range ffn {
		if n != ffn[0] && !(wide && i >= own && n == 2*ffn[0]) || wide && i >= own && n != 2*ffn[0] {
			m.fail("feed_forward_length", model.ErrUnsupported,
				"layer %d has %d; widths may differ only by a factor of 2 in the last %d layers", i, n, shared)
		}
	}
	m.set("use_double_wide_mlp", m.arch+".feed_forward_length", wide)

	m.set("hidden_size_per_layer_input", m.arch+".embedding_length_per_layer_input",
		m.optional("embedding_length_per_layer_input", families.MaxPerLayer))
	for _, t := range m.tensors {
		if t.Name == "per_layer_token_embd.weight" {
			m.set("vocab_size_per_layer_input", t.Name, t.Shape[0])
		}
	}
	m.take("final_logit_softcapping", "final_logit_softcapping")
	if n := m.optional("expert_count", model.MaxExperts); n > 0 {
		m.set("enable_moe_block", m.arch+".expert_count", true)
		m.set("num_experts", m.arch+".expert_count", n)
		m.need("expert_used_count", "top_k_experts")
		m.need("expert_feed_forward_length", "moe_intermediate_size")
	}
	full, swa := m.number("rope.freq_base", 1e6), m.number("rope.freq_base_swa", 1e4)
	delete(m.config, "rope_theta")
	m.set("rope_parameters", m.arch+".rope.freq_base",
		map[string]any{"full_attention": map[string]any{"rope_type": "default", "rope_theta": full},
			"sliding_attention": map[string]any{"rope_type": "default", "rope_theta": swa}})
}

func (m *metadata) fail(key string, kind error, format string, args ...any) {
	panic(attempt.Failure{Err: &model.Error{Field: m.arch + "." + key, Kind: kind, Detail: fmt.Sprintf(format, args...)}})
}

// optional reads a count up to most, 0 if it is missing. count requires one of at least 1.
func (m *metadata) optional(key string, most int) int {
	m.read[m.arch+"."+key] = true
	return int(attempt.Must(m.f.Int(m.arch+"."+key, 0, 0, int64(most))))
}

func (m *metadata) count(key string, most int) int {
	n := m.optional(key, most)
	if n < 1 {
		m.fail(key, model.ErrMissing, "missing or 0")
	}
	return n
}

// list reads a setting of every layer: a list, or one number for all.
func (m *metadata) list(key string, layers, most int) []int { return m.listFrom(key, layers, 1, most) }

func (m *metadata) listFrom(key string, layers, least, most int) []int {
	name := m.arch + "." + key
	m.read[name] = true
	v, ok := m.f.Value(name)
	if !ok {
		m.fail(key, model.ErrMissing, "missing")
	}
	all, ok := v.Ints()
	if n, one := v.Int(); !ok && one {
		all = make([]int64, layers)
		for i := range all {
			all[i] = n
		}
	} else if !ok || len(all) != layers {
		m.fail(key, model.ErrFormat, "%v is neither a number nor a list of %d", v, layers)
	}
	out := make([]int, layers)
	for i, n := range all {
		if n < int64(least) || n > int64(most) {
			m.fail(key, model.ErrOutOfRange, "layer %d has %d; want %d..%d", i, n, least, most)
		}
		out[i] = int(n)
	}
	return out
}

// sliding reads which layers have a window.
func (m *metadata) sliding(layers int) []bool {
	const key = "attention.sliding_window_pattern"
	m.read[m.arch+"."+key] = true
	v, ok := m.f.Value(m.arch + "." + key)
	if !ok {
		m.fail(key, model.ErrMissing, "missing")
	}
	flags, ok := v.Bools()
	if !ok || len(flags) != layers {
		m.fail(key, model.ErrFormat, "%v is not a list of %d flags", v, layers)
	}
	return flags
}
