package coordinator

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/topology"
)

// Adapt limits the plans of a group to the features that all its nodes support, so that a new build can be
// rolled out node by node. onePass means that a plan may have one decode step only. most is the largest thread
// shift that the nodes support, at most maxShift.
func (d *Director) Adapt(g *Group, maxShift int) (onePass bool, most int) {
	var old []string
	passes, _ := proto.Needs(&proto.StepRequest{Passes: 2})
	threads, _ := proto.Needs(&proto.StepRequest{ThreadShift: 1})
	most = maxShift
	for i := range g.Nodes {
		n := &g.Nodes[i]
		if n.Wire == 0 {
			continue
		}
		if n.Wire < passes {
			onePass = true
			old = append(old, fmt.Sprintf("%s (wire version %d)", n.ID, n.Wire))
		}
		if n.Wire < threads {
			most = 0
		}
	}
	if onePass {
		d.cfg.Logger.Warn("nodes with older builds are present: until they are replaced, each plan has one decode step and uses all threads",
			"nodes", old)
	}
	return onePass, most
}

// MaxMicroBatches returns the largest plan.MicroBatches that all nodes support. A node with an older build
// supports one. So does a graphics card, whose memory is planned for the activations of one, and a node alone
// has nothing to wait for.
func (g *Group) MaxMicroBatches() int {
	need, _ := proto.Needs(&proto.StepRequest{MicroBatches: plan.MaxMicroBatches})
	for i := range g.Nodes {
		if n := &g.Nodes[i]; n.Device != "" || n.Wire != 0 && n.Wire < need {
			return 1
		}
	}
	return min(len(g.Nodes), plan.MaxMicroBatches)
}

// stepTokens returns the maximum number of tokens in a step of these nodes.
func (m *Model) stepTokens(nodes []topology.Node) int {
	if n := topology.CardStep(nodes); m.CardSteps && n > 0 {
		return n
	}
	return int(m.Load.MaxStepTokens)
}

// StepTokens returns the maximum number of tokens in a step of a group.
func (d *Director) StepTokens(g *Group) int { return d.cfg.Models[g.Model].stepTokens(g.Nodes) }

// ChooseChunk returns the maximum number of prompt tokens of one sequence per step for a group, from
// the speed of its nodes.
func (d *Director) ChooseChunk(g *Group) int {
	stepTokens := d.StepTokens(g)
	if n := topology.CardStep(g.Nodes); n > 0 {
		return min(n, stepTokens)
	}
	m := d.cfg.Authority.Models()[g.Model]
	return topology.ChooseChunk(g.Placement.Mapping, m.Shape, len(g.Nodes), topology.MeasuredCosts(g.Nodes, m.WeightBytes), stepTokens)
}
