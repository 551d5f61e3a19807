package checkpoint

import (
	"errors"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/quantform"
)

// slice returns a matrix of a stack of experts. scale is the result of takeScales for a stack in FP8.
func (c *Checkpoint) slice(of, scale place, name string, at quantform.Slice) (place, error) {
	if scale.Name == "" {
		return of.matrix(name, at.Expert, at.First, at.Each, at.Rows, at.Turned), nil
	}
	m, err := c.Config.Quantized.Unstack(of.part(), scale.part(), at)
	if e, ok := errors.AsType[*quantform.Error](err); ok {
		return place{}, &model.Error{File: scale.path, Tensor: e.Tensor, Kind: model.KindOf(e), Detail: e.Detail}
	}
	made := c.formed(of, name, m)
	made.parts[1].home = scale.home
	return made, err
}

// takeScales removes the scales of a stack in FP8 and returns them. For other stacks the result has no
// name.
func (c *Checkpoint) takeScales(stack place) (place, error) {
	if !quantform.StackedFP8(stack.part()) || c.Config.Quantized == nil {
		return place{}, nil
	}
	for _, ending := range quantform.StackedScales {
		if p, ok := c.at[stack.Name+ending]; ok {
			delete(c.at, p.Name)
			return p, nil
		}
	}
	return place{}, &model.Error{File: stack.path, Tensor: stack.Name, Kind: model.ErrMissing,
		Detail: "is F8_E4M3 without the tensor of its scales, " + stack.Name + quantform.StackedScales[0]}
}
