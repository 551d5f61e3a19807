package wire

import "time"

// ClusterEvent is something that happened to the cluster: an entry of GET /v1/events.
type ClusterEvent struct {
	ID       uint64    `json:"id"`
	Revision uint64    `json:"revision"` // grows with every event, and with every change of one: its cost becomes known
	At       time.Time `json:"at"`       // by the clock of the coordinator that saw it
	Kind     string    `json:"kind"`     // one of the kinds below
	Node     string    `json:"node,omitempty"`
	Epoch    uint32    `json:"epoch"` // the newest then
	Reason   string    `json:"reason,omitempty"`
	Sockets  int       `json:"sockets,omitempty"` // of the placement that serves
	Cost     *Cost     `json:"cost,omitempty"`    // of a serving placement's end
}

// Kinds of events. There are also those of topology.Kinds, which end a serving placement.
const (
	EventStarted   = "coordinator_started"
	EventTakeover  = "coordinator_took_over"
	EventServing   = "serving" // the first placement of a coordinator
	EventNodeUp    = "node_up" // it is there; it has no share yet
	EventWorks     = "node_works"
	EventUndrained = "node_undrained"
	EventRefused   = "node_refused"
)

// Cost is what the end of a placement cost, so far.
type Cost struct {
	Open        bool   `json:"open"`                 // more may come
	NextEpoch   uint32 `json:"next_epoch,omitempty"` // that serves in its place
	StallMillis int64  `json:"stall_ms"`             // from its end until the next one served
	// Of sequences that it cut off: how many, how many have a new token or ended as they
	// were to, and how many ended with an error.
	Streams int `json:"streams"`
	WentOn  int `json:"went_on"`
	Failed  int `json:"failed"`
	// SilentMillis is the longest time from the newest token of a sequence before to its
	// first one after.
	SilentMillis     int64  `json:"silent_ms"`
	Recomputed       uint64 `json:"recomputed_tokens"`
	Replayed         uint64 `json:"replayed_tokens"`
	RestoredCaches   uint64 `json:"restored_caches"`
	RestoredReplicas uint64 `json:"restored_replicas"`
}

// Sample is the state of the cluster at one moment: an entry of GET /v1/cluster/history.
type Sample struct {
	Index           uint64  `json:"index"`
	Epoch           uint64  `json:"epoch"`
	Running         int     `json:"running"`
	Waiting         int     `json:"waiting"`
	TokensPerSecond float64 `json:"tokens_per_second"`
	StepMillis      float64 `json:"step_ms"`
	WireBytes       uint64  `json:"wire_bytes"` // since the coordinator began
	KVBytes         int64   `json:"kv_bytes"`   // of all running sequences, and as full caches
	KVFull          int64   `json:"kv_bytes_full"`
	// Nodes holds for each: cache bytes of sequences, of the prefix cache, weights, and the
	// whole memory of its process.
	Nodes map[string][4]int64 `json:"nodes"`
}
