package collective

// Barrier completes when every rank has started it. Each rank broadcasts one empty message. A rank
// may complete before its own message has reached the last peer.
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
