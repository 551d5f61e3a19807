package cluster

import (
	"time"

	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/internal/tracing"
)

// maxNames bounds the sequences whose requests are known. One that a broken epoch has taken
// away is not named in a plan any more.
const maxNames = 4096

// sequenceNames are the requests of the sequences of plans. Plans are carried out one at a time.
type sequenceNames map[uint64]string

// learn takes what a plan opens and releases.
func (n *sequenceNames) learn(p *plan.Plan) {
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

// trace tells of a step now and then.
func (s *stepper) trace(g *Group, p *plan.Plan, began time.Time, took time.Duration, replies []*proto.StepReply) {
	s.names.learn(p)
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
	for rank, r := range replies {
		t.Nodes = append(t.Nodes, tracing.Node{ID: g.Nodes[rank].ID, Compute: time.Duration(r.ComputeMicros) * time.Microsecond, Wait: time.Duration(r.WaitMicros) * time.Microsecond, WireBytes: r.WireBytes})
	}
	s.tracer.Step(t)
}

// traced are the steps since an earlier count, as a trace tells them.
func (c *core) traced(since StepTotals) tracing.Steps {
	d := c.StepTotals().Sub(since)
	return tracing.Steps{Steps: d.Steps, Compute: d.Compute, Wait: d.Wait, WireBytes: d.Wire}
}
