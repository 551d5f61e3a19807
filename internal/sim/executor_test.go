package sim

import (
	"time"

	"github.com/shoal-llm/shoal/actors/socket"
	"github.com/shoal-llm/shoal/topology"
)

// executor is that of a node: a queue of jobs that take time. It may hang while
// the actor beside it answers.
type executor struct {
	taken, ended uint64
	before       uint64 // of them, when the step in flight began
	loaded       uint64 // bytes of weights, in a unit of its own
	hangs        bool
	jam          []func()      // what is due while it hangs
	moved        time.Duration // when it last ended one
	freed        time.Duration // when it last ceased to hang
	spoke        time.Duration // when the actor beside it last began to answer again, which may count as a move
}

// exec runs a job behind those that the executor has in hand.
func (n *node) exec(cost time.Duration, job func()) {
	n.jobs.taken++
	n.execute = max(n.execute, n.w.now) + cost*time.Duration(n.slow)
	n.w.after(n.process, n.execute-n.w.now, func() { n.jobs.due(n.w, job) })
}

func (j *executor) due(w *world, job func()) {
	if j.hangs {
		j.jam = append(j.jam, job)
		return
	}
	j.ended, j.moved = j.ended+1, w.now
	job()
}

// unjam lets a hanging executor go on.
func (n *node) unjam() {
	j := &n.jobs
	if j.hangs {
		j.hangs, j.freed = false, n.w.now
	}
	late := j.jam
	j.jam = nil
	for _, job := range late {
		n.w.after(n.process, 0, func() { j.due(n.w, job) })
	}
}

func (j *executor) busy() bool { return j.taken > j.ended }

// standing is what the actor answers when it is asked how far the node is.
func (n *node) standing() *topology.Standing {
	s := n.machine.State
	out := &topology.Standing{Epoch: s.Epoch, Step: s.Step, Loading: s.Phase == socket.Loading, Stepping: s.Phase == socket.Stepping,
		Busy: n.jobs.busy(), Finished: n.jobs.ended, Loaded: n.jobs.loaded}
	if n.step != nil {
		out.Finished -= n.jobs.before
	}
	return out
}
