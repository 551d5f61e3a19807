package sim

import (
	"shoal/collective"
	"shoal/topology"
)

// handOver sends what the policies keep of finished prompts to their owners.
func (n *node) handOver(s *step, done func(error)) {
	e := s.epoch
	if len(s.handover) == 0 || e.closed {
		done(nil)
		return
	}
	n.w.hook(OnHandover, n)
	send, recv := make([][]byte, len(e.peers)), make([][]byte, len(e.peers))
	own := e.heads()
	for _, q := range s.handover {
		if owner := q.open.Owner; owner != e.rank {
			for h := own.Lo; h < own.Hi; h++ {
				for _, c := range keep(q.policy(), h, q.part[h]) {
					send[owner] = appendCell(send[owner], c)
				}
			}
			continue
		}
		for rank, slice := range e.place.Slices {
			if rank != e.rank {
				recv[rank] = append(recv[rank], make([]byte, q.rowBytes(slice.KVHeads))...)
			}
		}
	}
	s.recv = recv
	if len(e.peers) == 1 {
		done(nil)
		return
	}
	e.group.start(func(op collective.OpID) { e.group.AllToAll(op, send, recv, done) })
}

func (q *sequence) rowBytes(of topology.Range) int {
	return cellBytes * of.Len() * q.policy().Slots(q.open.Read, q.open.Read)
}

// seal puts what came into the owners' caches and frees the prompts.
func (n *node) seal(s *step, done func(error)) {
	e := s.epoch
	if e.closed {
		done(errRetired)
		return
	}
	at := make([]int, len(e.peers))
	for _, q := range s.handover {
		owner := q.open.Owner == e.rank
		if owner {
			for rank, slice := range e.place.Slices {
				for h := slice.KVHeads.Lo; h < slice.KVHeads.Hi; h++ {
					if rank == e.rank {
						q.own[h] = keep(q.policy(), h, q.part[h])
						continue
					}
					slots := q.policy().Slots(q.open.Read, q.open.Read)
					q.own[h] = make([]cell, slots)
					for i := range q.own[h] {
						q.own[h][i] = cellAt(s.recv[rank], at[rank])
						at[rank]++
					}
				}
			}
		}
		q.seal(&n.memory, owner)
		q.sealed, q.tokens = owner, q.open.Read
	}
	done(nil)
}
