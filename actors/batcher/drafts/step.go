package drafts

import (
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/speculate"
)

// Step extends the decode rows of a step.
type Step struct {
	d         *Drafter
	drafts    bool // rows may have drafts
	sequences int
	tokens    int   // remaining rows
	scores    int   // log-probabilities that the reply has room for
	open      []Row // with drafts that compete for the rows of the step
}

// Row is a decode row.
type Row struct {
	*plan.Run
	Of     *Sequence
	Left   int // tokens until its end, without the first of the row
	Scores int // log-probabilities of each sampled token in the reply
	// Reserve books memory for n more tokens of the row, or for fewer. It returns their number.
	Reserve func(n int) int
}

// Step begins the rows of a plan, which may have `left` more tokens in all.
func (d *Drafter) Step(p *plan.Plan, left int) *Step {
	drafts := len(p.Chunks)+len(p.Sweeps) == 0 && (d.cfg.Guess != nil || len(p.Decode) <= d.cfg.Rows)
	return &Step{d: d, drafts: drafts, sequences: len(p.Decode), tokens: left, scores: MaxScores}
}

// Max returns the most tokens by which a row with samples can grow.
func (s *Step) Max(row Row) int { return min(speculate.MaxDraft, row.Left, s.scores/row.Scores) }

// Take appends the first of tokens to a row, as many as capacity and memory allow, and returns their
// number.
func (s *Step) Take(row Row, tokens []int32) int {
	n := row.Reserve(min(len(tokens), s.tokens))
	row.Tokens = append(row.Tokens, tokens[:n]...)
	s.tokens -= n
	if row.Sample {
		s.scores -= n * row.Scores
	}
	return n
}

// Draft finds a draft for a row. If drafts have no fixed length, Choose decides about it.
func (s *Step) Draft(row Row) {
	most, q, d := s.Max(row), row.Of, s.d
	if !s.drafts || most <= 0 || s.tokens <= 0 || s.guess(row, most) {
		return
	}
	mode, width := d.mode(q)
	var text speculate.Draft
	if mode != speculate.Model || width == 0 {
		text = d.fromText(q, row.Start+1, most, s.sequences)
	}
	if mode == speculate.Model {
		row.Run.Draft = d.request(q, width, row.Left-1, s.sequences)
	}
	q.draft = q.model.better(&q.rates, text, row.Start, most)
	switch {
	case len(q.draft.Tokens) == 0:
		q.searched(false)
	case width > 0:
		s.takeDraft(row, width)
	default:
		s.open = append(s.open, row)
	}
}

// guess gives a row the draft of Config.Guess. It returns false if there is none.
func (s *Step) guess(row Row, most int) bool {
	if s.d.cfg.Guess == nil {
		return false
	}
	q := row.Of
	q.draft.Tokens = s.d.cfg.Guess(q.ID, row.Start+1)
	s.takeDraft(row, most)
	n := len(q.draft.Tokens)
	q.draft.Share = make([]float32, n)
	return n > 0
}

// takeDraft adds the first n tokens of a draft to its row, as many as capacity and memory allow.
func (s *Step) takeDraft(row Row, n int) {
	draft := &row.Of.draft
	n = s.Take(row, draft.Tokens[:max(0, min(n, len(draft.Tokens)))])
	draft.Tokens = draft.Tokens[:n]
}

// Choose divides the remaining rows among drafts by their expected gain.
func (s *Step) Choose() {
	if len(s.open) == 0 {
		return
	}
	d := s.d
	probabilities := make([][]float32, len(s.open))
	for k, row := range s.open {
		probabilities[k] = row.Of.rates.Probabilities(nil, &row.Of.draft)
	}
	for k, n := range d.cost.Choose(probabilities, s.sequences, s.tokens) {
		row, q := s.open[k], s.open[k].Of
		if n == 0 {
			q.rates.Drift(&d.rates, ratesDecay)
			q.recordGain(false)
		}
		s.takeDraft(row, min(n, s.scores/row.Scores))
	}
}
