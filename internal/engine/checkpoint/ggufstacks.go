package checkpoint

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/gguf"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/ggufconfig"
	"github.com/shoal-llm/shoal/internal/engine/model/recurrent"
)

// takeExperts registers the matrices of a layer's experts under their Hugging Face names; a GGUF
// file stacks them in one tensor (experts, rows, columns). It does the same for the router. It
// reports whether t was one of them.
func (c *Checkpoint) takeExperts(t gguf.Tensor, p place) (bool, error) {
	block, part, ok := ggufconfig.BlockName(t.Name)
	layer := recurrent.LayerOf(c.Config.Blocks, block)
	if !ok || layer >= c.Config.Layers || !c.Config.Sparse(layer) {
		return false, nil
	}
	n, m := c.Config.Layer(layer).Experts, &c.Config.MoE
	which := map[string][]int{"ffn_gate_exps.weight": {0}, "ffn_up_exps.weight": {1},
		"ffn_down_exps.weight": {2}, "ffn_gate_up_exps.weight": {0, 1}}
	if m.Ungated {
		which = map[string][]int{"ffn_up_exps.weight": {0}, "ffn_down_exps.weight": {2}}
	}
	parts, stacked := which[part]
	switch {
	case biasOf(n, part) != "":
		p.Name = biasOf(n, part)
		return true, c.add(p)
	case part == "ffn_gate_inp.weight":
		p.Name = n.Router
		return true, c.add(p)
	case !stacked:
		return false, nil
	case len(t.Shape) != 3 || t.Shape[0] != m.Experts || t.Shape[1]%len(parts) != 0:
		return true, &model.Error{File: p.path, Tensor: t.Name, Kind: model.ErrMismatch,
			Detail: fmt.Sprintf("has shape %v; its metadata has %d experts, want [%d rows columns]", t.Shape, m.Experts, m.Experts)}
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

// biasOf converts the name of a bias of the router or the experts in a GGUF file to its Hugging Face
// name. It returns "" for other tensors.
func biasOf(n *model.MoENames, part string) string {
	if n.Biases == nil {
		return ""
	}
	return map[string]string{"ffn_gate_inp.bias": n.Biases.Router, "ffn_gate_exps.bias": n.Biases.Gate, "ffn_up_exps.bias": n.Biases.Up,
		"ffn_down_exps.bias": n.Biases.Down}[part]
}
