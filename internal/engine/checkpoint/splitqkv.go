package checkpoint

import (
	"fmt"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/model"
)

// splitQKV divides the joint tensor of q, k and v, if the files have one and the layers need three.
func (c *Checkpoint) splitQKV() error {
	q, kv := c.Config.Heads*c.Config.HeadDim, c.Config.KVHeads*c.Config.HeadDim
	for i := range c.Config.Layers {
		p := fmt.Sprintf("model.layers.%d.self_attn.", i)
		if all := p + "qkv_proj.weight"; c.Config.Layer(i).Q.Weight != all {
			if err := c.splitRows(all, rows{p + "q_proj.weight", q}, rows{p + "k_proj.weight", kv}, rows{p + "v_proj.weight", kv}); err != nil {
				return err
			}
		}
	}
	return nil
}

// splitSharedMLP divides the joint tensor of gate and up of Granite's shared FFN.
func (c *Checkpoint) splitSharedMLP() error {
	for i := range c.Config.Layers {
		p := fmt.Sprintf("model.layers.%d.shared_mlp.", i)
		if err := c.splitRows(p+"input_linear.weight", rows{p + "gate_proj.weight", c.Config.FFN},
			rows{p + "up_proj.weight", c.Config.FFN}); err != nil {
			return err
		}
	}
	return nil
}

// rows are rows of a matrix, as a tensor of their own.
type rows struct {
	name string
	n    int
}

// splitRows divides a matrix, if the files have it.
func (c *Checkpoint) splitRows(name string, parts ...rows) error {
	all, ok := c.at[name]
	if !ok {
		return nil
	}
	n := 0
	for _, part := range parts {
		n += part.n
	}
	if want := []int{n, c.Config.Hidden}; !slices.Equal(all.Shape, want) {
		return &model.Error{File: all.path, Tensor: name, Kind: model.ErrMismatch,
			Detail: fmt.Sprintf("has shape %v; %s requires %v", all.Shape, c.described(), want)}
	}
	delete(c.at, name)
	all.Shape = append([]int{1}, all.Shape...)
	first := 0
	for _, part := range parts {
		if err := c.add(all.matrix(part.name, 0, first, 1, part.n, false)); err != nil {
			return err
		}
		first += part.n
	}
	return nil
}
