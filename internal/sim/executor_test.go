package sim

import (
	"github.com/shoal-llm/shoal/actors/socket/machine"
	"github.com/shoal-llm/shoal/topology"
	"time"
)

// executor is a node's executor: a queue of jobs that take time. It may hang while the node's actor
// answers.
type executor struct {
	taken, ended uint64
	before       uint64 // value of ended when the step in flight started
	loaded       uint64 // bytes of weights, in arbitrary units
	hangs        bool
	delayed      []func()      // jobs that are due while it hangs
	moved        time.Duration // when it last ended a job
	freed        time.Duration // when it last stopped hanging
	spoke        time.Duration // when the actor last started to answer again, which may count as progress
}

// exec queues a job on the executor.
func (n *node) exec(cost time.Duration, job func()) {
	n.jobs.taken++
	n.execute = max(n.execute, n.w.now) + cost*time.Duration(n.slow)
	n.w.after(n.process, n.execute-n.w.now, func() { n.jobs.due(n.w, job) })
}

func (j *executor) due(w *world, job func()) {
	if j.hangs {
		j.delayed = append(j.delayed, job)
		return
	}
	j.ended, j.moved = j.ended+1, w.now
	job()
}

// resumeExecutor ends the executor's hang.
func (n *node) resumeExecutor() {
	j := &n.jobs
	if j.hangs {
		j.hangs, j.freed = false, n.w.now
	}
	late := j.delayed
	j.delayed = nil
	for _, job := range late {
		n.w.after(n.process, 0, func() { j.due(n.w, job) })
	}
}

func (j *executor) busy() bool { return j.taken > j.ended }

// nodeProgress is the actor's report of the node's progress.
func (n *node) nodeProgress() *topology.NodeProgress {
	s := n.machine.State
	out := &topology.NodeProgress{Epoch: s.Epoch, Step: s.Step, Loading: s.Phase == machine.Loading, Stepping: s.Phase == machine.Stepping,
		Busy: n.jobs.busy(), Finished: n.jobs.ended, Loaded: n.jobs.loaded}
	if n.step != nil {
		out.Finished -= n.jobs.before
	}
	return out
}
