package batcher

import (
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/plan"
)

// A policy that clusters a prompt has work at its end for seconds. All of it is done in pieces, a
// few a step, beside the rows of others: what follows from tokens that were read before the last
// chunk before that, and the hand-over behind it.

// Multiplications of a step's pieces on one socket: beside the rows of others, and alone.
const (
	piecesBeside = 1 << 29
	piecesAlone  = 1 << 34
)

// clustering is what a prompt's policy does in pieces.
func (s *State) clustering(r *request) kvcache.Clustering {
	return kvcache.ClusteringOf(s.cfg.Geometry, r.read, r.Policy)
}

// indexes says that a prompt's next step is pieces rather than a chunk.
func (s *State) indexes(r *request) bool {
	x := s.clustering(r)
	return r.indexed < x.Before && r.cached >= x.After || r.indexed < x.Pieces && r.cached == r.read
}

// read gives a prompt its part of the step, and returns how many rows that is.
func (s *State) read(p *plan.Plan, r *request, left int) int {
	if s.indexes(r) {
		return 0
	}
	return s.chunk(p, r, left)
}

// cluster adds the pieces of the first prompt in order that has any, as many as the other rows
// can wait for; others wait for their turn.
func (s *State) cluster(p *plan.Plan, rows map[uint64]*request) {
	for _, r := range s.running {
		if r.phase != prefill || !s.indexes(r) {
			continue
		}
		if len(p.Index) > 0 {
			delete(rows, r.seq)
			continue
		}
		x, heads, most := s.clustering(r), 1, int64(piecesBeside)
		for _, k := range s.ledger.sockets {
			heads = max(heads, s.cfg.Geometry.PromptHeads(k.Heads.Len(), true))
		}
		if p.Tokens() == 0 {
			most = piecesAlone
		}
		p.Index = append(p.Index, plan.Index{Seq: r.seq, From: r.indexed, Pieces: x.Within(r.indexed, most/int64(heads))})
		rows[r.seq] = r
	}
}
