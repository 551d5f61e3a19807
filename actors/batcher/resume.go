package batcher

import (
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
)

// kept is the admission that a suspended request had. A Held must match it.
type kept struct {
	seq          uint64
	read, cached int
}

// maxTrusted is the number of failed steps after which a request is rebuilt from its tokens,
// instead of from a cache that outlived the epoch.
const maxTrusted = 2

// keep returns the admission of a request that decodes, for adopt.
func (r *request) keep() kept {
	if r.phase != decoding || r.failures >= maxTrusted {
		return kept{}
	}
	return kept{seq: r.seq, read: r.read, cached: r.cached}
}

// adopt gives suspended requests the caches that outlived their epoch, and resumes them at once.
// Every other cache is released.
func (s *State) adopt(held []Held) {
	found := make(map[uint64][]*Held, len(held))
	for i := range held {
		h := &held[i]
		if len(found[h.Seq]) == 0 {
			s.release.Add(h.Seq) // unless a request resumes with it
		}
		found[h.Seq] = append(found[h.Seq], h)
	}
	taken := map[uint64]bool{}
	for _, r := range append(queue(nil), s.waiting...) {
		k := r.kept
		r.kept = kept{}
		own, copied, spilled, staged, most := none, none, 0, 1, k.cached
		for _, h := range found[k.seq] {
			switch {
			case h.Rank < 0 || h.Rank >= len(s.ledger.sockets) || !h.Fits(k.read, k.cached):
			case !h.Replica:
				own, spilled = h.Rank, h.Spilled
			default:
				copied = h.Rank
			}
			staged, most = max(staged, h.Staged), max(most, h.Tokens+h.Staged)
		}
		replica := own == none
		if replica {
			own, copied = copied, none
		}
		if own == none {
			continue
		}
		if replica {
			spilled = 0
		}
		bytes := kvcache.SpilledBytes(s.cfg.Geometry, k.read, min(k.cached+1, r.final()), 1, spilled, r.Policy)
		if r.hasAdapter() || r.idle { // uncommitted rows stay until the adapter is loaded, or the next turn begins
			bytes = max(bytes, kvcache.SpilledBytes(s.cfg.Geometry, k.read, most, staged, spilled, r.Policy))
		}
		if bytes > s.ledger.sockets[own].free() {
			continue
		}
		taken[k.seq] = true
		if replica {
			s.totals.Copies++
			r.outage.Reused(0, 1)
		} else {
			s.totals.Restored++
			r.outage.Reused(1, 0)
		}
		s.waiting.remove(r)
		r.phase, r.seq, r.read, r.cached, r.resides.replica = decoding, k.seq, k.read, k.cached, none
		need := make([]int64, len(s.ledger.sockets))
		need[own] = bytes
		s.ledger.admit(r, own, need)
		if spilled > 0 {
			r.resides.file = inFile{blocks: spilled, done: true, bytes: kvcache.FileBytes(s.cfg.Geometry, spilled, r.Policy)}
			s.ledger.sockets[own].files += r.resides.file.bytes
		}
		if spilled == 0 && copied != none && s.cfg.Replicas > 0 && bytes <= s.ledger.sockets[copied].free() {
			s.ledger.addReplica(r, copied)
		}
		s.running.insert(r)
		s.resumed = append(s.resumed, resumption{r, r.seq})
	}
	s.release.Items = slices.DeleteFunc(s.release.Items, func(seq uint64) bool { return taken[seq] })
}

// resumption is a request that the next plan opens with its cache, if it still runs under the same
// sequence number.
type resumption struct {
	r   *request
	seq uint64
}

func (q resumption) runs() bool { return q.r.phase == decoding && q.r.seq == q.seq && !q.r.ended }
