// Package replicas bounds how often a batcher makes replicas of caches. No request depends on a replica. If
// none can be made, as when it lacks a recurrent state, each attempt breaks the epoch. So there is a pause after
// a failed step that made replicas. A step also fails when a node is lost: then the next placement has other
// nodes, and the pause ends. This holds for the first failure in a row only, because an attempt may also end the
// node.
package replicas

import (
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/plan"
)

const (
	// PerStep is the maximum number of new replicas in one step.
	PerStep = 2

	firstPause = 30_000 // milliseconds; it doubles with each failure in a row
	maxDoubled = 6      // the number of times that it doubles
)

// Backoff is the pause after failed steps. Times are in milliseconds.
type Backoff struct {
	failures int // in a row
	until    int64
	nodes    []string // of the placement, sorted
	failed   []string // of the placement of the newest failure
}

// Placed takes the IDs of the nodes of a new placement. The caller must not change them later.
func (b *Backoff) Placed(nodes []string) {
	slices.Sort(nodes)
	b.nodes = nodes
	if b.failures == 1 && !slices.Equal(b.failed, nodes) {
		b.until = 0
	}
}

// Failed records the failed step of a plan.
func (b *Backoff) Failed(p *plan.Plan, now int64) {
	if len(p.Copy) > 0 {
		b.until = now + firstPause<<min(b.failures, maxDoubled)
		b.failures++
		b.failed = b.nodes
	}
}

// Done records the successful step of a plan.
func (b *Backoff) Done(p *plan.Plan) {
	if len(p.Copy) > 0 {
		b.failures = 0
	}
}

// Over reports whether replicas may be made.
func (b *Backoff) Over(now int64) bool { return now >= b.until }
