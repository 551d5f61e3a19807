package wire

import (
	"maps"
	"time"
)

// RecoveryState is the cost of faults, joins and leaves since the coordinator started.
type RecoveryState struct {
	RecomputedTokens uint64            `json:"recomputed_tokens"` // prompt tokens computed again by prefill
	ReplayedTokens   uint64            `json:"replayed_tokens"`   // output tokens computed again by decode
	RestoredCaches   uint64            `json:"restored_caches"`   // caches that continued on their node in a new epoch
	RestoredReplicas uint64            `json:"restored_replicas"` // caches that continued from a replica on another node
	ReplicaBytes     uint64            `json:"replica_bytes"`     // bytes sent to replicas
	Preemptions      uint64            `json:"preemptions"`       // sequences that gave their place or memory to others
	Detection        Durations         `json:"detection"`         // from the start of the failed or current step to the end of its placement
	Stall            Durations         `json:"stall"`             // from the end of a placement to the next that serves
	Placements       map[string]uint64 `json:"placement_changes"` // serving placements withdrawn, by reason
}

// Durations is a histogram.
type Durations struct {
	Count   uint64             `json:"count"`
	Seconds float64            `json:"seconds"` // sum
	Max     float64            `json:"max_seconds"`
	Buckets map[float64]uint64 `json:"-"` // keys are upper bounds in seconds
}

var recoveryBuckets = []float64{0.05, 0.1, 0.25, 0.5, 1, 1.5, 2, 3, 5, 10, 20, 60, 300}

// Add counts one duration.
func (d *Durations) Add(t time.Duration) {
	if d.Buckets == nil {
		d.Buckets = map[float64]uint64{}
	}
	s := max(t.Seconds(), 0)
	d.Count, d.Seconds, d.Max = d.Count+1, d.Seconds+s, max(d.Max, s)
	for _, b := range recoveryBuckets {
		if s <= b {
			d.Buckets[b]++
		}
	}
}

// Clone returns a copy that does not change with d.
func (d *Durations) Clone() Durations {
	out := *d
	out.Buckets = maps.Clone(d.Buckets)
	return out
}
