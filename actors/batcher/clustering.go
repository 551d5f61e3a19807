package batcher

import (
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
)

// clusters is the module for policies that cluster a prompt (kvcache.IndexWork). The work takes
// seconds at the end of a long prompt. So it is done in pieces, a few per step, together with the
// rows of other sequences. Some pieces come before the last chunk and use the tokens read by then;
// the others come with the hand-over.
type clusters struct{ s *State }

// clustered is the progress of one request's clustering.
type clustered struct {
	done   int             // number of pieces done
	sample *sampler.Result // of the prompt's last row, until the hand-over
}

// Limits of the multiplications of a step's pieces on one socket.
const (
	piecesShared = 1 << 29 // in a step with rows of other sequences
	piecesAlone  = 1 << 34 // in a step without rows
)

// clusteringOf returns the clustering of a request's prompt.
func (m *clusters) clusteringOf(r *request) kvcache.IndexWork {
	return kvcache.IndexWorkOf(m.s.cfg.Geometry, r.read, r.Policy)
}

// piecesDue reports whether a prompt's next step is pieces, not a chunk.
func (m *clusters) piecesDue(r *request) bool {
	x := m.clusteringOf(r)
	return r.clustered.done < x.Before && r.cached >= x.After || r.clustered.done < x.Pieces && r.cached == r.read
}

// plan adds pieces of the first prompt in order that has any, as many as fit with the other rows.
// Other prompts wait.
func (m *clusters) plan(p *plan.Plan, rows map[uint64]*request) {
	for _, r := range m.s.running {
		if r.phase != prefill || !m.piecesDue(r) {
			continue
		}
		if len(p.Index) > 0 {
			delete(rows, r.seq)
			continue
		}
		x, heads, most := m.clusteringOf(r), 1, int64(piecesShared)
		for _, k := range m.s.ledger.sockets {
			heads = max(heads, m.s.cfg.Geometry.PromptHeads(k.Heads.Len(), true))
		}
		if p.Tokens() == 0 {
			most = piecesAlone
		}
		p.Index = append(p.Index, plan.Index{Seq: r.seq, From: r.clustered.done, Pieces: x.Within(r.clustered.done, most/int64(heads))})
		rows[r.seq] = r
	}
}

// done records the pieces of a step, and hands complete prompts over.
func (m *clusters) done(p *plan.Plan, rows map[uint64]*request) {
	for _, x := range p.Index {
		r := rows[x.Seq]
		if r.clustered.done = x.From + x.Pieces; r.clustered.done == m.clusteringOf(r).Pieces {
			m.s.handedOver(r)
		}
	}
}

// promptRead processes the end of prefill: the token after it, if one is sampled.
func (m *clusters) promptRead(r *request) {
	if r.clustered.sample != nil {
		m.s.sampled(r, *r.clustered.sample)
	} else if !r.ended && r.limit == 0 {
		m.s.finish(r, ReasonLength, "", "")
	}
	r.clustered.sample = nil
}
