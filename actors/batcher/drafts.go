package batcher

import (
	"github.com/shoal-llm/shoal/actors/batcher/drafts"
	"github.com/shoal-llm/shoal/internal/engine/plan"
)

// draftRows is the module that lets decode rows have more than one token: output tokens that are known, and
// drafts of the next tokens (package drafts).
type draftRows struct {
	s *State
	drafts.Drafter
}

func newDraftRows(s *State) draftRows {
	return draftRows{s, drafts.New(drafts.Config{Mode: s.cfg.Speculate, Bytes: s.cfg.SpeculateBytes, Recent: s.cfg.SpeculateRecent,
		Rows: s.cfg.SpeculateRows, Guess: s.cfg.Guess})}
}

// submit describes a request to the drafts.
func (d *draftRows) submit(r *request) {
	r.drafted = drafts.Sequence{ID: r.ID, Tenant: r.Tenant, Mode: r.Speculate, Limit: r.limit, Token: r.token}
}

// index adds the newest tokens of a request to its index.
func (d *draftRows) index(r *request) { d.Index(&r.drafted, len(r.Prompt)+len(r.out)) }

// plan adds tokens to decode rows, at most left in all, in memory that is otherwise unused. Output tokens
// that are known come first, then drafts that are worth their time.
func (d *draftRows) plan(p *plan.Plan, rows map[uint64]*request, left int) {
	step := d.Step(p, left)
	for i := range p.Decode {
		run := &p.Decode[i]
		r := rows[run.Seq]
		r.drafted.Clear()
		next := r.cached + 1
		row := drafts.Row{Run: run, Of: &r.drafted, Left: r.final() - next, Scores: 1 + max(0, r.Sampling.Logprobs),
			Reserve: func(n int) int { return d.s.reserve(r, n) }}
		switch known := len(r.Prompt) + len(r.out) - next; {
		case !run.Sample || run.Known > 0: // planned by inputs
		case d.s.cfg.Geometry.Single(r.Policy):
		case known > 0: // an earlier admission emitted them
			step.Take(row, r.tokens(next, next+max(0, min(step.Max(row), known))))
		default:
			step.Draft(row)
		}
	}
	step.Choose()
}
