package sim

import (
	"slices"

	"github.com/shoal-llm/shoal/collective"
)

// Cells that are sent: whole caches to new replicas, decoded rows to replicas, and the kept cells
// of finished prompts to their owners.

// cells are cells of one sequence on their way between two ranks.
type cells struct {
	from, to int
	n        int                   // number of cells
	pack     func(b []byte) []byte // at the sender
	put      func(b []byte)        // at the receiver
}

// move sends cells in one exchange; unpack passes them to the receivers.
func (n *node) move(s *step, all []cells, done func(error)) {
	e := s.epoch
	send := make([][]byte, len(e.peers))
	s.recv, s.own = make([][]byte, len(e.peers)), nil
	for _, c := range all {
		switch {
		case c.from == e.rank && c.to == e.rank:
			s.own = c.pack(s.own)
		case c.from == e.rank:
			send[c.to] = c.pack(send[c.to])
		case c.to == e.rank:
			s.recv[c.from] = append(s.recv[c.from], make([]byte, cellBytes*c.n)...)
		}
	}
	if len(all) == 0 || len(e.peers) == 1 {
		done(nil)
		return
	}
	e.group.start(func(op collective.OpID) { e.group.AllToAll(op, send, s.recv, done) })
}

func (s *step) unpack(all []cells) {
	recv := slices.Clone(s.recv)
	recv[s.epoch.rank] = s.own
	for _, c := range all {
		if c.to == s.epoch.rank {
			c.put(recv[c.from])
			recv[c.from] = recv[c.from][cellBytes*c.n:]
		}
	}
}

// copies are whole caches that are sent to replicas before the rows run.
func (n *node) copies(s *step) (all []cells) {
	for _, k := range s.Copies {
		q := n.seqs[k.Seq]
		slots := q.policy.Slots(q.prompt(), k.Tokens)
		all = append(all, cells{from: q.open.Owner, to: q.replica, n: heads * (1 + slots), pack: func(b []byte) []byte {
			for h := range heads {
				b = appendCell(b, cell{pos: int32(len(q.own.slots[h]))}) // it grows as slots are written
				for i := range slots {
					c := cell{pos: -1}
					if i < len(q.own.slots[h]) {
						c = q.own.slots[h][i]
					}
					b = appendCell(b, c)
				}
			}
			return b
		}, put: func(b []byte) {
			for h := range heads {
				q.copy.slots[h] = make([]cell, cellAt(b, h*(1+slots)).pos)
				for i := range q.copy.slots[h] {
					q.copy.slots[h][i] = cellAt(b, h*(1+slots)+1+i)
				}
			}
		}})
	}
	return all
}

func (n *node) copyCaches(s *step, done func(error)) { n.move(s, n.copies(s), done) }

func (n *node) copied(s *step, done func(error)) {
	s.unpack(n.copies(s))
	for _, k := range s.Copies {
		n.w.cover[Replicated]++
		if q := n.seqs[k.Seq]; q.replica == s.epoch.rank {
			if err := n.memory.resize(&q.copy.bytes, q.resident(k.Tokens+k.Rows)); err != nil {
				done(err)
				return
			}
		}
	}
	done(nil)
}

// decoded are the rows that are sent to replicas.
func (n *node) decoded(s *step) (all []cells) {
	for i := range s.rows {
		r := &s.rows[i]
		if q := r.seq; !r.run.Prefill && q.replica >= 0 {
			all = append(all, cells{from: r.run.Owner, to: q.replica, n: heads, pack: func(b []byte) []byte {
				for h := range heads {
					b = appendCell(b, cell{int32(r.pos), key(r.x, h)})
				}
				return b
			}, put: func(b []byte) {
				var row [heads]cell
				for h := range heads {
					row[h] = cellAt(b, h)
				}
				q.copy.write(q, row)
			}})
		}
	}
	return all
}

func (n *node) replicate(s *step, done func(error)) { n.move(s, n.decoded(s), done) }

func (n *node) replicated(s *step, done func(error)) {
	s.unpack(n.decoded(s))
	done(nil)
}

// handed are the kept cells of finished prompts, by rank and head.
func (n *node) handed(s *step) (all []cells) {
	for i := range s.Runs {
		if !s.Runs[i].Last {
			continue
		}
		q := n.seqs[s.Runs[i].Seq]
		slots := q.policy.Slots(q.prompt(), q.prompt())
		for rank, slice := range s.epoch.place.Slices {
			for h := slice.KVHeads.Lo; h < slice.KVHeads.Hi; h++ {
				all = append(all, cells{from: rank, to: q.open.Owner, n: slots, pack: func(b []byte) []byte {
					for _, c := range keep(q.policy, h, q.part[h]) {
						b = appendCell(b, c)
					}
					return b
				}, put: func(b []byte) {
					q.own.slots[h] = make([]cell, slots)
					for i := range slots {
						q.own.slots[h][i] = cellAt(b, i)
					}
				}})
			}
		}
	}
	return all
}

func (n *node) handOver(s *step, done func(error)) {
	all := n.handed(s)
	if len(all) > 0 {
		n.w.hook(OnHandover, n)
	}
	n.move(s, all, done)
}

// seal stores the received cells in the owners' caches and frees the prompts.
func (n *node) seal(s *step, done func(error)) {
	s.unpack(n.handed(s))
	for i := range s.Runs {
		n.save(s.epoch, &s.Runs[i])
	}
	for _, c := range s.Runs {
		if c.Last {
			n.seqs[c.Seq].seal(&n.memory, c.Owner == s.epoch.rank)
		}
	}
	done(nil)
}
