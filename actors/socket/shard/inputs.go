package shard

import (
	"slices"

	"github.com/shoal-llm/shoal/actors/layer/inputs"
	"github.com/shoal-llm/shoal/internal/engine/model"
)

// inputs reads the tables that an encoder adds to the embedding. It returns nil for other models.
func (l *loader) inputs(c *model.Config) *inputs.Inputs {
	in := &c.Inputs
	if *in == (model.Inputs{}) {
		return nil
	}
	table := func(name string, first, rows int) [][]float32 {
		if rows == 0 {
			return nil
		}
		all := slices.Collect(slices.Chunk(l.rows(name), c.Hidden))
		return all[min(first, len(all)):] // shorter after an error only
	}
	n := &inputs.Inputs{Positions: table(model.EmbedPositions, in.FirstPosition, in.Positions), Types: table(model.EmbedTypes, 0, in.Types),
		Eps: c.NormEps, Vocab: c.Vocab}
	if in.Norm {
		n.Norm = l.norm(model.EmbedNorm, &model.LayerSpec{NormBias: c.NormBias})
	}
	return n
}
