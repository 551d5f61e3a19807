package batcher

import "github.com/shoal-llm/shoal/internal/engine/plan"

// none is the rank of a replica that is not there.
const none = -1

// copiesAStep bounds what copying adds to one step.
const copiesAStep = 2

// replicate gives sequences that decode a replica on the socket with the most
// bytes free, in what memory is left when everybody else has been served.
// Policies that score slots in decode have none: every step changes all scores,
// and sending those costs more than the rebuild that it saves. Nor has one whose rows lie in a
// file: all of them would have to be read.
func (s *State) replicate(p *plan.Plan) {
	if s.cfg.Replicas == 0 || len(s.ledger.sockets) < 2 {
		return
	}
	for _, r := range s.running {
		if len(p.Copy) == copiesAStep {
			return
		}
		if r.phase != decoding || r.ended || r.rests() || r.shares != nil || r.replica != none || r.Policy.Scored() || r.file.blocks > 0 {
			continue
		}
		replica := none
		for i := range s.ledger.sockets {
			if room := s.ledger.sockets[i].room(); i != r.owner && room >= s.ledger.owned(r) && (replica == none || room > s.ledger.sockets[replica].room()) {
				replica = i
			}
		}
		if replica == none || !s.makeFree(replica, s.ledger.owned(r)) {
			continue
		}
		s.ledger.addReplica(r, replica)
		p.Copy = append(p.Copy, plan.Copy{Seq: r.seq, Owner: r.owner, Replica: replica})
	}
}

// evictReplica drops the replica of the last in order that has one on a socket: they use
// only what sequences leave. False: there is none.
func (s *State) evictReplica(rank int) bool {
	for i := len(s.running) - 1; i >= 0; i-- {
		if r := s.running[i]; r.replica == rank && r.phase == decoding {
			s.dropReplica(r)
			return true
		}
	}
	return false
}

func (s *State) dropReplica(r *request) {
	s.ledger.removeReplica(r)
	s.noReplica = append(s.noReplica, r.seq)
}

// owned is what the cache of a sequence that decodes takes, blocks that it shares included.
func (l *ledger) owned(r *request) int64 { return r.hold[r.owner] + l.sharedBytes(r) }

// addReplica books a replica: as many bytes as the cache takes; it shares none.
func (l *ledger) addReplica(r *request, replica int) {
	bytes := l.owned(r)
	r.replica = replica
	r.hold[replica] += bytes
	l.sockets[replica].reserved += bytes
	l.sockets[replica].replicas += bytes
}

func (l *ledger) removeReplica(r *request) {
	a := &l.sockets[r.replica]
	a.reserved -= r.hold[r.replica]
	a.replicas -= r.hold[r.replica]
	r.hold[r.replica] = 0
	r.replica = none
}
