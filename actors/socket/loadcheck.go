package socket

import (
	"fmt"

	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/topology"
)

// Numbers in the coordinator's messages are checked before they count, index or size anything.
// Loads are checked here and plans in machine/check.go, with one function per message. The numbers of
// a join are checked where they are used, by collective.Config and its transport.

const (
	maxSockets    = 256
	maxStepTokens = 1 << 16
)

// placementOf checks a load request before its numbers are used.
func placementOf(r *proto.LoadRequest, c *model.Config) (topology.Placement, int, error) {
	var none topology.Placement
	m := r.GetPlacement()
	mapping, err := topology.ParseMapping(m.GetMapping())
	if err != nil {
		return none, 0, err
	}
	if len(m.Slices) == 0 || len(m.Slices) > maxSockets || int(r.Rank) >= len(m.Slices) {
		return none, 0, fmt.Errorf("socket: rank %d of %d sockets: want 1 to %d", r.Rank, len(m.Slices), maxSockets)
	}
	if r.MaxStepTokens == 0 || r.MaxStepTokens > maxStepTokens {
		return none, 0, fmt.Errorf("socket: %d tokens a step: want 1 to %d", r.MaxStepTokens, maxStepTokens)
	}
	if int64(r.Context) > int64(c.MaxPositions) {
		return none, 0, fmt.Errorf("socket: a context of %d tokens; this node's model supports %d", r.Context, c.MaxPositions)
	}
	if n := r.Memory.GetKvBytes(); n < 0 {
		return none, 0, fmt.Errorf("socket: %d bytes of caches: want at least 0", n)
	}
	p := topology.Placement{Epoch: m.Epoch, Mapping: mapping}
	for i, s := range m.Slices {
		p.Slices = append(p.Slices, topology.Slice{ID: s.Id, Rank: i,
			KVHeads: rangeOf(s.KvHeads), Q: rangeOf(s.Q), K: rangeOf(s.K), V: rangeOf(s.V), Out: rangeOf(s.Out), Down: rangeOf(s.Down),
			FFNUnits: rangeOf(s.FfnUnits), FFN: rangeOf(s.Ffn), Vocab: rangeOf(s.Vocab)})
	}
	return p, int(r.Rank), p.Check(shard.ShapeOf(c))
}

// typesOf returns the types of weights and cache in a load request.
func typesOf(r *proto.LoadRequest, c *model.Config) (weights, kv tensor.DType, err error) {
	if weights, err = tensor.ParseDType(r.WeightType); err != nil {
		return 0, 0, err
	}
	if kv, err = tensor.ParseDType(r.KvType); err != nil {
		return 0, 0, err
	}
	if err := c.CacheLayout(kv).Validate(); err != nil {
		return 0, 0, fmt.Errorf("socket: the cache of this model: %w", err)
	}
	return weights, kv, nil
}
