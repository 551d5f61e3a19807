package checkpoint

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/model/ggufconfig"
)

// takeEndNorms gives the norm at the end of each layer of an encoder the name that it has here: the next
// layer's first norm, or the final norm. It also divides fused projections.
func takeEndNorms(c *Checkpoint) error {
	for i := range c.Config.Layers {
		to := fmt.Sprintf("model.layers.%d.input_layernorm", i+1)
		if i+1 == c.Config.Layers {
			to = "model.norm"
		}
		for _, part := range [...]string{".weight", ".bias"} {
			if err := c.rename(fmt.Sprintf("model.layers.%d.%s%s", i, ggufconfig.EndNorm, part), to+part); err != nil {
				return err
			}
		}
	}
	return c.splitQKV()
}
