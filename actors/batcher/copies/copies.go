// Package copies decides when a batcher makes replicas of caches. No request depends on a replica. If none
// can be made, as when the copy lacks a recurrent state, each attempt breaks the epoch. So there is a pause
// after a step that made replicas and failed.
package copies

import "github.com/shoal-llm/shoal/internal/engine/plan"

const (
	// InStep bounds the new replicas of one step.
	InStep = 2

	pause  = 30_000 // milliseconds. It doubles with each failure in a row
	double = 6      // at most this often
)

// Rest is the pause after failed steps. Times are in milliseconds.
type Rest struct {
	failures int // in a row
	until    int64
}

// Failed takes a plan whose step has failed.
func (r *Rest) Failed(p *plan.Plan, now int64) {
	if len(p.Copy) > 0 {
		r.until = now + pause<<min(r.failures, double)
		r.failures++
	}
}

// Done takes a plan whose step has ended well.
func (r *Rest) Done(p *plan.Plan) {
	if len(p.Copy) > 0 {
		r.failures = 0
	}
}

// Over reports whether replicas may be made.
func (r *Rest) Over(now int64) bool { return now >= r.until }
