package batcher

import (
	"github.com/shoal-llm/shoal/actors/batcher/replicas"
	"github.com/shoal-llm/shoal/internal/engine/plan"
)

// none is the rank of a replica that does not exist.
const none = plan.None

// residency is the module for rows of decoding sequences that are not only in their owner's memory:
// replicas on another socket (this file), and files (spill.go). Replicas use memory that sequences
// and the prefix cache do not need.
type residency struct {
	s       *State
	dropped []uint64 // sequences whose replica the next plan drops
	backoff replicas.Backoff
}

// resides describes the other places of a request's cache.
type resides struct {
	replica  int    // rank, or none
	file     inFile // of the owner
	inMemory bool   // its file failed once, so it stays in memory
}

// plan makes replicas, moves rows to files, and passes on which replicas are dropped.
func (v *residency) plan(p *plan.Plan) {
	if v.s.cfg.Replicas > 0 {
		v.planReplicas(p)
	}
	v.planFiles(p)
	p.DropReplica, v.dropped = v.dropped, nil
}

// place takes the sockets of a new placement.
func (v *residency) place(sockets []Socket) {
	nodes := make([]string, len(sockets))
	for i := range sockets {
		nodes[i] = sockets[i].ID
	}
	v.backoff.Placed(nodes)
}

// done processes the caches that moved to files in a step, and the sequences whose files failed.
func (v *residency) done(p *plan.Plan, d *StepDone) {
	v.backoff.Done(p)
	v.moved(d.Spilled)
	v.lost(d.Lost)
}

// planReplicas gives decoding sequences a replica, on the socket with the most free bytes. Some get
// none. Under a policy that scores slots in decode, every step changes all scores, and sending them
// costs more than the rebuild that a replica saves. A cache with rows in a file would have to be
// read back. A cache that others share exists on its owner only.
func (v *residency) planReplicas(p *plan.Plan) {
	if len(v.s.ledger.sockets) < 2 || !v.backoff.Over(v.s.now) {
		return
	}
	for _, r := range v.s.running {
		if len(p.Copy) == replicas.PerStep {
			return
		}
		if !r.movable() || r.Policy.Scored() || r.resides.replica != none {
			continue
		}
		bytes := v.s.ledger.owned(r)
		replica, most := none, bytes-1
		for i := range v.s.ledger.sockets {
			if room := v.s.ledger.sockets[i].room(); i != r.owner && room > most {
				replica, most = i, room
			}
		}
		if replica == none || !v.s.makeFree(replica, bytes) {
			continue
		}
		v.s.ledger.addReplica(r, replica)
		p.Copy = append(p.Copy, plan.Copy{Seq: r.seq, Owner: r.owner, Replica: replica})
	}
}

// movable reports whether a cache decodes, belongs to one sequence and is only in memory.
func (r *request) movable() bool {
	return r.phase == decoding && !r.ended && !r.rowless() && r.shares == nil && r.resides.file.blocks == 0
}

// evict frees memory on a socket: it drops the replica of the last sequence in order that has
// one there. It returns false when there is none.
func (v *residency) evict(rank int) bool {
	for i := len(v.s.running) - 1; i >= 0; i-- {
		if r := v.s.running[i]; r.resides.replica == rank && r.phase == decoding {
			v.drop(r)
			return true
		}
	}
	return false
}

// makeFree frees memory on a socket for an admission with rows in this step. Replicas make room after the prefix cache.
func (v *residency) makeFree(rank int, bytes int64) bool {
	for !v.s.makeFree(rank, bytes) {
		if !v.evict(rank) {
			return false
		}
	}
	return true
}

// drop drops the replica of a request.
func (v *residency) drop(r *request) {
	v.s.ledger.removeReplica(r)
	v.dropped = append(v.dropped, r.seq)
}

// owned returns the bytes of the cache of a decoding sequence, with the blocks that it shares.
func (l *ledger) owned(r *request) int64 { return r.booked[r.owner] + l.sharedBytes(r) }

// addReplica books the bytes of a replica. A replica shares no blocks.
func (l *ledger) addReplica(r *request, replica int) {
	bytes := l.owned(r)
	r.resides.replica = replica
	r.booked[replica] += bytes
	l.sockets[replica].reserved += bytes
	l.sockets[replica].replicas += bytes
}

// removeReplica frees the bytes of a replica.
func (l *ledger) removeReplica(r *request) {
	a := &l.sockets[r.resides.replica]
	a.reserved -= r.booked[r.resides.replica]
	a.replicas -= r.booked[r.resides.replica]
	r.booked[r.resides.replica] = 0
	r.resides.replica = none
}
