package model

import (
	"fmt"
	"strconv"
	"strings"

	"shoal/gguf"
)

// experts reads the settings of a mixture. llama.cpp always divides the weights of
// Mixtral's and Qwen3's experts by their sum and has no key for it; which layers are
// dense shows in their tensors.
func (m *metadata) experts() error {
	if m.arch != "qwen3moe" && m.arch != "llama" {
		return nil
	}
	key := m.arch + ".expert_count"
	n, err := m.f.Whole(key, 0, 0, maxExperts)
	if err != nil {
		return fromGGUF(m.f.Path, err)
	}
	if n == 0 && m.arch == "llama" {
		return nil
	}
	for _, p := range [][2]string{{"expert_count", "num_local_experts"}, {"expert_used_count", "num_experts_per_tok"}} {
		if _, ok := m.f.Value(m.arch + "." + p[0]); !ok {
			return &Error{Field: m.arch + "." + p[0], Kind: ErrMissing, Detail: "missing"}
		}
		if err := m.take(p[0], p[1]); err != nil {
			return err
		}
	}
	if m.arch == "llama" {
		m.set("architectures", "general.architecture", []string{"MixtralForCausalLM"})
		return nil
	}
	if _, ok := m.f.Value(m.arch + ".expert_feed_forward_length"); !ok {
		return &Error{Field: m.arch + ".expert_feed_forward_length", Kind: ErrMissing, Detail: "missing"}
	}
	m.set("norm_topk_prob", "general.architecture", true)
	var dense []int
	for _, t := range m.tensors {
		if layer, part, ok := blockName(t.Name); ok && part == "ffn_gate.weight" {
			dense = append(dense, layer)
		}
	}
	m.set("mlp_only_layers", "block_count", dense)
	return m.take("expert_feed_forward_length", "moe_intermediate_size")
}

// blockName takes "blk.7.ffn_gate.weight" apart.
func blockName(name string) (layer int, part string, ok bool) {
	rest, inside := strings.CutPrefix(name, "blk.")
	number, part, cut := strings.Cut(rest, ".")
	layer, err := strconv.Atoi(number)
	return layer, part, inside && cut && err == nil && layer >= 0 && layer < maxLayers
}

// takeExperts puts the matrices of a layer's experts, which a GGUF file stacks in
// one tensor (experts, rows, columns), under their names in a Hugging Face folder;
// the router likewise. It says whether t was one of them.
func (c *Checkpoint) takeExperts(t gguf.Tensor, p place) (bool, error) {
	layer, part, ok := blockName(t.Name)
	if !ok || c.Config.MoE.Experts == 0 {
		return false, nil
	}
	n, m := c.Config.MoELayer(layer), &c.Config.MoE
	which := map[string]int{"ffn_gate_exps.weight": 0, "ffn_up_exps.weight": 1, "ffn_down_exps.weight": 2}
	at, stacked := which[part]
	switch {
	case part == "ffn_gate_inp.weight":
		p.Name = n.Router
		return true, c.add(p)
	case !stacked:
		return false, nil
	case len(t.Shape) != 3 || t.Shape[0] != m.Experts:
		return true, &Error{File: p.path, Tensor: t.Name, Kind: ErrMismatch, Detail: fmt.Sprintf("has shape %v; its metadata has %d experts, want [%d rows columns]", t.Shape, m.Experts, m.Experts)}
	}
	size := len(t.Data) / m.Experts
	for e := range m.Experts {
		gate, up, down := n.Expert(e)
		one := p
		one.Name, one.Shape = [3]string{gate, up, down}[at], t.Shape[1:]
		one.Data = t.Data[e*size : (e+1)*size : (e+1)*size]
		if err := c.add(one); err != nil {
			return true, err
		}
	}
	return true, nil
}

// add takes a tensor of a GGUF file in.
func (c *Checkpoint) add(p place) error {
	if old, ok := c.at[p.Name]; ok {
		return &Error{File: p.path, Tensor: p.Name, Kind: ErrFormat, Detail: fmt.Sprintf("is a second %s", old.Name)}
	}
	c.at[p.Name] = p
	return nil
}
