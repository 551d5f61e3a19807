package batcher

import "github.com/shoal-llm/shoal/internal/engine/speculate"

// modelDraft is one request's state of the draft model. The owner of a row drafts the tokens after the
// one that it samples, and returns the draft with its results.
type modelDraft struct {
	draft    speculate.Draft // from the owner of the last row
	position int             // position of the draft's first token
	width    int             // tokens to request; 0: none requested yet
	backoff  backoff
}

const (
	firstModelDraft = 3
	mostModelDraft  = 8
	// mostModelSkipped is larger than for text, because all nodes wait for the draft model.
	mostModelSkipped = 255
)

// request returns how many tokens the owner of the next row is asked to draft.
func (d *drafts) request(r *request, width, sequences int) int {
	g := &r.drafted
	left := r.final() - r.cached - 2 // after the token that the row samples
	switch {
	case width > 0:
		return max(0, min(width, left))
	case g.model.backoff.wait > 0:
		g.model.backoff.wait--
		return 0
	case !d.cost.Worth(sequences, g.trust.Model()):
		g.trust.Drift(&d.trust, forgetTrust)
		return 0
	}
	if g.model.width == 0 {
		g.model.width = firstModelDraft
	}
	return max(0, min(g.model.width, left))
}

// better returns the draft of the model, if there is one for the position cached and it is more
// likely to gain than the one from text.
func (m *modelDraft) better(trust *speculate.Trust, text speculate.Draft, cached, most int) speculate.Draft {
	draft := m.draft
	m.draft = speculate.Draft{}
	if m.position != cached || len(draft.Tokens) == 0 {
		return text
	}
	n := min(most, len(draft.Tokens))
	draft.Tokens, draft.Share = draft.Tokens[:n], draft.Share[:n]
	if trust.Gain(&text) > trust.Gain(&draft) {
		return text
	}
	return draft
}

// recordGain updates the backoff of the draft model.
func (m *modelDraft) recordGain(yes bool) {
	b := &m.backoff
	if yes {
		b.misses = 0
		return
	}
	b.misses, m.width = min(2*b.misses+1, mostModelSkipped), 1
	b.wait = b.misses
}

// set stores the draft of a row's results.
func (m *modelDraft) set(result *Result, position int) {
	m.draft, m.position = speculate.Guessed(result.Drafts[:min(len(result.Drafts), speculate.MaxDraft)], result.Odds), position
}
