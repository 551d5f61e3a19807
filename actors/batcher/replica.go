package batcher

// none is the buddy of a sequence without a replica.
const none = -1

// Copy makes a replica: before its rows run, the step sends the whole cache of a
// sequence from its owner to its buddy. Afterwards every step sends the new rows.
type Copy struct {
	Seq   uint64
	Owner int // rank
	Buddy int // rank
}

// copiesAStep bounds what copying adds to one step.
const copiesAStep = 2

// replicate gives sequences that decode a replica on the socket with the most
// bytes free, in what memory is left when everybody else has been served.
// Policies that score slots in decode have none: every step changes all scores,
// and sending those costs more than the rebuild that it saves.
func (s *State) replicate(p *Plan) {
	if s.cfg.Replicas == 0 || len(s.ledger.sockets) < 2 {
		return
	}
	for _, r := range s.running {
		if len(p.Copy) == copiesAStep {
			return
		}
		if r.phase != decoding || r.ended || r.buddy != none || r.Policy.Scored() {
			continue
		}
		buddy := none
		for i := range s.ledger.sockets {
			if free := s.ledger.sockets[i].free(); i != r.owner && free >= r.hold[r.owner] && (buddy == none || free > s.ledger.sockets[buddy].free()) {
				buddy = i
			}
		}
		if buddy == none {
			continue
		}
		s.ledger.copied(r, buddy)
		p.Copy = append(p.Copy, Copy{Seq: r.seq, Owner: r.owner, Buddy: buddy})
	}
}

// forgo drops the replica of the last in order that has one on a socket: they use
// only what sequences leave. False: there is none.
func (s *State) forgo(rank int) bool {
	for i := len(s.running) - 1; i >= 0; i-- {
		if r := s.running[i]; r.buddy == rank && r.phase == decoding {
			s.dropCopy(r)
			return true
		}
	}
	return false
}

func (s *State) dropCopy(r *request) {
	s.ledger.uncopied(r)
	s.uncopy = append(s.uncopy, r.seq)
}

// copied books a replica: as many bytes as the owner holds.
func (l *ledger) copied(r *request, buddy int) {
	r.buddy = buddy
	r.hold[buddy] += r.hold[r.owner]
	l.sockets[buddy].reserved += r.hold[r.owner]
	l.sockets[buddy].replicas += r.hold[r.owner]
}

func (l *ledger) uncopied(r *request) {
	a := &l.sockets[r.buddy]
	a.reserved -= r.hold[r.buddy]
	a.replicas -= r.hold[r.buddy]
	r.hold[r.buddy] = 0
	r.buddy = none
}
