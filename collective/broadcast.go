package collective

import "fmt"

// Broadcast copies the root's data to data of all other ranks, which has the
// same length everywhere. Empty data completes at once.
func (g *Group) Broadcast(id OpID, root int, data []byte, done func(error)) {
	g.begin(id, done, func(o *op) string {
		if root < 0 || root >= g.cfg.Size {
			return fmt.Sprintf("Broadcast: root %d of %d ranks", root, g.cfg.Size)
		}
		ph := o.phase(KindBroadcast, dtypeBytes, g.cfg.Size)
		switch {
		case g.cfg.Size == 1:
		case root == g.cfg.Rank:
			o.seg(data)
			o.send(ph, broadcastAddress, 0, false)
		default:
			o.expect(ph, root, data, g.cfg.ChunkBytes, false)
		}
		return ""
	})
}

// Barrier completes when every rank has started it. One empty message each: a
// rank may leave before its own word has reached the last one.
func (g *Group) Barrier(id OpID, done func(error)) {
	g.begin(id, done, func(o *op) string {
		ph := o.phase(KindBarrier, dtypeBytes, g.cfg.Size)
		if g.cfg.Size > 1 {
			o.send(ph, broadcastAddress, 0, true)
		}
		for r := range g.cfg.Size {
			if r != g.cfg.Rank {
				o.expect(ph, r, nil, g.cfg.ChunkBytes, true)
			}
		}
		return ""
	})
}
