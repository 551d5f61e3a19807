package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoal-llm/shoal/actors/batcher"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/engine/tensor/workers"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/internal/rpc"
	"github.com/shoal-llm/shoal/internal/tracing"
	"github.com/shoal-llm/shoal/topology"
)

// PrefixRequest returns the wire form of a request to the disks of the sockets.
func PrefixRequest(epoch uint32, d batcher.Disk) *proto.PrefixRequest {
	return &proto.PrefixRequest{Epoch: epoch, From: uint32(d.From), Keys: plan.EncodeKeys(d.Before[:], d.Keys), Blocks: d.Blocks, Step: d.Step,
		Millis: uint32(d.Millis), Seq: d.Seq, Owner: uint32(d.Owner)}
}

// StepDone combines the replies of all sockets to a step.
func StepDone(p *plan.Plan, replies []*proto.StepReply) batcher.StepDone {
	d := batcher.StepDone{Epoch: p.Epoch, Step: p.Step}
	slowest := uint32(0)
	for rank, r := range replies {
		if r.ComputeMicros >= slowest {
			slowest, d.Waited = r.ComputeMicros, int64(r.WaitMicros)
		}
		d.Used, d.Lost = append(d.Used, r.KvUsedBytes), append(d.Lost, r.Lost...)
		for _, f := range r.Spilled {
			d.Spilled = append(d.Spilled, plan.Spill{Seq: f.Seq, Owner: rank, Blocks: int(f.Blocks)})
		}
		for _, s := range r.Sampled {
			out := batcher.Result{Seq: s.Seq, Odds: s.Odds, Pooled: s.Pooled}
			for _, t := range s.Drafts {
				out.Drafts = append(out.Drafts, int32(t))
			}
			for _, t := range s.Drawn {
				sample := sampler.Result{Err: sampler.ErrNoCandidate}
				switch {
				case t.Banned:
					sample.Err = sampler.ErrBanned
				case t.HasToken:
					sample = sampler.Result{Token: int32(t.Token), Logprob: t.Logprob, Top: tops(t.Top)}
				}
				out.Samples = append(out.Samples, sample)
			}
			for _, q := range s.Prompt {
				out.Prompt = append(out.Prompt, batcher.PromptLogprob{Position: int(q.Position), Logprob: q.Logprob, Top: tops(q.Top)})
			}
			d.Results = append(d.Results, out)
		}
	}
	return d
}

func tops(in []*proto.TokenLogprob) []sampler.TokenLogprob {
	var out []sampler.TokenLogprob
	for _, t := range in {
		out = append(out, sampler.TokenLogprob{Token: int32(t.Token), Logprob: t.Logprob})
	}
	return out
}

// Stepper runs the plans of one model on its serving group.
type Stepper struct {
	director *Director
	group    func() *Group // that serves; nil: none does
	stall    time.Duration // a node without progress for this time, while the others wait, is fenced
	deadline time.Duration // for the whole step
	log      *slog.Logger
	figures  figures
	tracer   *tracing.Tracer
	names    sequenceNames // used with a tracer only
}

// NewStepper returns the stepper of a model's group. It fences a node that makes no progress for stall while the others
// wait, and ends a step after StepStalls times stall. tracer may be nil.
func NewStepper(d *Director, group func() *Group, stall time.Duration, log *slog.Logger, tracer *tracing.Tracer) *Stepper {
	return &Stepper{director: d, group: group, stall: stall, deadline: StepStalls * stall, log: log, tracer: tracer}
}

// figures holds the values that Figures reads, and the step in flight.
type figures struct {
	mu     sync.Mutex
	step   time.Duration // smoothed
	total  StepTotals
	copied uint64    // bytes to replicas
	flight time.Time // start of the step in flight, or of the one that broke its epoch; zero: none
	epoch  uint32
	slow   topology.StragglerDetector
}

// StepTotals are sums over all steps since the start.
type StepTotals struct {
	Steps   uint64        `json:"steps"`
	Wall    time.Duration `json:"wall_ns"`    // from request to the last reply
	Compute time.Duration `json:"compute_ns"` // of the slowest node of each step
	Wait    time.Duration `json:"wait_ns"`    // for collectives, of that node
	Wire    uint64        `json:"wire_bytes"` // sent by all nodes, a broadcast counted once
	Rows    uint64        `json:"rows"`       // tokens, of steps that failed as well
	Threads workers.Spent `json:"threads_ns"` // of the node that Compute is of

	Clustering  time.Duration `json:"clustering_ns"` // of prompts, of the slowest node
	ThreadShift uint64        `json:"thread_shift"`  // sum over the steps, see plan.Plan
}

// Sub returns the difference to an earlier value o.
func (t StepTotals) Sub(o StepTotals) StepTotals {
	return StepTotals{t.Steps - o.Steps, t.Wall - o.Wall, t.Compute - o.Compute, t.Wait - o.Wait, t.Wire - o.Wire, t.Rows - o.Rows,
		t.Threads.Sub(o.Threads), t.Clustering - o.Clustering, t.ThreadShift - o.ThreadShift}
}

// Totals returns the time and work of all steps so far.
func (s *Stepper) Totals() StepTotals {
	s.figures.mu.Lock()
	defer s.figures.mu.Unlock()
	return s.figures.total
}

// Figures are the timings of recent steps, for /v1/cluster.
type Figures struct {
	Step         time.Duration // smoothed
	Total        StepTotals
	ReplicaBytes uint64             // sent to replicas
	Late         map[string]float64 // part of the time that the others wait for a node
}

// Figures returns the timings, with those of the given nodes.
func (s *Stepper) Figures(nodes []topology.Node) Figures {
	s.figures.mu.Lock()
	defer s.figures.mu.Unlock()
	f := Figures{Step: s.figures.step, Total: s.figures.total, ReplicaBytes: s.figures.copied, Late: map[string]float64{}}
	for _, n := range nodes {
		f.Late[n.ID] = s.figures.slow.Ratio(n.ID)
	}
	return f
}

// Interrupted returns the start of the step that the end of a placement interrupted, or that failed
// before it; zero if there was none.
func (s *Stepper) Interrupted() time.Time { return s.figures.broken() }

// begin records a step and its start.
func (f *figures) begin(at time.Time, rows int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.flight = at
	f.total.Rows += uint64(rows)
}

// broken returns the start of the step that the end of a placement interrupted, or that failed
// before it; zero if there was none.
func (f *figures) broken() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	began := f.flight
	f.flight = time.Time{}
	return began
}

// record records a completed plan. Each of its passes counts as a step. A failed plan stays recorded
// for broken, because its epoch is about to end.
func (f *figures) record(began time.Time, took time.Duration, p *plan.Plan, replies []*proto.StepReply) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.flight.Equal(began) {
		f.flight = time.Time{}
	}
	passes := p.PassCount()
	f.step += (took/time.Duration(passes) - f.step) / 8
	f.total.Steps += uint64(passes)
	f.total.ThreadShift += uint64(passes * p.ThreadShift)
	f.total.Wall += took
	var slowest *proto.StepReply
	clustering := uint32(0)
	for _, r := range replies {
		f.total.Wire += r.WireBytes
		f.copied += r.ReplicaBytes
		clustering = max(clustering, r.ClusteringMicros)
		if slowest == nil || r.ComputeMicros > slowest.ComputeMicros {
			slowest = r
		}
	}
	f.total.Clustering += time.Duration(clustering) * time.Microsecond
	if slowest != nil {
		f.total.Compute += time.Duration(slowest.ComputeMicros) * time.Microsecond
		f.total.Wait += time.Duration(slowest.WaitMicros) * time.Microsecond
		f.total.Threads = f.total.Threads.Add(threadsOf(slowest.Threads))
	}
}

func threadsOf(m *proto.ThreadTime) workers.Spent {
	return workers.Spent{Runs: m.GetRuns(), Wall: time.Duration(m.GetWall()), Work: time.Duration(m.GetWork()),
		Late:   time.Duration(m.GetLate()),
		Absent: time.Duration(m.GetAbsent()), Uneven: time.Duration(m.GetUneven()), End: time.Duration(m.GetEnd()), Again: m.GetAgain()}
}

// Run sends one plan to all sockets and waits for their replies until the deadline. An error names
// the nodes that failed. Nodes that do not answer a ping are reported as suspects.
func (s *Stepper) Run(ctx context.Context, p *plan.Plan) (batcher.StepDone, error) {
	g := s.group()
	if g == nil || g.Placement.Epoch != p.Epoch {
		return batcher.StepDone{}, fmt.Errorf("%w: epoch %d is over", ErrNoPlacement, p.Epoch)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.deadline, fmt.Errorf("cluster: step %d was not done in %v", p.Step, s.deadline))
	defer cancel()
	began := time.Now()
	s.figures.begin(began, p.Tokens()*p.PassCount())
	ctx, hung := s.watch(ctx, g, p)
	replies, errs := g.step(ctx, plan.Encode(p, s.deadline))
	hung()
	if err := s.failed(g, errs); err != nil {
		return batcher.StepDone{}, err
	}
	took := time.Since(began)
	s.figures.record(began, took, p, replies)
	s.recordWaits(g, took, replies)
	if s.tracer != nil {
		s.trace(g, p, began, took, replies)
	}
	return StepDone(p, replies), nil
}

// failed returns the error of a step that failed on any rank. It reports ranks that do not answer a
// ping. If all do, it reports the rank that the others waited for, or the only rank that failed.
func (s *Stepper) failed(g *Group, errs []error) error {
	var failed []string
	var failures []topology.Failure
	var wg sync.WaitGroup
	var explained atomic.Bool // the cause is known from more than the replies
	for rank, err := range errs {
		if err == nil {
			continue
		}
		failed, failures = append(failed, err.Error()), append(failures, failure(rank, err))
		if rpc.IsIncompatible(err) {
			explained.Store(true)
			continue
		}
		wg.Go(func() {
			probe, cancel := context.WithTimeout(context.Background(), probeLimit)
			defer cancel()
			if _, err := g.Handles[rank].Status(probe); err != nil {
				explained.Store(true)
				n := &g.Nodes[rank]
				s.director.send(&nodeDown{id: n.ID, incarnation: n.Incarnation})
			}
		})
	}
	wg.Wait()
	if len(failed) == 0 {
		return nil
	}
	err := errors.New(strings.Join(failed, "; "))
	if rank, alone := topology.Suspect(len(errs), failures); rank >= 0 && !explained.Load() {
		s.director.send(&nodeFault{epoch: g.Placement.Epoch, id: g.Nodes[rank].ID, fault: err.Error(), alone: alone})
	}
	return err
}

// probeLimit is the timeout of a ping to a socket after it failed a step.
const probeLimit = 800 * time.Millisecond
