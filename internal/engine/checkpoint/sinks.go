package checkpoint

import "github.com/shoal-llm/shoal/internal/engine/model"

// readSinks reads the sinks of all layers into the config.
func (c *Checkpoint) readSinks() {
	if !c.Config.SinkScores {
		return
	}
	c.Config.Sinks = make([][]float32, c.Config.Layers)
	for i := range c.Config.Sinks {
		s := make([]float32, c.Config.Heads)
		c.must(c.Config.Layer(i).Sinks).Row(s, 0, 0, len(s))
		c.Config.Sinks[i] = s
	}
}

// flattenNorms makes vectors of the norms of heads that have weights of their own.
func (c *Checkpoint) flattenNorms() {
	if c.Config.QKNormOf != model.OfOwnHeads {
		return
	}
	for i := range c.Config.Layers {
		l, dim := c.Config.Layer(i), c.Config.HeadDim
		c.reshape(l.QNorm, []int{c.Config.Heads, dim}, []int{c.Config.Heads * dim})
		c.reshape(l.KNorm, []int{c.Config.KVHeads, dim}, []int{c.Config.KVHeads * dim})
	}
}
