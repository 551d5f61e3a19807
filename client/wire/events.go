package wire

import "time"

// ClusterEvent is an entry of GET /v1/events.
type ClusterEvent struct {
	ID       uint64    `json:"id"`
	Revision uint64    `json:"revision"` // increases with every event, and with every change of an event's cost
	At       time.Time `json:"at"`       // by the coordinator's clock
	Kind     string    `json:"kind"`     // one of the kinds below
	Node     string    `json:"node,omitempty"`
	Epoch    uint32    `json:"epoch"` // newest epoch at that time
	Reason   string    `json:"reason,omitempty"`
	Sockets  int       `json:"sockets,omitempty"` // sockets of the serving placement
	Cost     *Cost     `json:"cost,omitempty"`    // cost of the end of a serving placement
}

// Kinds of events. There are also those of topology.Kinds, which end a serving placement.
const (
	EventStarted   = "coordinator_started"
	EventTakeover  = "coordinator_took_over"
	EventServing   = "serving" // the first placement of a coordinator
	EventNodeUp    = "node_up" // the node has joined and has no share yet
	EventWorks     = "node_works"
	EventUndrained = "node_undrained"
	EventRefused   = "node_refused"
)

// Cost is the cost of the end of a placement so far.
type Cost struct {
	Open        bool   `json:"open"`                 // more cost may be added
	NextEpoch   uint32 `json:"next_epoch,omitempty"` // epoch that serves next
	StallMillis int64  `json:"stall_ms"`             // from the end until the next placement served
	// Numbers of interrupted sequences: all of them, the ones that continued or ended normally, and the
	// ones that ended with an error.
	Streams   int `json:"streams"`
	Continued int `json:"went_on"`
	Failed    int `json:"failed"`
	// SilentMillis is the longest pause of a sequence: from its last token before the end to its
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
	WireBytes       uint64  `json:"wire_bytes"` // bytes since the coordinator started
	KVBytes         int64   `json:"kv_bytes"`   // cache bytes of all running sequences; KVFull: if all caches were full
	KVFull          int64   `json:"kv_bytes_full"`
	// Nodes maps node ids to bytes: caches of sequences, prefix cache, weights, and resident memory
	// of the process.
	Nodes map[string][4]int64 `json:"nodes"`
}
