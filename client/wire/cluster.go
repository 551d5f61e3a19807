package wire

import "cmp"

// ClusterState is the body of GET /v1/cluster.
type ClusterState struct {
	Epoch           uint64      `json:"epoch"`
	Mapping         string      `json:"mapping"`
	Running         int         `json:"running"`
	Waiting         int         `json:"waiting"`
	WaitingReason   string      `json:"waiting_reason,omitempty"` // why the head of the queue waits
	Model           string      `json:"model,omitempty"`
	Policy          string      `json:"kv_policy,omitempty"`
	Policies        []string    `json:"kv_policies,omitempty"` // policies that requests may name, with their defaults
	TokensPerSecond float64     `json:"tokens_per_second"`
	StepMillis      float64     `json:"step_ms"`
	BatchRows       int         `json:"batch_rows"`               // tokens in the step in flight
	BatchSequences  int         `json:"batch_sequences"`          // sequences in the step in flight
	MicroBatches    int         `json:"micro_batches,omitempty"`  // of the newest step (--micro-batches)
	TryingThreads   bool        `json:"trying_threads,omitempty"` // the number of threads of such steps is being tuned
	LoadSeconds     float64     `json:"load_seconds,omitempty"`   // seconds since nodes began to load weights; absent: they are not loading
	Recoveries      uint64      `json:"recoveries"`               // placements withdrawn because a node was lost or a step failed
	StepRows        uint64      `json:"step_rows"`                // tokens in all steps of this coordinator, failed ones included
	WireBytes       uint64      `json:"wire_bytes"`               // bytes of tensors between nodes in all steps, failed ones excluded
	ExchangeWait    float64     `json:"exchange_wait_seconds"`    // seconds of those steps in which their slowest node waited for the others
	Clustering      float64     `json:"clustering_seconds"`       // seconds of those steps spent on clustering the keys of prompts
	Subscriptions   int         `json:"subscriptions"`            // NATS subscriptions in the coordinator's process
	Join            string      `json:"join,omitempty"`           // HOST:PORT for further nodes to join
	Nodes           []NodeState `json:"nodes"`

	Sequences []SequenceState `json:"sequences"` // running sequences, the first 512 in order

	// Models are the models of a cluster that serves several. The numbers above then count all of
	// them; model, mapping, policy, prefix cache and drafts are those of the first.
	Models []ModelState `json:"models,omitempty"`

	// Build and arithmetic of the coordinator. Nodes with another arithmetic or wire version are
	// refused.
	Build       string `json:"build,omitempty"`
	Arithmetic  string `json:"arithmetic,omitempty"`
	WireVersion uint32 `json:"wire_version,omitempty"`

	PrefixCache *PrefixCacheState `json:"prefix_cache,omitempty"` // absent: it is off
	// Drafts are the results of speculative decoding for all requests of this coordinator;
	// absent: there was none.
	Drafts *DraftsState `json:"speculation,omitempty"`

	// Transfers counts the caches that moved from prefill nodes to decode nodes; absent: there are no
	// prefill nodes.
	Transfers *TransfersState `json:"transfers,omitempty"`
	// SavedCaches counts the caches of idle sessions in files; absent: no node has --kv-disk.
	SavedCaches *SavedCachesState `json:"saved_caches,omitempty"`
	// Recovery is the cost of faults since this coordinator started.
	Recovery *RecoveryState `json:"recovery,omitempty"`

	// Fences counts nodes that were excluded, by reason: slow, hung, broke.
	Fences map[string]uint64 `json:"fences,omitempty"`

	Store *StoreState `json:"store,omitempty"` // absent: no data directory
}

// TransfersState counts the caches that moved from prefill nodes to decode nodes since this coordinator
// started.
type TransfersState struct {
	Caches  uint64  `json:"caches"`
	Bytes   int64   `json:"bytes"`
	Seconds float64 `json:"seconds"` // sum of their durations
	Failed  uint64  `json:"failed"`  // prompts that the prefill nodes did not read, or whose cache did not arrive
}

// SavedCachesState counts the caches of idle sessions in files. Caches and Bytes are present values. The
// other members count since this coordinator started.
type SavedCachesState struct {
	Caches  int    `json:"caches"`
	Bytes   int64  `json:"bytes"`
	Written uint64 `json:"written"`
	Read    uint64 `json:"read"`   // caches that were read for the next turn
	Failed  uint64 `json:"failed"` // caches that could not be read: their turns computed all tokens
}

// PrefixCacheState is the use of the prefix cache since this coordinator started.
type PrefixCacheState struct {
	Mode    string `json:"mode"`           // on (separate per API key) or shared
	Queries uint64 `json:"queries"`        // prompt tokens that were looked up
	Hits    uint64 `json:"hits"`           // prompt tokens that were found
	Tokens  int    `json:"tokens"`         // tokens in the cache now
	Evicted uint64 `json:"evicted_tokens"` // tokens evicted because sequences needed the memory
	Answers uint64 `json:"answer_tokens"`  // answer tokens that stayed in the cache for further turns
	// Disk is absent if blocks are not stored in files.
	Disk *PrefixDiskState `json:"disk,omitempty"`
}

// PrefixDiskState describes the files of the prefix cache, summed over all nodes. A block is 64
// tokens of one node's heads. Bytes and blocks are current, the other counts since the nodes
// started.
type PrefixDiskState struct {
	Bytes    int64  `json:"bytes"`
	Limit    int64  `json:"limit_bytes"`
	Blocks   uint64 `json:"blocks"`
	Written  uint64 `json:"written_blocks"`
	Read     uint64 `json:"read_blocks"`
	Dropped  uint64 `json:"dropped_blocks"`  // not written because the disk was too slow
	Removed  uint64 `json:"removed_blocks"`  // evicted for other blocks
	Damaged  uint64 `json:"damaged_blocks"`  // unreadable; their tokens were computed again
	Failed   uint64 `json:"failures"`        // failed disk operations
	Restored uint64 `json:"restored_tokens"` // prompt tokens read from files since this coordinator started
	Late     uint64 `json:"late"`            // reads that were abandoned because the disk was too slow

	// Results of indexes of prompts under squeezed and shadowkv: the clusters of a head, the thresholds
	// of a prompt, the factors of a layer.
	IndexesComputed uint64 `json:"indexes_computed"`
	IndexesRead     uint64 `json:"indexes_read"` // from files
}

// Add returns the sum of two; nil: there are no files.
func (d *PrefixDiskState) Add(o *PrefixDiskState) *PrefixDiskState {
	if d == nil || o == nil {
		return cmp.Or(d, o)
	}
	return &PrefixDiskState{Bytes: d.Bytes + o.Bytes, Limit: d.Limit + o.Limit, Blocks: d.Blocks + o.Blocks,
		Written: d.Written + o.Written, Read: d.Read + o.Read,
		Dropped: d.Dropped + o.Dropped, Removed: d.Removed + o.Removed, Damaged: d.Damaged + o.Damaged, Failed: d.Failed + o.Failed,
		Restored: d.Restored + o.Restored, Late: d.Late + o.Late, IndexesComputed: d.IndexesComputed + o.IndexesComputed,
		IndexesRead: d.IndexesRead + o.IndexesRead}
}

// DraftsState is the result of speculative decoding so far.
type DraftsState struct {
	Mode      string   `json:"mode"`   // mode of requests that name none
	Steps     uint64   `json:"drafts"` // decode rows with drafts
	Drafted   uint64   `json:"draft_tokens"`
	Accepted  uint64   `json:"accepted_tokens"`
	At        []uint64 `json:"accepted_per_position"`
	TextBytes int64    `json:"text_bytes"`   // bytes of the indexes of running sequences
	Recent    int64    `json:"recent_bytes"` // bytes of the index of recent outputs
}

// StoreMember is a process with a replica of the store.
type StoreMember struct {
	ID    string `json:"id"`
	Route string `json:"route"` // where its server listens
	State string `json:"state"` // here or away
}

// StoreState describes the store of placement and jobs.
type StoreState struct {
	Durability  string `json:"durability"` // single (one copy on one disk) or replicated
	Replicas    int    `json:"replicas"`   // copies that are up to date now
	Target      int    `json:"wanted"`
	Coordinator string `json:"coordinator"` // holder of the lease
	Term        uint64 `json:"term"`        // increases with each holder of the lease
	Problem     string `json:"trouble,omitempty"`

	Members []StoreMember `json:"members,omitempty"` // members of a replicated store
}

// ModelState is one of several models of a cluster.
type ModelState struct {
	Model           string            `json:"model"`
	Names           []string          `json:"names"` // in the API
	Policy          string            `json:"kv_policy"`
	Weights         string            `json:"weights"` // type in memory
	KVType          string            `json:"kv_type"`
	Mapping         string            `json:"mapping"`
	Running         int               `json:"running"`
	Waiting         int               `json:"waiting"`
	WaitingReason   string            `json:"waiting_reason,omitempty"`
	TokensPerSecond float64           `json:"tokens_per_second"`
	StepMillis      float64           `json:"step_ms"`
	Preemptions     uint64            `json:"preemptions"`
	WeightBytes     int64             `json:"weight_bytes"`    // of all nodes
	KVUsedBytes     int64             `json:"kv_used_bytes"`   // of all nodes
	KVBudgetBytes   int64             `json:"kv_budget_bytes"` // its part of the memory of all nodes
	KVPrefix        int64             `json:"kv_prefix_bytes"` // not in the used bytes
	PrefixCache     *PrefixCacheState `json:"prefix_cache,omitempty"`
	Drafts          *DraftsState      `json:"speculation,omitempty"`
}

// NodeState is one node of the cluster.
type NodeState struct {
	ID            string  `json:"id"`
	PID           int     `json:"pid"`
	Address       string  `json:"address"`
	Role          string  `json:"role"`  // prefill or decode: of its group; both: the cluster has one group
	State         string  `json:"state"` // joining, loading, ready, suspect, fenced and others
	Share         float64 `json:"share"` // fraction of the weights, 0..1
	Sequences     int     `json:"sequences"`
	KVUsedBytes   int64   `json:"kv_used_bytes"`
	KVPeakBytes   int64   `json:"kv_peak_bytes"` // the most that was in use since the node's start, with the prefix cache
	KVBudgetBytes int64   `json:"kv_budget_bytes"`
	KVReserved    int64   `json:"kv_reserved_bytes"` // reserved in the ledger: in use, or promised to a running sequence
	KVReplicas    int64   `json:"kv_replica_bytes"`  // reserved for copies of other nodes' caches
	KVPrefix      int64   `json:"kv_prefix_bytes"`   // not in the used bytes: the prefix cache, which is evicted when sequences need the memory
	KVFreed       int64   `json:"kv_freed_bytes"`    // freed in this epoch after prompts were compressed or handed over
	// Files of cache rows that do not fit in memory: bytes reserved, in use, and allowed, and disk
	// failures since the start of the node.
	KVDiskReserved  int64   `json:"kv_disk_reserved_bytes,omitempty"`
	KVDiskUsedBytes int64   `json:"kv_disk_used_bytes,omitempty"`
	KVDiskBytes     int64   `json:"kv_disk_bytes,omitempty"`
	KVDiskFailures  uint64  `json:"kv_disk_failures,omitempty"`
	KVDiskSaved     int64   `json:"kv_disk_saved_bytes,omitempty"` // of caches of idle sessions in files
	LoRABytes       int64   `json:"lora_bytes,omitempty"`          // of LoRA adapters in memory
	LoRAAdapters    int     `json:"lora_adapters,omitempty"`       // their number
	WeightBytes     int64   `json:"weight_bytes,omitempty"`
	Goroutines      int     `json:"goroutines,omitempty"`
	OpenFiles       int     `json:"open_files,omitempty"`
	Subscriptions   int     `json:"subscriptions,omitempty"` // NATS subscriptions in the node's process
	LoadedBytes     int64   `json:"loaded_bytes,omitempty"`  // while loading: bytes of LoadBytes converted so far
	LoadBytes       int64   `json:"load_bytes,omitempty"`
	FetchedBytes    int64   `json:"fetched_bytes,omitempty"` // checkpoint bytes fetched from other processes since the node's start
	RSSBytes        int64   `json:"rss_bytes,omitempty"`
	Device          string  `json:"device,omitempty"`              // graphics card that computes, such as "cuda:0 NVIDIA H100"; absent: the CPU
	DeviceMemory    int64   `json:"device_memory_bytes,omitempty"` // of the card
	DeviceUsed      int64   `json:"device_used_bytes,omitempty"`   // of it, by the node's process: weights, caches and activations
	Threads         int     `json:"threads,omitempty"`             // compute threads in the newest step; absent: unknown
	Late            float64 `json:"late_ratio,omitempty"`          // fraction of step time in which the others wait for this node alone; above 0.5: a straggler
	Reason          string  `json:"reason,omitempty"`              // reason for fencing
	Build           string  `json:"build,omitempty"`
	Arithmetic      string  `json:"arithmetic,omitempty"`
}

// ToRead returns the number of cached tokens before the next new token of a sequence, if there are fewer now: its prompt
// is being read, or all its tokens are after the loss of a cache. 0: none is missing, or the sequence is idle.
func (s *SequenceState) ToRead() int {
	all := s.Prompt + max(0, s.Output-1) // the newest token of the answer is read with the next step
	if (s.State == "prefill" || s.State == "decoding" || s.State == "transfer") && s.Cached < all {
		return all
	}
	return 0
}

// SequenceState is a sequence that holds memory. It has no id and no text.
type SequenceState struct {
	Model   string `json:"model,omitempty"` // absent: the cluster serves one
	Node    string `json:"node"`            // id of the owning node
	State   string `json:"state"`           // prefill, decoding or ending
	Prompt  int    `json:"prompt_tokens"`
	Output  int    `json:"output_tokens"`
	Cached  int    `json:"cached_tokens"` // tokens of prompt and output that its cache has seen; see ToRead
	KVBytes int64  `json:"kv_bytes"`      // bytes reserved in the ledger, without a replica
	KVFull  int64  `json:"kv_bytes_full"` // bytes of a full cache of its tokens on its owner
	Replica string `json:"replica,omitempty"`
	Cut     bool   `json:"cut,omitempty"` // its cache is cut over all nodes
}
