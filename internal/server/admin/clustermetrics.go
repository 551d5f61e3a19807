package admin

import (
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/internal/server/engine"
)

// modelLabel is vLLM's label of the metrics of one model.
const modelLabel = "model_name"

var clusterMetrics = newTable("",
	gauge("shoal_epoch", "Number of the current placement.", func(c *wire.ClusterState) uint64 { return c.Epoch }),
	gauge("shoal_batch_sequences", "Sequences in the step in flight.", func(c *wire.ClusterState) int { return c.BatchSequences }),
	gauge("shoal_tokens_per_second", "Prompt tokens read and tokens generated in the last second; 0 when idle.",
		func(c *wire.ClusterState) float64 { return c.TokensPerSecond }),
	gauge("shoal_micro_batches", "Micro-batches of the newest step.", func(c *wire.ClusterState) int { return c.MicroBatches }),
	gauge("shoal_subscriptions", "Subscriptions of the bus in the coordinator's process.",
		func(c *wire.ClusterState) int { return c.Subscriptions }),
	counter("shoal_recoveries_total", "Serving placements that were withdrawn because a node was lost or a step failed.",
		func(c *wire.ClusterState) uint64 { return c.Recoveries }),
	counter("shoal_clustering_seconds_total",
		"Time of steps that went into clustering the keys of prompts (squeezed), of the slowest node of each.",
		func(c *wire.ClusterState) float64 { return c.Clustering }),
	counter("shoal_exchange_wait_seconds_total", "Time of steps in which the slowest node of each waited for the others.",
		func(c *wire.ClusterState) float64 { return c.ExchangeWait }),
	counters("shoal_fences_total", "Nodes that were left out for a while, because they were slow or hung, or broke epochs.", "kind",
		func(c *wire.ClusterState) map[string]uint64 { return c.Fences }),
	gauges("shoal_nodes", "Nodes by state.", "state", func(c *wire.ClusterState) map[string]int {
		states := map[string]int{}
		for _, n := range c.Nodes {
			state, _, _ := strings.Cut(n.State, ":") // the reason of a refusal follows
			states[state]++
		}
		return states
	}),
	gauges("shoal_speculate_bytes", "Memory of the indexes that drafts are made from.", "of", draftBytes),
)

var modelMetrics = newTable(modelLabel,
	gauge("vllm:num_requests_running", "Sequences in the running batch.", func(m *wire.ModelState) int { return m.Running }),
	gauge("vllm:num_requests_waiting", "Sequences that wait for admission.", func(m *wire.ModelState) int { return m.Waiting }),
	gauge("vllm:kv_cache_usage_perc", "KV cache bytes in use, 1 is the whole budget.", func(m *wire.ModelState) float64 {
		if m.KVBudgetBytes == 0 {
			return 0
		}
		return float64(m.KVUsedBytes) / float64(m.KVBudgetBytes)
	}),
	counter("vllm:num_preemptions_total", "Times that a running sequence gave its place or memory to others.",
		func(m *wire.ModelState) uint64 { return m.Preemptions }),
)

var prefixMetrics = newTable(modelLabel,
	counter("vllm:prefix_cache_queries_total", "Prompt tokens that were looked up in the prefix cache.",
		func(p *wire.PrefixCacheState) uint64 { return p.Queries }),
	counter("vllm:prefix_cache_hits_total", "Prompt tokens that were found there.",
		func(p *wire.PrefixCacheState) uint64 { return p.Hits }),
)

var draftMetrics = newTable(modelLabel,
	counter("vllm:spec_decode_num_drafts_total", "Decode rows with drafts.", func(d *wire.DraftsState) uint64 { return d.Steps }),
	counter("vllm:spec_decode_num_draft_tokens_total", "Tokens that were drafted and tried.",
		func(d *wire.DraftsState) uint64 { return d.Drafted }),
	counter("vllm:spec_decode_num_accepted_tokens_total", "Of these, tokens that were accepted.",
		func(d *wire.DraftsState) uint64 { return d.Accepted }),
	counters("vllm:spec_decode_num_accepted_tokens_per_pos_total",
		"Tokens that were accepted as the first, second, ... draft of their row.", "position",
		func(d *wire.DraftsState) map[string]uint64 {
			at := map[string]uint64{}
			for i, n := range d.At {
				at[strconv.Itoa(i)] = n
			}
			return at
		}),
)

var prefixDiskMetrics = newTable("",
	gauge("shoal_prefix_disk_bytes", "Bytes of the prefix cache in files, of all nodes.",
		func(d *wire.PrefixDiskState) int64 { return d.Bytes }),
	counter("shoal_prefix_disk_restored_tokens_total", "Prompt tokens that came from files.",
		func(d *wire.PrefixDiskState) uint64 { return d.Restored }),
	counters("shoal_prefix_disk_indexes_total",
		"Clusters of a head, thresholds of a prompt and factors of a layer, under squeezed and shadowkv, that were computed or read from files.",
		"from", func(d *wire.PrefixDiskState) map[string]uint64 {
			return map[string]uint64{"computed": d.IndexesComputed, "read": d.IndexesRead}
		}),
	counters("shoal_prefix_disk_trouble_total",
		"Blocks that were dropped (the disk was slower than prompts are read) or damaged, failed operations, and times that the disk was too "+
			"slow to be waited for (late).", "kind", func(d *wire.PrefixDiskState) map[string]uint64 {
			return map[string]uint64{"dropped": d.Dropped, "damaged": d.Damaged, "failed": d.Failed, "late": d.Late}
		}),
)

var recoveryMetrics = newTable("",
	counters("shoal_rebuilt_tokens_total",
		"Tokens that were computed once more for sequences that were cut off: recomputed by prefill, replayed by decode.", "how",
		func(r *wire.RecoveryState) map[string]uint64 {
			return map[string]uint64{"recomputed": r.RecomputedTokens, "replayed": r.ReplayedTokens}
		}),
	counters("shoal_restored_caches_total", "Caches that continued in a new epoch: the owner's own, or a replica.", "from",
		func(r *wire.RecoveryState) map[string]uint64 {
			return map[string]uint64{"owner": r.RestoredCaches, "replica": r.RestoredReplicas}
		}),
	counter("shoal_replica_bytes_total", "Bytes of cache rows that were sent to replicas.",
		func(r *wire.RecoveryState) uint64 { return r.ReplicaBytes }),
	counters("shoal_placement_changes_total", "Serving placements that were withdrawn, by reason.", "reason",
		func(r *wire.RecoveryState) map[string]uint64 { return r.Placements }),
	histogram("shoal_detection_seconds",
		"From the start of the step in flight, or just failed, to the end of its placement, when a fault ended it.",
		func(r *wire.RecoveryState) *wire.Durations { return &r.Detection }),
	histogram("shoal_stall_seconds", "From the end of a placement to the next that serves.",
		func(r *wire.RecoveryState) *wire.Durations { return &r.Stall }),
)

var transferMetrics = newTable("",
	counter("shoal_transfers_total", "Caches of prompts that moved from prefill nodes to decode nodes.",
		func(t *wire.TransfersState) uint64 { return t.Caches }),
	counter("shoal_transfer_bytes_total", "Bytes of these caches.", func(t *wire.TransfersState) int64 { return t.Bytes }),
	counter("shoal_transfer_seconds_total", "Sum of the times that these caches took to move.",
		func(t *wire.TransfersState) float64 { return t.Seconds }),
	counter("shoal_transfer_failures_total",
		"Prompts that prefill nodes did not read, or whose caches did not arrive. They are read again.",
		func(t *wire.TransfersState) uint64 { return t.Failed }),
)

var savedMetrics = newTable("",
	gauge("shoal_saved_caches", "Caches of idle sessions in files of all nodes.", func(s *wire.SavedCachesState) int { return s.Caches }),
	gauge("shoal_saved_cache_bytes", "Bytes of caches of idle sessions in files of all nodes.",
		func(s *wire.SavedCachesState) int64 { return s.Bytes }),
	counter("shoal_saved_caches_written_total", "Caches of idle sessions that were written to files.",
		func(s *wire.SavedCachesState) uint64 { return s.Written }),
	counter("shoal_saved_caches_read_total", "Caches that were read from files for the next turn.",
		func(s *wire.SavedCachesState) uint64 { return s.Read }),
	counter("shoal_saved_caches_failures_total", "Caches that could not be read from files. Their turns computed all tokens.",
		func(s *wire.SavedCachesState) uint64 { return s.Failed }),
)

var nodeMetrics = newTable("node",
	gauge("shoal_node_share", "Fraction of the weights on the node.", func(n *wire.NodeState) float64 { return n.Share }),
	gauge("shoal_node_kv_used_bytes", "KV cache bytes in use on the node.", func(n *wire.NodeState) int64 { return n.KVUsedBytes }),
	gauge("shoal_node_kv_peak_bytes", "The most KV cache bytes in use on the node since its start, with the prefix cache.",
		func(n *wire.NodeState) int64 { return n.KVPeakBytes }),
	gauge("shoal_node_kv_budget_bytes", "KV cache budget of the node.", func(n *wire.NodeState) int64 { return n.KVBudgetBytes }),
	gauge("shoal_node_kv_reserved_bytes", "KV cache bytes that the ledger has promised to running sequences on the node.",
		func(n *wire.NodeState) int64 { return n.KVReserved }),
	gauge("shoal_node_kv_replica_bytes", "KV cache bytes on the node that copies of other nodes' caches take.",
		func(n *wire.NodeState) int64 { return n.KVReplicas }),
	gauge("shoal_node_kv_freed_bytes", "KV cache bytes that ends of prefill gave back on the node in this epoch.",
		func(n *wire.NodeState) int64 { return n.KVFreed }),
	gauge("shoal_node_kv_prefix_bytes", "Bytes of the prefix cache on the node, which go when sequences need them.",
		func(n *wire.NodeState) int64 { return n.KVPrefix }),
	gauge("shoal_node_sequences", "Sequences whose cache the node owns.", func(n *wire.NodeState) int { return n.Sequences }),
	gauge("shoal_node_lora_bytes", "Bytes of LoRA adapters in the memory of the node.",
		func(n *wire.NodeState) int64 { return n.LoRABytes }),
	gauge("shoal_node_lora_adapters", "LoRA adapters in the memory of the node.", func(n *wire.NodeState) int { return n.LoRAAdapters }),
	gauge("shoal_node_fetched_bytes", "Bytes of the checkpoint that the node fetched from other processes.",
		func(n *wire.NodeState) int64 { return n.FetchedBytes }),
	gauge("shoal_node_late_ratio", "Part of the steps' time in which the others wait for the node alone; a straggler above 0.5.",
		func(n *wire.NodeState) float64 { return n.Late }),
	gauge("shoal_node_subscriptions", "Subscriptions of the bus in the node's process.",
		func(n *wire.NodeState) int { return n.Subscriptions }),
	gauges("shoal_node_role", "1 for the role in which the node works: prefill, decode or both.", "role",
		func(n *wire.NodeState) map[string]int {
			if n.Role == "" {
				return nil
			}
			return map[string]int{n.Role: 1}
		}),
)

// cardMetrics are those of nodes that compute on a graphics card.
var cardMetrics = newTable("node",
	gauge("shoal_node_device_used_bytes", "Bytes of the graphics card's memory that the node uses.",
		func(n *wire.NodeState) int64 { return n.DeviceUsed }),
	gauge("shoal_node_device_memory_bytes", "Memory of the graphics card that computes on the node.",
		func(n *wire.NodeState) int64 { return n.DeviceMemory }),
)

// kvDiskMetrics are those of nodes with --kv-disk.
var kvDiskMetrics = newTable("node",
	gauge("shoal_node_kv_disk_used_bytes", "Bytes of files with rows of sequences that the node's memory has no room for.",
		func(n *wire.NodeState) int64 { return n.KVDiskUsedBytes }),
	counter("shoal_node_kv_disk_failures_total", "Failures of the disk of those files.",
		func(n *wire.NodeState) uint64 { return n.KVDiskFailures }),
)

// clusterCollector reads the engine's state at each scrape.
type clusterCollector struct {
	engine engine.Engine
	model  string // the first name of the only model
}

func (c *clusterCollector) Describe(ch chan<- *prometheus.Desc) {
	clusterMetrics.describe(ch)
	modelMetrics.describe(ch)
	prefixMetrics.describe(ch)
	draftMetrics.describe(ch)
	prefixDiskMetrics.describe(ch)
	recoveryMetrics.describe(ch)
	transferMetrics.describe(ch)
	savedMetrics.describe(ch)
	nodeMetrics.describe(ch)
	cardMetrics.describe(ch)
	kvDiskMetrics.describe(ch)
}

func (c *clusterCollector) Collect(ch chan<- prometheus.Metric) {
	st := c.engine.Cluster()
	var disk *wire.PrefixDiskState
	for _, m := range modelsOf(&st, c.model) {
		modelMetrics.collect(ch, &m, m.Model)
		if p := m.PrefixCache; p != nil {
			prefixMetrics.collect(ch, p, m.Model)
			disk = disk.Add(p.Disk)
		}
		draftMetrics.collect(ch, m.Drafts, m.Model)
	}
	prefixDiskMetrics.collect(ch, disk)
	recoveryMetrics.collect(ch, st.Recovery)
	transferMetrics.collect(ch, st.Transfers)
	savedMetrics.collect(ch, st.SavedCaches)
	seen := map[string]bool{}
	for i := range st.Nodes {
		n := &st.Nodes[i]
		if seen[n.ID] {
			continue // the same series twice would fail the whole scrape
		}
		seen[n.ID] = true
		nodeMetrics.collect(ch, n, n.ID)
		if n.Device != "" {
			cardMetrics.collect(ch, n, n.ID)
		}
		if n.KVDiskBytes > 0 {
			kvDiskMetrics.collect(ch, n, n.ID)
		}
	}
	clusterMetrics.collect(ch, &st)
}

// draftBytes sums the memory of drafts over all models.
func draftBytes(c *wire.ClusterState) map[string]int64 {
	var bytes map[string]int64
	for _, m := range modelsOf(c, "") {
		if d := m.Drafts; d != nil {
			if bytes == nil {
				bytes = map[string]int64{}
			}
			bytes["sequences"] += d.TextBytes
			bytes["recent outputs"] += d.Recent
		}
	}
	return bytes
}

// modelsOf returns the figures of each model. name is the model's name if there is only one.
func modelsOf(st *wire.ClusterState, name string) []wire.ModelState {
	if len(st.Models) > 0 {
		return st.Models
	}
	m := wire.ModelState{Model: name, Running: st.Running, Waiting: st.Waiting, PrefixCache: st.PrefixCache, Drafts: st.Drafts}
	if st.Recovery != nil {
		m.Preemptions = st.Recovery.Preemptions
	}
	for _, n := range st.Nodes {
		m.KVUsedBytes, m.KVBudgetBytes = m.KVUsedBytes+n.KVUsedBytes, m.KVBudgetBytes+n.KVBudgetBytes
	}
	return []wire.ModelState{m}
}
