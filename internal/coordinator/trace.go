package coordinator

import (
	"time"

	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/internal/tracing"
)

// maxNames is the maximum number of sequences whose requests are known. Plans never release
// sequences that a broken epoch has removed.
const maxNames = 4096

// sequenceNames maps sequences of plans to their requests. Plans run one at a time.
type sequenceNames map[uint64]string

// apply adds the opened sequences of a plan and removes the released ones.
func (n *sequenceNames) apply(p *plan.Plan) {
	if *n == nil || len(*n) > maxNames {
		*n = sequenceNames{}
	}
	for _, seq := range p.Release {
		delete(*n, seq)
	}
	for _, o := range p.Open {
		(*n)[o.Seq] = o.ID
	}
}

// trace exports a step once in a while.
func (s *Stepper) trace(g *Group, p *plan.Plan, began time.Time, took time.Duration, replies []*proto.StepReply) {
	s.names.apply(p)
	if !s.tracer.StepDue(began) {
		return
	}
	t := tracing.Step{Epoch: p.Epoch, Number: p.Step, Began: began, Took: took, Rows: p.Tokens()}
	for _, d := range p.Decode {
		t.Sequences = append(t.Sequences, s.names[d.Seq])
	}
	for _, c := range p.Chunks {
		t.Sequences = append(t.Sequences, s.names[c.Seq])
	}
	for _, w := range p.Sweeps {
		t.Sequences = append(t.Sequences, s.names[w.Seq])
	}
	for rank, r := range replies {
		t.Nodes = append(t.Nodes, tracing.Node{ID: g.Nodes[rank].ID, Compute: time.Duration(r.ComputeMicros) * time.Microsecond,
			Wait: time.Duration(r.WaitMicros) * time.Microsecond, WireBytes: r.WireBytes})
	}
	s.tracer.Step(t)
}

// TracedSince returns the steps since an earlier count, for a trace.
func (s *Stepper) TracedSince(since StepTotals) tracing.Steps {
	d := s.Totals().Sub(since)
	return tracing.Steps{Steps: d.Steps, Compute: d.Compute, Wait: d.Wait, WireBytes: d.Wire}
}
