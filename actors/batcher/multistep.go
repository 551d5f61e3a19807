package batcher

import "github.com/shoal-llm/shoal/internal/engine/plan"

// multiStep is the module that asks for several passes of the model in one plan. Where a step has
// nothing but decode rows, the sockets go on with the tokens that they sampled. The time between
// two steps, for results and the next plan, is then spent once for all passes. The bits are those
// of single steps (docs/decisions/multi-step.md).
type multiStep struct{ s *State }

// plan sets the passes of a plan of decode rows: as many as the time limit of such a step allows,
// as every row has tokens left, and as there is memory that nothing else needs.
func (m *multiStep) plan(p *plan.Plan, rows map[uint64]*request) {
	s := m.s
	if len(p.Chunks)+len(p.Index)+len(p.Open)+len(p.Copy)+len(p.Spill) > 0 {
		return
	}
	one := s.drafts.cost.Step(len(p.Decode))
	if one == 0 {
		return
	}
	n, scores := min(s.cfg.DecodeSteps, int(float64(1000*s.cfg.StepTargetMillis)/one)), 0
	for i := range p.Decode {
		d := &p.Decode[i]
		r := rows[d.Seq]
		if !d.Sample || len(d.Tokens) > 1 || d.Draft > 0 || r.cached+1 < len(r.Prompt)+len(r.out) || s.cfg.Geometry.Single(r.Policy) {
			return
		}
		scores += 1 + max(0, r.Sampling.Logprobs)
		n = min(n, r.final()-r.cached)
	}
	n = min(n, draftScores/scores)
	for i := range p.Decode {
		n = min(n, 1+s.reserve(rows[p.Decode[i].Seq], n-1))
	}
	if n > 1 {
		p.Passes = n
	}
}
