package cluster

import (
	"maps"
	"sync"
	"time"

	"github.com/shoal-llm/shoal/actors/batcher"
	"github.com/shoal-llm/shoal/internal/server/api"
	"github.com/shoal-llm/shoal/topology"
)

// recovery counts what faults have cost, for /v1/cluster and /metrics.
type recovery struct {
	mu         sync.Mutex
	placements map[string]uint64
	detect     api.Durations
	stall      api.Durations
}

func newRecovery() *recovery {
	r := &recovery{placements: map[string]uint64{}}
	for _, kind := range topology.Kinds() {
		r.placements[kind] = 0
	}
	return r
}

// withdrawn notes why a placement ended, and how long ago the step had begun that was in
// flight, or had just failed, which bounds the time that noticing the fault took. began
// is zero when there was none.
func (r *recovery) withdrawn(w topology.Withdraw, began, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.placements[w.Kind]++
	if (w.Kind == topology.KindLost || w.Kind == topology.KindFenced || w.Kind == topology.KindRefused || w.Kind == topology.KindStep || w.Kind == topology.KindRestarted) && !began.IsZero() {
		r.detect.Add(now.Sub(began))
	}
}

// served notes that a placement serves again.
func (r *recovery) served(since, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stall.Add(now.Sub(since))
}

// state is a copy, with what the batcher and the steps say.
func (r *recovery) state(t batcher.Totals, copied uint64) *api.RecoveryState {
	r.mu.Lock()
	defer r.mu.Unlock()
	return &api.RecoveryState{Placements: maps.Clone(r.placements), Detection: r.detect.Clone(), Stall: r.stall.Clone(), ReplicaBytes: copied,
		RecomputedTokens: t.Recomputed, ReplayedTokens: t.Replayed, RestoredCaches: t.Restored, RestoredReplicas: t.Copies, Preemptions: t.Preempted}
}
