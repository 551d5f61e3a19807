// Package inorder keeps the micro-batches of one step in order where they share caches
// (docs/decisions/passes.md). Where a prompt is cut between two of them, the rows of the later one
// attend to those of the earlier one in the same layer, and continue their recurrent states.
package inorder

import "math"

// Order is the progress of one micro-batch through the caches of the layers. The jobs of one executor
// use it, one at a time.
type Order struct {
	before *Order // its batch uses the caches of a layer first; nil: no batch does
	uses   int    // operations in this step that have used the caches
	parked func() // continues the batch that follows, which waits for this one; or nil
}

// Follow puts the batch after another one of the same step.
func (o *Order) Follow(before *Order) { o.before = before }

// Park reports whether the next run of a batch must wait because n of its operations use the caches and
// the batch before has not come that far. That batch then returns resume from Ran.
func (o *Order) Park(n int, resume func()) bool {
	if o.before == nil || n == 0 || o.before.uses >= o.uses+n {
		return false
	}
	o.before.parked = resume
	return true
}

// Ran records a run of which n operations have used the caches. ends means that the batch uses no more of
// them in this step. It returns the resume function of a waiting run, or nil.
func (o *Order) Ran(n int, ends bool) (resume func()) {
	if ends {
		o.uses, n = math.MaxInt, 1
	} else {
		o.uses += n
	}
	if n > 0 {
		resume, o.parked = o.parked, nil
	}
	return resume
}
