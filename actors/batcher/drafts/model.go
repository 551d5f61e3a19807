package drafts

import (
	"github.com/shoal-llm/shoal/actors/batcher/report"
	"github.com/shoal-llm/shoal/internal/engine/speculate"
)

// modelDraft is one sequence's state of the draft model. The owner of a row drafts the tokens after the
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

// request returns the number of tokens that the owner of the next row must draft: at most left.
func (d *Drafter) request(q *Sequence, width, left, sequences int) int {
	switch {
	case width > 0:
		return max(0, min(width, left))
	case q.model.backoff.wait > 0:
		q.model.backoff.wait--
		return 0
	case !d.cost.Worth(sequences, q.rates.Model()):
		q.rates.Drift(&d.rates, ratesDecay)
		return 0
	}
	if q.model.width == 0 {
		q.model.width = firstModelDraft
	}
	return max(0, min(q.model.width, left))
}

// better returns the draft of the model, if there is one for the position cached and it is more
// likely to gain than the one from text.
func (m *modelDraft) better(rates *speculate.AcceptanceRates, text speculate.Draft, cached, most int) speculate.Draft {
	draft := m.draft
	m.draft = speculate.Draft{}
	if m.position != cached || len(draft.Tokens) == 0 {
		return text
	}
	n := min(most, len(draft.Tokens))
	draft.Tokens, draft.Share = draft.Tokens[:n], draft.Share[:n]
	if rates.Gain(&text) > rates.Gain(&draft) {
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

// SetModelDraft stores the draft that the owner of a row made for the tokens from a position on.
func (q *Sequence) SetModelDraft(result *report.Result, position int) {
	n := min(len(result.Drafts), speculate.MaxDraft)
	q.model.draft, q.model.position = speculate.Guessed(result.Drafts[:n], result.Odds), position
}
