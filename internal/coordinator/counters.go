package coordinator

import (
	"maps"
	"sync"
	"time"

	"github.com/shoal-llm/shoal/actors/batcher"
	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/topology"
)

// RecoveryCounters counts the cost of faults, for /v1/cluster and /metrics.
type RecoveryCounters struct {
	mu         sync.Mutex
	placements map[string]uint64
	detect     wire.Durations
	stall      wire.Durations
}

// NewRecoveryCounters returns counters of zero.
func NewRecoveryCounters() *RecoveryCounters {
	r := &RecoveryCounters{placements: map[string]uint64{}}
	for _, kind := range topology.Kinds() {
		r.placements[kind] = 0
	}
	return r
}

// Withdrawn records why a placement ended. began is the start of the step that was in flight or had
// just failed. The time since then bounds how long detection took. It is zero if there was no step.
func (r *RecoveryCounters) Withdrawn(w topology.Withdraw, began, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.placements[w.Kind]++
	if (w.Kind == topology.KindLost || w.Kind == topology.KindFenced || w.Kind == topology.KindRefused || w.Kind == topology.KindStep ||
		w.Kind == topology.KindRestarted) && !began.IsZero() {
		r.detect.Add(now.Sub(began))
	}
}

// Served records that a placement serves again.
func (r *RecoveryCounters) Served(since, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stall.Add(now.Sub(since))
}

// State returns the counters, combined with those of the batcher and the steps.
func (r *RecoveryCounters) State(t batcher.Totals, copied uint64) *wire.RecoveryState {
	r.mu.Lock()
	defer r.mu.Unlock()
	return &wire.RecoveryState{Placements: maps.Clone(r.placements), Detection: r.detect.Clone(), Stall: r.stall.Clone(), ReplicaBytes: copied,
		RecomputedTokens: t.Recomputed, ReplayedTokens: t.Replayed, RestoredCaches: t.Restored,
		RestoredReplicas: t.Copies, Preemptions: t.Preempted}
}
