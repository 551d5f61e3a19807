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
		g.gather(o, dtypeF32, floatBytes(mine), func(r int) []byte { return floatBytes(recv[r]) })
		return ""
	})
}

// AllGatherBytes is AllGather for payloads that are not float32.
func (g *Group) AllGatherBytes(id OpID, mine []byte, recv [][]byte, done func(error)) {
	g.begin(id, done, func(o *op) string {
		if len(recv) != g.cfg.Size {
			return fmt.Sprintf("AllGatherBytes: %d receive slices for %d ranks", len(recv), g.cfg.Size)
		}
		if own := recv[g.cfg.Rank]; own != nil {
			if len(own) != len(mine) {
				return fmt.Sprintf("AllGatherBytes: own receive slice has %d bytes, own payload is %d", len(own), len(mine))
			}
			copy(own, mine)
		}
		g.gather(o, dtypeBytes, mine, func(r int) []byte { return recv[r] })
		return ""
	})
}

func (g *Group) gather(o *op, dtype uint8, mine []byte, recv func(r int) []byte) {
	ph := o.phase(KindAllGather, dtype, g.cfg.Size)
	if g.cfg.Size > 1 {
		o.seg(mine)
		o.send(ph, broadcastAddress, 0, false)
	}
	for r := range g.cfg.Size {
		if r != g.cfg.Rank {
			o.expect(ph, r, recv(r), g.cfg.ChunkBytes, false)
		}
	}
}
