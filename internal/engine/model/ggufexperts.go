package model

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/shoal-llm/shoal/internal/attempt"
	"github.com/shoal-llm/shoal/internal/engine/gguf"
)

// mixture reads the number of experts, under the field names of Mixtral and Qwen. It returns false
// if there are none.
func (m *metadata) mixture() bool {
	n := attempt.Must(m.f.Whole(m.arch+".expert_count", 0, 0, maxExperts))
	if n == 0 {
		return false
	}
	for _, p := range [][2]string{{"expert_count", "num_local_experts"}, {"expert_used_count", "num_experts_per_tok"}} {
		m.need(p[0], p[1])
	}
	return true
}

// need is take for a required key.
func (m *metadata) need(key, field string) {
	if _, ok := m.f.Value(m.arch + "." + key); !ok {
		panic(attempt.Failure{Err: &Error{Field: m.arch + "." + key, Kind: ErrMissing, Detail: "missing"}})
	}
	m.take(key, field)
}

// qwen3moe reads a Qwen3 with experts. llama.cpp always divides the weights of Mixtral's and
// Qwen3's experts by their sum and has no key for it. The tensors show which layers are dense.
func (m *metadata) qwen3moe() {
	m.experts()
	m.need("expert_feed_forward_length", "moe_intermediate_size")
	m.set("norm_topk_prob", "general.architecture", true)
	var dense []int
	for _, t := range m.tensors {
		if layer, part, ok := blockName(t.Name); ok && part == "ffn_gate.weight" {
			dense = append(dense, layer)
		}
	}
	m.set("mlp_only_layers", "block_count", dense)
	m.qwenVL()
}

// blockName splits names like "blk.7.ffn_gate.weight".
func blockName(name string) (layer int, part string, ok bool) {
	rest, inside := strings.CutPrefix(name, "blk.")
	number, part, cut := strings.Cut(rest, ".")
	layer, err := strconv.Atoi(number)
	return layer, part, inside && cut && err == nil && layer >= 0 && layer < maxLayers
}

// takeExperts registers the matrices of a layer's experts under their Hugging Face names; a GGUF
// file stacks them in one tensor (experts, rows, columns). It does the same for the router. It
// reports whether t was one of them.
func (c *Checkpoint) takeExperts(t gguf.Tensor, p place) (bool, error) {
	layer, part, ok := blockName(t.Name)
	if !ok || layer >= c.Config.Layers || !c.Config.Sparse(layer) {
		return false, nil
	}
	n, m := c.Config.Layer(layer).Experts, &c.Config.MoE
	which := map[string][]int{"ffn_gate_exps.weight": {0}, "ffn_up_exps.weight": {1}, "ffn_down_exps.weight": {2}, "ffn_gate_up_exps.weight": {0, 1}}
	parts, stacked := which[part]
	switch {
	case n.biasOf(part) != "":
		p.Name = n.biasOf(part)
		return true, c.add(p)
	case part == "ffn_gate_inp.weight":
		p.Name = n.Router
		return true, c.add(p)
	case !stacked:
		return false, nil
	case len(t.Shape) != 3 || t.Shape[0] != m.Experts || t.Shape[1]%len(parts) != 0:
		return true, &Error{File: p.path, Tensor: t.Name, Kind: ErrMismatch, Detail: fmt.Sprintf("has shape %v; its metadata has %d experts, want [%d rows columns]", t.Shape, m.Experts, m.Experts)}
	}
	rows := t.Shape[1] / len(parts)
	for e := range m.Experts {
		gate, up, down := n.Expert(e)
		for i, at := range parts {
			if err := c.add(p.matrix([3]string{gate, up, down}[at], e, i*rows, 1, rows, false)); err != nil {
				return true, err
			}
		}
	}
	return true, nil
}

// rename gives a tensor of the files another name, if there is one.
func (c *Checkpoint) rename(from, to string) error {
	p, ok := c.at[from]
	if !ok {
		return nil
	}
	delete(c.at, from)
	p.Name = to
	return c.add(p)
}

// add registers a tensor.
func (c *Checkpoint) add(p place) error {
	if old, ok := c.at[p.Name]; ok {
		return &Error{File: p.path, Tensor: p.Name, Kind: ErrFormat, Detail: fmt.Sprintf("is a second %s", old.Name)}
	}
	c.at[p.Name] = p
	return nil
}
