package socket

import (
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/topology"
)

func rangeOf(m *proto.Range) topology.Range {
	return topology.Range{Lo: int(m.GetLo()), Hi: int(m.GetHi())}
}

// PlacementMessage returns the wire form of a placement.
func PlacementMessage(p topology.Placement, incarnations []uint64) *proto.Placement {
	m := &proto.Placement{Epoch: p.Epoch, Mapping: string(p.Mapping)}
	r := func(x topology.Range) *proto.Range { return &proto.Range{Lo: uint32(x.Lo), Hi: uint32(x.Hi)} }
	for i, s := range p.Slices {
		m.Slices = append(m.Slices, &proto.Slice{Id: s.ID, Incarnation: incarnations[i],
			KvHeads: r(s.KVHeads), Q: r(s.Q), K: r(s.K), V: r(s.V), Out: r(s.Out), Down: r(s.Down),
			FfnUnits: r(s.FFNUnits), Ffn: r(s.FFN), Vocab: r(s.Vocab)})
	}
	return m
}
