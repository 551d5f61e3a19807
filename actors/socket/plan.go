package socket

import (
	"time"

	"shoal/kvcache"
	"shoal/model"
	"shoal/proto"
	"shoal/tensor"
	"shoal/topology"
)

// plan lists the legs that follow begin: copies of whole caches, the layers in
// turn, the head for the wanted rows, the rows for replicas, the commit, the
// hand-over of prompts that are complete. Every
// rank lists the same collectives in the same order.
func (e *epoch) plan(s *step) []leg {
	legs := append(s.copies.legs(), leg{}) // copies, then all layers
	alone := len(e.place.Slices) == 1
	for lo := 0; lo < len(s.wanted); lo += headRows {
		rows := s.wanted[lo:min(lo+headRows, len(s.wanted))]
		legs = append(legs, leg{job: func(done func(error)) {
			began := time.Now()
			e.head.compute(e.batch, rows)
			sent := time.Now()
			s.stages.Head += sent.Sub(began)
			if alone {
				done(nil)
				return
			}
			e.head.exchange(e.batch, rows, e.group, func(err error) {
				s.stages.Wait += time.Since(sent)
				done(err)
			})
		}}, leg{job: func(done func(error)) {
			began := time.Now()
			err := e.head.finish(e.batch, rows, &s.results)
			s.stages.Head += time.Since(began)
			done(err)
		}})
	}
	legs = append(legs, e.tokenLegs(s)...)
	legs = append(legs, leg{job: func(done func(error)) {
		e.commit(s)
		done(nil)
	}})
	h := &handover{epoch: e, seqs: s.handover}
	if len(h.seqs) > 0 {
		var began time.Time // of the hand-over: choosing, sending and keeping the rows
		legs = append(legs, leg{job: func(done func(error)) { began = time.Now(); done(nil) }})
		for l := range e.weights.Layers {
			legs = append(legs, leg{job: func(done func(error)) { h.start(l, done) }},
				leg{job: func(done func(error)) { done(h.finish(l)) }})
		}
		legs = append(legs, leg{job: func(done func(error)) {
			err := h.seal()
			s.stages.Votes, s.stages.Selection = h.observing, h.choosing
			s.stages.Shipping = time.Since(began) - h.observing - h.choosing
			done(err)
		}})
	}
	return legs
}

// ShapeOf is what placement needs to know of a model.
func ShapeOf(c *model.Config) topology.Shape {
	kvHeads, latent := c.KVHeads, 0
	if c.Latent.Rank > 0 {
		kvHeads, latent = c.HeadUnits(), c.Latent.QueryRank+c.Latent.Rank+c.Latent.Rope
	}
	sparse := float64(c.SparseLayers()) / float64(max(1, c.Layers))
	return topology.Shape{Sparse: sparse, ActiveFFN: c.MoE.PerToken*c.MoE.FFN + c.MoE.Shared, Hidden: c.Hidden, Heads: c.Heads, KVHeads: kvHeads, HeadDim: c.HeadDim, FFN: c.FFN, Vocab: c.Vocab, Latent: latent,
		FFNUnits: tensor.Units(c.FFN), FFNUnitStart: func(u int) int { return tensor.UnitsSpan(c.FFN, 0, u).Hi }}
}

// GeometryOf is the shape of the model's cache with rows of type kv.
func GeometryOf(c *model.Config, kv tensor.DType) kvcache.Geometry {
	heads, _, _ := c.CacheRow()
	return kvcache.Geometry{Layers: c.Layers, KVHeads: heads, Group: c.Heads / heads, Layout: c.CacheLayout(kv), Windows: c.Windows, Units: c.HeadUnits()}
}

func rangeOf(m *proto.Range) topology.Range {
	return topology.Range{Lo: int(m.GetLo()), Hi: int(m.GetHi())}
}

// PlacementMessage is the wire form of a placement.
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
