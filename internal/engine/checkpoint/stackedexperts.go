package checkpoint

import (
	"fmt"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/quantform"
)

// takeStackedExperts names the experts of layers whose files stack them, as in a checkpoint with one
// tensor per expert. Gate and up are one tensor, its rows or columns gate first:
//
//	gate_up_proj (experts, 2*ffn, hidden), down_proj (experts, hidden, ffn)   or transposed:
//	gate_up_proj (experts, hidden, 2*ffn), down_proj (experts, ffn, hidden)
func (c *Checkpoint) takeStackedExperts() error {
	m := &c.Config.MoE
	for i := range c.Config.Layers {
		if !c.Config.Sparse(i) {
			continue
		}
		n := c.Config.Layer(i).Experts
		c.reshape(n.Bias, []int{1, m.Experts}, []int{m.Experts}) // as ERNIE has it
		gateUps, downs := n.Stacks()
		both, stacked := c.at[gateUps]
		down, also := c.at[downs]
		if !stacked && !also {
			continue
		}
		shapes := fmt.Sprintf("has shape %v and %s %v", both.Shape, downs, down.Shape)
		plain := slices.Equal(both.Shape, []int{m.Experts, 2 * m.FFN, c.Config.Hidden}) &&
			slices.Equal(down.Shape, []int{m.Experts, c.Config.Hidden, m.FFN})
		turned := slices.Equal(both.Shape, []int{m.Experts, c.Config.Hidden, 2 * m.FFN}) &&
			slices.Equal(down.Shape, []int{m.Experts, m.FFN, c.Config.Hidden})
		if !plain && !turned {
			return &model.Error{File: c.Dir, Tensor: gateUps, Kind: model.ErrMismatch,
				Detail: shapes + fmt.Sprintf("; %d experts of width %d want [%d %d %d] and [%d %d %d], or both transposed",
					m.Experts, m.FFN, m.Experts, 2*m.FFN, c.Config.Hidden, m.Experts, c.Config.Hidden, m.FFN)}
		}
		up, each := m.FFN, 1 // first row of up, distance of rows
		if arch, _ := model.Lookup(c.Config.Architecture); arch.Alternating {
			up, each = 1, 2
		}
		bothScale, err := c.takeScales(both)
		if err != nil {
			return err
		}
		downScale, err := c.takeScales(down)
		if err != nil {
			return err
		}
		delete(c.at, gateUps)
		delete(c.at, downs)
		for e := range m.Experts {
			names := [3]string{}
			names[0], names[1], names[2] = n.Expert(e)
			for i, part := range []struct {
				of, scale         place
				first, each, rows int // of the matrix
			}{{both, bothScale, 0, each, m.FFN}, {both, bothScale, up, each, m.FFN}, {down, downScale, 0, 1, c.Config.Hidden}} {
				one, err := c.slice(part.of, part.scale, names[i],
					quantform.Slice{Expert: e, First: part.first, Each: part.each, Rows: part.rows, Turned: turned})
				if err != nil {
					return err
				}
				if err := c.add(one); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// takeStackedBiases divides the joint biases of gate and up, whose elements alternate in the file.
func (c *Checkpoint) takeStackedBiases() error {
	m := &c.Config.MoE
	for i := range c.Config.Layers {
		if !m.Biased || !c.Config.Sparse(i) {
			continue
		}
		n := c.Config.Layer(i).Experts
		name := n.ExpertPrefix + "gate_up_proj_bias"
		both, ok := c.at[name]
		if !ok {
			continue // check names the missing tensors
		}
		if want := []int{m.Experts, 2 * m.FFN}; !slices.Equal(both.Shape, want) {
			return &model.Error{File: both.path, Tensor: name, Kind: model.ErrMismatch,
				Detail: fmt.Sprintf("has shape %v; %d experts of width %d want %v", both.Shape, m.Experts, m.FFN, want)}
		}
		delete(c.at, name)
		for first, part := range []string{n.Biases.Gate, n.Biases.Up} {
			one := both
			one.Name, one.Shape, one.Data, one.parts = part, []int{m.Experts, m.FFN}, nil, []Tensor{both.Tensor}
			one.fill = func(dst []float32, r, lo int) {
				for i := range dst {
					both.readRow(dst[i:i+1], r, 2*(lo+i)+first, 2*(lo+i)+first+1)
				}
			}
			if err := c.add(one); err != nil {
				return err
			}
		}
	}
	return nil
}

// matrix returns n rows (first, first+each and so on) of the e-th matrix in a stack, or of its transpose.
func (p place) matrix(name string, e, first, each, n int, turned bool) place {
	size := int64(len(p.Data) / p.Shape[0])
	rows, cols := p.Shape[1], p.Shape[2]
	from, to := int64(e)*size, int64(e+1)*size
	if turned {
		rows, cols = cols, rows
	} else if each == 1 {
		row := size / int64(rows)
		from, to = from+int64(first)*row, from+int64(first+n)*row
	}
	one := p
	one.Name, one.Shape, one.Data = name, []int{n, cols}, p.Data[from:to:to]
	if p.offset > 0 {
		one.offset = p.offset + from
	}
	if !turned && each == 1 {
		return one
	}
	stack := one.Tensor
	stack.Shape = []int{rows, cols}
	if turned {
		stack.Shape = []int{cols, rows}
	}
	one.Data, one.blocks, one.parts = nil, 0, []Tensor{stack}
	one.fill = func(dst []float32, r, lo int) {
		r = first + r*each
		if !turned {
			stack.readRow(dst, r, lo, lo+len(dst))
			return
		}
		for i := range dst {
			stack.readRow(dst[i:i+1], lo+i, r, r+1)
		}
	}
	return one
}
