package wire

// ClusterState is the body of GET /v1/cluster.
type ClusterState struct {
	Epoch           uint64      `json:"epoch"`
	Mapping         string      `json:"mapping"`
	Running         int         `json:"running"`
	Waiting         int         `json:"waiting"`
	WaitingReason   string      `json:"waiting_reason,omitempty"` // why the head of the queue waits
	Model           string      `json:"model,omitempty"`
	Policy          string      `json:"kv_policy,omitempty"`
	Policies        []string    `json:"kv_policies,omitempty"` // that requests may name, with their defaults
	TokensPerSecond float64     `json:"tokens_per_second"`
	StepMillis      float64     `json:"step_ms"`
	BatchRows       int         `json:"batch_rows"`               // tokens in the step in flight
	BatchSequences  int         `json:"batch_sequences"`          // sequences in it
	TryingThreads   bool        `json:"trying_threads,omitempty"` // steps like it are done with different numbers of threads, to learn which is fastest
	LoadSeconds     float64     `json:"load_seconds,omitempty"`   // since nodes began to load their weights; absent: they do not
	Recoveries      uint64      `json:"recoveries"`               // placements withdrawn because a node was lost or a step failed
	StepRows        uint64      `json:"step_rows"`                // tokens of all steps of this coordinator, of failed ones too
	WireBytes       uint64      `json:"wire_bytes"`               // tensors that nodes sent in them, of failed ones not
	Clustering      float64     `json:"clustering_seconds"`       // of those steps, spent on clustering the keys of prompts
	Subscriptions   int         `json:"subscriptions"`            // of the bus, in the coordinator's process
	Join            string      `json:"join,omitempty"`           // HOST:PORT that further nodes join
	Nodes           []NodeState `json:"nodes"`

	Sequences []SequenceState `json:"sequences"` // that run, the first 512 in order

	// Build and arithmetic of the coordinator. Nodes with another arithmetic or wire version are
	// refused.
	Build       string `json:"build,omitempty"`
	Arithmetic  string `json:"arithmetic,omitempty"`
	WireVersion uint32 `json:"wire_version,omitempty"`

	PrefixCache *PrefixCacheState `json:"prefix_cache,omitempty"` // absent: it is off
	// Drafts are of all requests of this coordinator; absent: nobody has speculated.
	Drafts *DraftsState `json:"speculation,omitempty"`

	// Recovery is what faults have cost since this coordinator began.
	Recovery *RecoveryState `json:"recovery,omitempty"`

	// Fences counts nodes that were left out because they held up the others: slow, hung, broke.
	Fences map[string]uint64 `json:"fences,omitempty"`

	Store *StoreState `json:"store,omitempty"` // absent: no data directory
}

// PrefixCacheState is what prompts have found of what others had read.
type PrefixCacheState struct {
	Mode    string `json:"mode"`           // on: by key; shared
	Queries uint64 `json:"queries"`        // tokens of prompts that were looked up, since this coordinator began
	Hits    uint64 `json:"hits"`           // of these, those that were there
	Tokens  int    `json:"tokens"`         // that can be found now
	Evicted uint64 `json:"evicted_tokens"` // that could, and went for sequences that needed the memory
	Answers uint64 `json:"answer_tokens"`  // of answers, that stayed for the next turns
	// Disk is absent where blocks are not kept in files.
	Disk *PrefixDiskState `json:"disk,omitempty"`
}

// PrefixDiskState are the files of the prefix cache, of all nodes together; a block is 64
// tokens of one node's heads. Bytes and blocks are now, the others since the nodes began.
type PrefixDiskState struct {
	Bytes    int64  `json:"bytes"`
	Limit    int64  `json:"limit_bytes"`
	Blocks   uint64 `json:"blocks"`
	Written  uint64 `json:"written_blocks"`
	Read     uint64 `json:"read_blocks"`
	Dropped  uint64 `json:"dropped_blocks"`  // the disk was slower than prompts are read
	Removed  uint64 `json:"removed_blocks"`  // for others
	Damaged  uint64 `json:"damaged_blocks"`  // and read again
	Failed   uint64 `json:"failures"`        // of the disk
	Restored uint64 `json:"restored_tokens"` // that prompts began with, since this coordinator began
	Late     uint64 `json:"late"`            // times that the disk was too slow to be waited for
}

// DraftsState is what speculation has given so far.
type DraftsState struct {
	Mode      string   `json:"mode"`   // of requests that name none
	Steps     uint64   `json:"drafts"` // decode rows that had any
	Drafted   uint64   `json:"draft_tokens"`
	Accepted  uint64   `json:"accepted_tokens"`
	At        []uint64 `json:"accepted_per_position"`
	TextBytes int64    `json:"text_bytes"`   // indexes of the sequences
	Recent    int64    `json:"recent_bytes"` // index of recent outputs
}

// StoreMember is a process that keeps a replica of the store.
type StoreMember struct {
	ID    string `json:"id"`
	Route string `json:"route"` // where its server listens
	State string `json:"state"` // here, away
}

// StoreState is where placement and jobs are written down, and by whom.
type StoreState struct {
	Durability  string `json:"durability"` // single: one copy on one disk; replicated
	Replicas    int    `json:"replicas"`   // copies that are in step now
	Wanted      int    `json:"wanted"`
	Coordinator string `json:"coordinator"` // holder of the lease
	Term        uint64 `json:"term"`        // grows with each holder
	Trouble     string `json:"trouble,omitempty"`

	Members []StoreMember `json:"members,omitempty"` // of a replicated one
}

// NodeState is one node of the cluster.
type NodeState struct {
	ID            string  `json:"id"`
	PID           int     `json:"pid"`
	Address       string  `json:"address"`
	State         string  `json:"state"` // joining, loading, ready, suspect, fenced ...
	Share         float64 `json:"share"` // fraction of the weights, 0..1
	Sequences     int     `json:"sequences"`
	KVUsedBytes   int64   `json:"kv_used_bytes"`
	KVBudgetBytes int64   `json:"kv_budget_bytes"`
	KVReserved    int64   `json:"kv_reserved_bytes"` // by the ledger: used, or promised to a running sequence
	KVReplicas    int64   `json:"kv_replica_bytes"`  // of the reserved, what copies of other nodes' caches take
	KVPrefix      int64   `json:"kv_prefix_bytes"`   // not in the used bytes: the prefix cache, which is evicted when sequences need the memory
	KVFreed       int64   `json:"kv_freed_bytes"`    // given back in this epoch when prompts were compressed or handed over
	// Files of rows that memory has no room for: promised by the ledger, there now, at most, and
	// failures since the start of the node.
	KVDiskReserved  int64   `json:"kv_disk_reserved_bytes,omitempty"`
	KVDiskUsedBytes int64   `json:"kv_disk_used_bytes,omitempty"`
	KVDiskBytes     int64   `json:"kv_disk_bytes,omitempty"`
	KVDiskFailures  uint64  `json:"kv_disk_failures,omitempty"`
	WeightBytes     int64   `json:"weight_bytes,omitempty"`
	Goroutines      int     `json:"goroutines,omitempty"`
	OpenFiles       int     `json:"open_files,omitempty"`
	Subscriptions   int     `json:"subscriptions,omitempty"` // of the bus in the node's process
	LoadedBytes     int64   `json:"loaded_bytes,omitempty"`  // while loading: of LoadBytes, weights converted so far
	LoadBytes       int64   `json:"load_bytes,omitempty"`
	FetchedBytes    int64   `json:"fetched_bytes,omitempty"` // of the checkpoint, from other processes, since the node's start
	RSSBytes        int64   `json:"rss_bytes,omitempty"`
	Threads         int     `json:"threads,omitempty"`    // that compute in the newest step; absent: not known
	Late            float64 `json:"late_ratio,omitempty"` // of the steps' time, what the others wait for it alone; a straggler above 0.5
	Reason          string  `json:"reason,omitempty"`     // why it is fenced
	Build           string  `json:"build,omitempty"`
	Arithmetic      string  `json:"arithmetic,omitempty"`
}

// SequenceState is a sequence that holds memory: no id, and nothing of its text.
type SequenceState struct {
	Node    string `json:"node"`  // its owner
	State   string `json:"state"` // prefill, decoding, ending
	Prompt  int    `json:"prompt_tokens"`
	Output  int    `json:"output_tokens"`
	KVBytes int64  `json:"kv_bytes"`      // that the ledger books for it, but for a copy
	KVFull  int64  `json:"kv_bytes_full"` // what a full cache of its tokens would take on its owner
	Replica string `json:"replica,omitempty"`
}
