// Package step carries out plans: it runs the layers, samples tokens, and moves cache rows between the
// sockets of an epoch. All its work is jobs for the executor.
package step

import (
	"time"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/actors/socket/machine"
	"github.com/shoal-llm/shoal/internal/engine/tensor/workers"
	"github.com/shoal-llm/shoal/internal/proto"
)

// Step is the execution of one plan. All of its state is in it and in its epoch. The executor runs its
// jobs. After each job the actor reads the next one.
type Step struct {
	Work *machine.Work

	epoch     *Epoch
	buf       *buffers
	parts     []part // micro-batches of the current pass; nil: all rows are one
	wanted    []wanted
	pooled    []pooledRun
	results   results
	sampled   []*proto.Sampled // results of all passes, in order of passes
	pass      int              // number of completed passes
	sampledBy [][]float32      // with several sockets: the tokens that the rows of each rank have sampled
	stages    []stage
	at        int

	spent      Times
	compute    time.Duration // of the layers, in completed passes
	copied     uint64        // bytes sent to replicas
	spilled    []*proto.Spill
	lost       []uint64
	wireBefore uint64
	before     workers.Spent
	lateBefore []time.Duration

	entered             time.Time     // start of the current stage
	overlapped, exposed time.Duration // waits of micro-batches; the part in which nothing was computed
}

// stage is one part of a step: a job on the executor, which calls done once, or batches that run through
// the layers together.
type stage struct {
	job     func(done func(error))
	batches []*layer.Batch
}

// NewStep returns a step whose first stage begins it. use sets the number of threads, and whether messages need
// one more processor.
func (e *Epoch) NewStep(w *machine.Work, use func(shift int, spare bool)) *Step {
	s := &Step{epoch: e, buf: e.buf, Work: w}
	s.stages = []stage{{job: func(done func(error)) {
		use(w.ThreadShift, spare(w))
		s.wireBefore, s.before = e.Group.WireBytes(), e.pool.Spent()
		s.lateBefore = e.Group.Lateness()
		began := time.Now()
		err := e.begin(s)
		s.spent.Begin = time.Since(began)
		if err == nil {
			s.stages = append(s.stages, e.plan(s)...)
		}
		done(err)
	}}}
	return s
}

// Job returns the job of the current stage, or the batches that now enter the layers.
func (s *Step) Job() (job func(done func(error)), layers []*layer.Batch) {
	s.entered = time.Now()
	return s.stages[s.at].job, s.stages[s.at].batches
}

// Advance moves to the next stage, of the current pass or of the next one. It returns false after the
// last stage.
func (s *Step) Advance() bool {
	if s.at++; s.at < len(s.stages) {
		return true
	}
	if s.pass+1 < s.Work.Passes {
		s.at, s.stages = 0, s.epoch.nextPass(s)
		return true
	}
	return false
}

// Finish ends a step whose stages have all succeeded.
func (s *Step) Finish() (Times, *proto.StepReply) {
	e, w := s.epoch, s.Work
	s.passed(s.buf.batch)
	s.spent.Threads = e.pool.Spent().Sub(s.before)
	t := s.spent
	return t, &proto.StepReply{Epoch: w.Epoch, Step: w.Step, Sampled: s.sampled, KvUsedBytes: e.Arena.Used(),
		ComputeMicros: uint32((s.compute + t.Head + t.Begin).Microseconds()), WaitMicros: uint32(t.Wait.Microseconds()),
		OwnMicros:        uint32(t.Own.Microseconds()),
		ClusteringMicros: uint32(t.Clustering.Microseconds()), LateMicros: s.late(), Threads: threadTime(t.Threads),
		Spilled: s.spilled, Lost: s.lost, WireBytes: e.Group.WireBytes() - s.wireBefore, ReplicaBytes: s.copied}
}
