package collective

import "fmt"

// AllGather collects the values of all ranks on every rank. recv[r] receives the slice mine of rank r
// and must have its length. Nothing is sent for an empty slice. recv[Rank] may be nil or alias mine;
// otherwise mine is copied to it.
//
// It is one broadcast per rank: each rank receives (N-1) x len(mine) values.
func (g *Group) AllGather(id OpID, mine []float32, recv [][]float32, done func(error)) {
	g.begin(id, done, func(o *op) string {
		if len(recv) != g.cfg.Size {
			return fmt.Sprintf("AllGather: %d receive slices for %d ranks", len(recv), g.cfg.Size)
		}
		if own := recv[g.cfg.Rank]; own != nil {
			if len(own) != len(mine) {
				return fmt.Sprintf("AllGather: own receive slice has %d values, own values are %d", len(own), len(mine))
			}
			copy(own, mine)
		}
		ph := o.phase(KindAllGather, dtypeF32, g.cfg.Size)
		if g.cfg.Size > 1 {
			o.seg(floatBytes(mine))
			o.send(ph, broadcastAddress, 0, false)
		}
		for r := range g.cfg.Size {
			if r != g.cfg.Rank {
				o.expect(ph, r, floatBytes(recv[r]), g.cfg.ChunkBytes, false)
			}
		}
		return ""
	})
}
