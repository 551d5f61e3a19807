package batcher

import (
	"github.com/shoal-llm/shoal/actors/batcher/drafts"
	"github.com/shoal-llm/shoal/internal/engine/plan"
)

// multiStep is the module that requests several model passes in one plan. In a decode-only step the
// sockets can continue with the tokens that they sampled. The overhead between two steps, for
// results and the next plan, is then paid once for all passes. The bits equal those of single steps
// (docs/decisions/passes.md).
type multiStep struct{ s *State }

// plan sets the number of passes of a decode-only plan. It is limited by the target time of a step, by
// the tokens left in every row, and by the otherwise unused memory.
func (m *multiStep) plan(p *plan.Plan, rows map[uint64]*request) {
	s := m.s
	if len(p.Chunks)+len(p.Sweeps)+len(p.Index)+len(p.Open)+len(p.Copy)+len(p.Spill) > 0 {
		return
	}
	one := s.drafts.StepMicros(len(p.Decode))
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
	n = min(n, drafts.MaxScores/scores)
	for i := range p.Decode {
		n = min(n, 1+s.reserve(rows[p.Decode[i].Seq], n-1))
	}
	if n > 1 {
		p.Passes = n
	}
}
