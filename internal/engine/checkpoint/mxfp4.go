package checkpoint

import (
	"fmt"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/quantform"
)

// mxWidth is the number of elements of a block of MXFP4.
const mxWidth = 32

// takeMXFP4 names the experts whose stacks are blocks of MXFP4, as takeStackedExperts does. A gpt-oss
// folder has two tensors for each stack: X_blocks (experts, rows, columns/32, 16) and X_scales
// (experts, rows, columns/32).
func (c *Checkpoint) takeMXFP4() error {
	if c.Config.Quantized == nil || !c.Config.Quantized.Experts {
		return nil
	}
	m := &c.Config.MoE
	for i := range c.Config.Layers {
		n := c.Config.Layer(i).Experts
		for _, stack := range []struct {
			name       string
			rows, cols int
			parts      []mxRows
		}{
			{n.ExpertPrefix + "gate_up_proj", 2 * m.FFN, c.Config.Hidden, []mxRows{{0, 0, 2, m.FFN}, {1, 1, 2, m.FFN}}},
			{n.ExpertPrefix + "down_proj", c.Config.Hidden, m.FFN, []mxRows{{2, 0, 1, c.Config.Hidden}}},
		} {
			codes, ok := c.at[stack.name+"_blocks"]
			scales, also := c.at[stack.name+"_scales"]
			if !ok && !also {
				continue // not converted, or missing
			}
			if stack.cols%mxWidth != 0 {
				return &model.Error{File: c.Dir, Tensor: stack.name, Kind: model.ErrUnsupported,
					Detail: fmt.Sprintf("rows of %d elements are not whole blocks of %d", stack.cols, mxWidth)}
			}
			blocks := stack.cols / mxWidth
			for _, part := range []struct {
				place
				found bool
				name  string
				want  []int
			}{{codes, ok, "_blocks", []int{m.Experts, stack.rows, blocks, mxWidth / 2}},
				{scales, also, "_scales", []int{m.Experts, stack.rows, blocks}}} {
				e := &model.Error{File: c.Dir, Tensor: stack.name + part.name, Kind: model.ErrMismatch}
				switch {
				case !part.found:
					e.Kind, e.Detail = model.ErrMissing, "missing; blocks and scales of MXFP4 belong together"
					return e
				case part.stored != "U8" || !slices.Equal(part.Shape, part.want):
					e.Detail = fmt.Sprintf("is %s of shape %v; MXFP4 requires U8 %v", part.stored, part.Shape, part.want)
					return e
				}
			}
			for e := range m.Experts {
				var names [3]string
				names[0], names[1], names[2] = n.Expert(e)
				own, scale := codes.expert(e), scales.expert(e)
				for _, r := range stack.parts {
					if err := c.add(c.formed(codes, names[r.which], quantform.Experts(own, scale, r.rows, stack.cols, r.first, r.each))); err != nil {
						return err
					}
				}
			}
			delete(c.at, stack.name+"_blocks")
			delete(c.at, stack.name+"_scales")
		}
	}
	return nil
}

// mxRows are rows of a stack's matrix: first, first+each and so on.
type mxRows struct{ which, first, each, rows int }

// expert returns matrix e of a stack of equal matrices.
func (p place) expert(e int) quantform.Part {
	one, size := p.part(), len(p.Data)/p.Shape[0]
	one.Shape, one.Data = []int{p.Shape[1], size / p.Shape[1]}, p.Data[e*size:(e+1)*size:(e+1)*size]
	return one
}
