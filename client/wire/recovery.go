package wire

import (
	"maps"
	"time"
)

// RecoveryState is what faults, joins and leaves have cost since the coordinator
// began.
type RecoveryState struct {
	RecomputedTokens uint64            `json:"recomputed_tokens"` // read by prefill once more
	ReplayedTokens   uint64            `json:"replayed_tokens"`   // output that went through decode once more
	RestoredCaches   uint64            `json:"restored_caches"`   // went on where they were, in a new epoch
	RestoredReplicas uint64            `json:"restored_replicas"` // went on from a copy on another node
	ReplicaBytes     uint64            `json:"replica_bytes"`     // sent to copies
	Preemptions      uint64            `json:"preemptions"`       // sequences whose place or memory others got
	Detection        Durations         `json:"detection"`         // from the start of the step in flight, or just failed, to the end of its placement
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

// Clone is a copy that does not change.
func (d *Durations) Clone() Durations {
	out := *d
	out.Buckets = maps.Clone(d.Buckets)
	return out
}
