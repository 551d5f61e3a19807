package collective

import "fmt"

// AllToAll sends send[r] to each rank r and receives recv[r] from it. Both sides must state the
// same length. Empty pairs exchange nothing, so a rank may run ahead of ranks that send it nothing
// (Config.WindowOps). recv[Rank], if not nil, gets a copy of send[Rank].
func (g *Group) AllToAll(id OpID, send, recv [][]byte, done func(error)) {
	g.begin(id, done, func(o *op) string {
		n, me := g.cfg.Size, g.cfg.Rank
		if len(send) != n || len(recv) != n {
			return fmt.Sprintf("AllToAll: %d send and %d receive slices for %d ranks", len(send), len(recv), n)
		}
		if recv[me] != nil {
			if len(recv[me]) != len(send[me]) {
				return fmt.Sprintf("AllToAll: own slices differ: %d bytes to send, %d to receive", len(send[me]), len(recv[me]))
			}
			copy(recv[me], send[me])
		}
		ph := o.phase(KindAllToAll, dtypeBytes, n)
		for i := 1; i < n; i++ { // start at the next rank, so that not every rank sends to rank 0 first
			r := (me + i) % n
			first := len(o.segs)
			o.seg(send[r])
			o.send(ph, r, first, false)
			o.expect(ph, r, recv[r], g.cfg.ChunkBytes, false)
		}
		return ""
	})
}
