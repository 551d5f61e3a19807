package socket

import (
	"time"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/actors/socket/machine"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/proto"
)

// step is the execution of one plan. All of its state is in it and in its micro-batch. The executor
// runs its jobs. Between them the actor reads which one is next.
type step struct {
	epoch     *epoch
	work      *machine.Work
	micro     *microBatch
	wanted    []wanted
	results   results
	sampled   []*proto.Sampled // results of all passes, in order of passes
	pass      int              // number of completed passes
	sampledBy [][]float32      // with several sockets: the tokens that the rows of each rank have sampled
	stages    []stage
	at        int

	spent      Stages
	compute    time.Duration // of the layers, in completed passes
	copied     uint64        // bytes sent to replicas
	spilled    []*proto.Spill
	lost       []uint64
	wireBefore uint64
	before     tensor.Spent
	lateBefore []time.Duration
}

// stage is one part of a step: a job on the executor, which calls done once. Without a job it is all
// layers in order.
type stage struct {
	job func(done func(error))
}

// newStep returns a step whose first stage begins it. use sets the number of threads.
func (e *epoch) newStep(w *machine.Work, use func(shift int)) *step {
	s := &step{epoch: e, work: w}
	s.stages = []stage{{job: func(done func(error)) {
		use(w.ThreadShift)
		s.wireBefore, s.before = e.group.wireBytes(), e.pool.Spent()
		s.lateBefore = e.group.lateness()
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

// job returns the job of the current stage. If it is nil, the stage is all layers, which run the batch.
func (s *step) job() (job func(done func(error)), layers *layer.Batch) {
	if job = s.stages[s.at].job; job == nil {
		layers = s.micro.batch
	}
	return job, layers
}

// advance moves to the next stage, of the current pass or of the next one. It returns false after the
// last stage.
func (s *step) advance() bool {
	if s.at++; s.at < len(s.stages) {
		return true
	}
	if s.pass+1 < s.work.Passes {
		s.at, s.stages = 0, s.epoch.nextPass(s)
		return true
	}
	return false
}

// finish ends a step whose stages have all succeeded.
func (s *step) finish() (Stages, *proto.StepReply) {
	e, w := s.epoch, s.work
	s.passed(s.micro.batch)
	s.spent.Threads = e.pool.Spent().Sub(s.before)
	t := s.spent
	return t, &proto.StepReply{Epoch: w.Epoch, Step: w.Step, Sampled: s.sampled, KvUsedBytes: e.arena.Used(),
		ComputeMicros: uint32((s.compute + t.Head + t.Begin).Microseconds()), WaitMicros: uint32(t.Wait.Microseconds()), OwnMicros: uint32(t.Own.Microseconds()),
		ClusteringMicros: uint32(t.Clustering.Microseconds()), LateMicros: micros(e.group.lateness(), s.lateBefore), Threads: threadTime(t.Threads),
		Spilled: s.spilled, Lost: s.lost, WireBytes: e.group.wireBytes() - s.wireBefore, ReplicaBytes: s.copied}
}
