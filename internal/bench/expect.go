package bench

import (
	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// ExpectedRate returns the planner's estimate of how many tokens a second one short sequence
// decodes, from the measured speeds of the nodes. A step reads each weight that it needs once.
func ExpectedRate(c *model.Config, nodes []topology.Node, weights tensor.DType) float64 {
	shape := shard.ShapeOf(c)
	costs := topology.MeasuredCosts(nodes, float64(weights.BytesPerRow(32))/32)
	mapping := topology.ChooseMapping(shape, len(nodes), costs)
	head := float64(c.Vocab) * float64(c.Hidden) * costs.WeightBytes / costs.Bandwidth / float64(len(nodes))
	return 1 / (float64(c.Layers)*topology.DecodeSeconds(mapping, shape, len(nodes), costs) + head)
}
