package ggufconfig

import (
	"strconv"
	"strings"

	"github.com/shoal-llm/shoal/internal/attempt"
	"github.com/shoal-llm/shoal/internal/engine/model"
)

// mixture reads the number of experts, under the field names of Mixtral and Qwen. It returns false
// if there are none.
func (m *metadata) mixture() bool {
	n := attempt.Must(m.f.Int(m.arch+".expert_count", 0, 0, model.MaxExperts))
	if n == 0 {
		return false
	}
	for _, p := range [][2]string{{"expert_count", "num_local_experts"}, {"expert_used_count", "num_experts_per_tok"}} {
		m.need(p[0], p[1])
	}
	return true
}

// need copies a required number to a field of config.json, as take does.
func (m *metadata) need(key, field string) {
	if _, ok := m.f.Value(m.arch + "." + key); !ok {
		panic(attempt.Failure{Err: &model.Error{Field: m.arch + "." + key, Kind: model.ErrMissing, Detail: "missing"}})
	}
	m.take(key, field)
}

// qwen3moe reads a Qwen3 with experts. llama.cpp always divides the weights of Mixtral's and
// Qwen3's experts by their sum and has no key for it. The tensors show which layers are dense.
func (m *metadata) qwen3moe() {
	m.experts()
	m.need("expert_feed_forward_length", "moe_intermediate_size")
	m.set("norm_topk_prob", "general.architecture", true)
	m.set("mlp_only_layers", "block_count", m.dense())
	m.qwenVL()
}

// dense lists the layers without experts, by their tensors.
func (m *metadata) dense() (layers []int) {
	for _, t := range m.tensors {
		if layer, part, ok := BlockName(t.Name); ok && part == "ffn_gate.weight" {
			layers = append(layers, layer)
		}
	}
	return layers
}

// BlockName splits names like "blk.7.ffn_gate.weight".
func BlockName(name string) (layer int, part string, ok bool) {
	rest, inside := strings.CutPrefix(name, "blk.")
	number, part, cut := strings.Cut(rest, ".")
	layer, err := strconv.Atoi(number)
	return layer, part, inside && cut && err == nil && layer >= 0 && layer < model.MaxLayers
}
