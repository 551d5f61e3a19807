package coordinator

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/shoal-llm/shoal/actors/socket/machine"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/node"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/topology"
)

// StepStalls is the maximum duration of a step, in stall deadlines.
const StepStalls = 6

// watch checks the nodes' progress in a long step. A node that makes no progress while all others
// wait for it is fenced, and the step ends, within the stall deadline. stop ends the watch.
func (s *Stepper) watch(ctx context.Context, g *Group, p *plan.Plan) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	if len(g.Handles) == 1 {
		return ctx, func() { cancel(nil) }
	}
	every := s.stall / 8
	var wg sync.WaitGroup
	wg.Go(func() {
		t := time.NewTicker(every)
		defer t.Stop()
		began := time.Now()
		rule := topology.Stall{Deadline: s.stall * 5 / 8}
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
			}
			for _, rank := range rule.Check(time.Since(began), s.progress(ctx, g, p, every)) {
				why := fmt.Sprintf("it made no progress in step %d for %v while the others waited for it", p.Step, rule.Deadline)
				s.fence(g, rank, why, true)
				cancel(fmt.Errorf("cluster: node %s is fenced: %s", g.Nodes[rank].ID, why))
			}
			if ctx.Err() != nil {
				return
			}
		}
	})
	return ctx, func() {
		cancel(nil)
		wg.Wait()
	}
}

// progress requests the step progress of all nodes concurrently.
func (s *Stepper) progress(ctx context.Context, g *Group, p *plan.Plan, limit time.Duration) []topology.Progress {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return fromAll(g.Handles, func(_ int, h node.Handle) topology.Progress {
		return nodeProgress(h.Status(ctx)).InStep(p.Epoch, p.Step)
	})
}

// nodeProgress returns the report of a node about itself; nil: it did not reply.
func nodeProgress(st *proto.SocketStatus, err error) *topology.NodeProgress {
	if err != nil {
		return nil
	}
	return &topology.NodeProgress{Epoch: st.Epoch, Step: st.LastStep, Loading: st.State == string(machine.Loading),
		Stepping: st.State == string(machine.Stepping),
		Busy:     st.Busy, Finished: st.Progress, Loaded: uint64(st.LoadedBytes) + uint64(st.FetchedBytes)}
}

// fence requests that a node be left out because it delays the others.
func (s *Stepper) fence(g *Group, rank int, reason string, hung bool) {
	n := &g.Nodes[rank]
	s.director.send(&nodeFence{id: n.ID, incarnation: n.Incarnation, reason: reason, hung: hung})
}

// recordWaits records which nodes kept the others waiting.
func (s *Stepper) recordWaits(g *Group, took time.Duration, replies []*proto.StepReply) {
	ids, late, own := make([]string, len(replies)), make([][]time.Duration, len(replies)), make([]time.Duration, len(replies))
	for i, r := range replies {
		ids[i], own[i] = g.Nodes[i].ID, time.Duration(r.OwnMicros)*time.Microsecond
		for _, us := range r.LateMicros {
			late[i] = append(late[i], time.Duration(us)*time.Microsecond)
		}
	}
	f := &s.figures
	f.mu.Lock()
	if f.epoch != g.Placement.Epoch {
		f.epoch = g.Placement.Epoch
		f.slow.Reset()
	}
	remarks := f.slow.Step(took, ids, late, own)
	f.mu.Unlock()
	for _, r := range remarks {
		switch {
		case r.Over:
			s.log.Info("a straggler has recovered", "node", r.ID)
			continue
		case !r.Fence:
			s.log.Warn("straggler", "node", r.ID, "others_wait", fmt.Sprintf("%.0f%%", 100*r.Ratio))
			continue
		}
		for rank, n := range g.Nodes {
			if n.ID == r.ID {
				s.fence(g, rank, fmt.Sprintf("the others wait for it %.0f%% of the time", 100*r.Ratio), false)
			}
		}
	}
}
