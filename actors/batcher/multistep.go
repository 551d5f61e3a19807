package batcher

import "github.com/shoal-llm/shoal/internal/engine/plan"

// Multi-step decoding: where a step has nothing but decode rows, sockets go on with what they have
// drawn, several passes of the model for one plan. What lies between two steps, results on their
// way here and a plan on its way there, is then paid once for all of them; the bits are those of a
// step for each (docs/decisions/multi-step.md).

// repeat has a plan of decode rows do as many passes as take no longer than such a step may, as
// every row has tokens left to draw, and as there is memory for that nobody else needs.
func (s *State) repeat(p *plan.Plan, rows map[uint64]*request) {
	if s.cfg.DecodeSteps < 2 || s.onePass || len(p.Chunks)+len(p.Index)+len(p.Open)+len(p.Copy)+len(p.Spill) > 0 {
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
