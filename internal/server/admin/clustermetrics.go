package admin

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/internal/server/engine"
)

// clusterCollector reads the engine's state at each scrape.
type clusterCollector struct {
	engine                         engine.Engine
	model                          string // the first name of the only model
	running, waiting, usage, epoch *prometheus.Desc
	recoveries, nodes, share       *prometheus.Desc
	used, peak, budget, sequences  *prometheus.Desc
	subscriptions, nodeSubs        *prometheus.Desc
	reserved, freed, batch         *prometheus.Desc
	replicas, late, fences         *prometheus.Desc
	fetched, clustering, rate      *prometheus.Desc
	exchangeWait, microBatches     *prometheus.Desc
	queries, hits, prefix          *prometheus.Desc
	disk, restored, diskTrouble    *prometheus.Desc
	indexes                        *prometheus.Desc
	rowFiles, rowFailures          *prometheus.Desc
	loraBytes, loraCount           *prometheus.Desc
	cardUsed, cardMemory           *prometheus.Desc
	recovery                       recoveryCollector
	drafts                         draftsCollector
	roles                          rolesCollector
	saved                          savedCollector
}

func newClusterCollector(e engine.Engine, model string) *clusterCollector {
	desc := func(name, help string, vars ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, vars, nil)
	}
	return &clusterCollector{
		engine:   e,
		model:    model,
		recovery: newRecoveryCollector(),
		drafts:   newDraftsCollector(),
		roles:    newRolesCollector(),
		saved:    newSavedCollector(),
		running:  desc("vllm:num_requests_running", "Sequences in the running batch.", modelLabel),
		waiting:  desc("vllm:num_requests_waiting", "Sequences that wait for admission.", modelLabel),
		usage:    desc("vllm:kv_cache_usage_perc", "KV cache bytes in use, 1 is the whole budget.", modelLabel),
		queries:  desc("vllm:prefix_cache_queries_total", "Prompt tokens that were looked up in the prefix cache.", modelLabel),
		hits:     desc("vllm:prefix_cache_hits_total", "Prompt tokens that were found there.", modelLabel),
		disk:     desc("shoal_prefix_disk_bytes", "Bytes of the prefix cache in files, of all nodes."),
		restored: desc("shoal_prefix_disk_restored_tokens_total", "Prompt tokens that came from files."),
		indexes: desc("shoal_prefix_disk_indexes_total",
			"Clusters of a head, thresholds of a prompt and factors of a layer, under squeezed and shadowkv, that were computed or read from files.",
			"from"),
		diskTrouble: desc("shoal_prefix_disk_trouble_total",
			"Blocks that were dropped (the disk was slower than prompts are read) or damaged, failed operations, and times that the disk was too "+
				"slow to be waited for (late).", "kind"),
		loraBytes:  desc("shoal_node_lora_bytes", "Bytes of LoRA adapters in the memory of the node.", "node"),
		cardUsed:   desc("shoal_node_device_used_bytes", "Bytes of the graphics card's memory that the node uses.", "node"),
		cardMemory: desc("shoal_node_device_memory_bytes", "Memory of the graphics card that computes on the node.", "node"),
		loraCount:  desc("shoal_node_lora_adapters", "LoRA adapters in the memory of the node.", "node"),
		rowFiles: desc("shoal_node_kv_disk_used_bytes",
			"Bytes of files with rows of sequences that the node's memory has no room for.", "node"),
		rowFailures: desc("shoal_node_kv_disk_failures_total", "Failures of the disk of those files.", "node"),
		prefix:      desc("shoal_node_kv_prefix_bytes", "Bytes of the prefix cache on the node, which go when sequences need them.", "node"),
		epoch:       desc("shoal_epoch", "Number of the current placement."),
		recoveries:  desc("shoal_recoveries_total", "Serving placements that were withdrawn because a node was lost or a step failed."),
		nodes:       desc("shoal_nodes", "Nodes by state.", "state"),
		share:       desc("shoal_node_share", "Fraction of the weights on the node.", "node"),
		used:        desc("shoal_node_kv_used_bytes", "KV cache bytes in use on the node.", "node"),
		peak: desc("shoal_node_kv_peak_bytes",
			"The most KV cache bytes in use on the node since its start, with the prefix cache.", "node"),
		budget: desc("shoal_node_kv_budget_bytes", "KV cache budget of the node.", "node"),
		reserved: desc("shoal_node_kv_reserved_bytes",
			"KV cache bytes that the ledger has promised to running sequences on the node.", "node"),
		replicas: desc("shoal_node_kv_replica_bytes", "KV cache bytes on the node that copies of other nodes' caches take.", "node"),
		freed:    desc("shoal_node_kv_freed_bytes", "KV cache bytes that ends of prefill gave back on the node in this epoch.", "node"),
		fetched:  desc("shoal_node_fetched_bytes", "Bytes of the checkpoint that the node fetched from other processes.", "node"),
		late: desc("shoal_node_late_ratio",
			"Part of the steps' time in which the others wait for the node alone; a straggler above 0.5.", "node"),
		fences: desc("shoal_fences_total",
			"Nodes that were left out for a while, because they were slow or hung, or broke epochs.", "kind"),
		batch: desc("shoal_batch_sequences", "Sequences in the step in flight."),
		rate:  desc("shoal_tokens_per_second", "Prompt tokens read and tokens generated in the last second; 0 when idle."),
		clustering: desc("shoal_clustering_seconds_total",
			"Time of steps that went into clustering the keys of prompts (squeezed), of the slowest node of each."),
		exchangeWait:  desc("shoal_exchange_wait_seconds_total", "Time of steps in which the slowest node of each waited for the others."),
		microBatches:  desc("shoal_micro_batches", "Micro-batches of the newest step."),
		sequences:     desc("shoal_node_sequences", "Sequences whose cache the node owns.", "node"),
		subscriptions: desc("shoal_subscriptions", "Subscriptions of the bus in the coordinator's process."),
		nodeSubs:      desc("shoal_node_subscriptions", "Subscriptions of the bus in the node's process.", "node"),
	}
}

func (c *clusterCollector) Describe(ch chan<- *prometheus.Desc) {
	c.recovery.describe(ch)
	c.drafts.describe(ch)
	c.roles.describe(ch)
	c.saved.describe(ch)
	for _, d := range []*prometheus.Desc{c.running, c.waiting, c.usage, c.epoch, c.recoveries, c.nodes, c.share, c.used, c.peak,
		c.budget, c.sequences,
		c.reserved, c.freed, c.replicas, c.late, c.fences, c.fetched, c.clustering, c.exchangeWait, c.microBatches, c.rate, c.batch,
		c.subscriptions, c.nodeSubs, c.queries, c.hits, c.prefix, c.disk, c.restored, c.indexes, c.diskTrouble, c.rowFiles, c.rowFailures,
		c.loraBytes, c.loraCount, c.cardUsed, c.cardMemory} {
		ch <- d
	}
}

func (c *clusterCollector) Collect(ch chan<- prometheus.Metric) {
	st := c.engine.Cluster()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(c.epoch, float64(st.Epoch))
	gauge(c.batch, float64(st.BatchSequences))
	gauge(c.rate, st.TokensPerSecond)
	gauge(c.microBatches, float64(st.MicroBatches))
	gauge(c.subscriptions, float64(st.Subscriptions))
	ch <- prometheus.MustNewConstMetric(c.recoveries, prometheus.CounterValue, float64(st.Recoveries))
	ch <- prometheus.MustNewConstMetric(c.clustering, prometheus.CounterValue, st.Clustering)
	ch <- prometheus.MustNewConstMetric(c.exchangeWait, prometheus.CounterValue, st.ExchangeWait)
	var disk *wire.PrefixDiskState
	for _, m := range modelsOf(&st, c.model) {
		gauge(c.running, float64(m.Running), m.Model)
		gauge(c.waiting, float64(m.Waiting), m.Model)
		full := 0.0
		if m.KVBudgetBytes > 0 {
			full = float64(m.KVUsedBytes) / float64(m.KVBudgetBytes)
		}
		gauge(c.usage, full, m.Model)
		ch <- prometheus.MustNewConstMetric(c.recovery.preemptions, prometheus.CounterValue, float64(m.Preemptions), m.Model)
		if p := m.PrefixCache; p != nil {
			ch <- prometheus.MustNewConstMetric(c.queries, prometheus.CounterValue, float64(p.Queries), m.Model)
			ch <- prometheus.MustNewConstMetric(c.hits, prometheus.CounterValue, float64(p.Hits), m.Model)
			disk = disk.Add(p.Disk)
		}
		c.drafts.collect(m.Model, m.Drafts, ch)
	}
	c.drafts.collectTexts(&st, ch)
	if d := disk; d != nil {
		gauge(c.disk, float64(d.Bytes))
		ch <- prometheus.MustNewConstMetric(c.restored, prometheus.CounterValue, float64(d.Restored))
		for from, n := range map[string]uint64{"computed": d.IndexesComputed, "read": d.IndexesRead} {
			ch <- prometheus.MustNewConstMetric(c.indexes, prometheus.CounterValue, float64(n), from)
		}
		for kind, n := range map[string]uint64{"dropped": d.Dropped, "damaged": d.Damaged, "failed": d.Failed, "late": d.Late} {
			ch <- prometheus.MustNewConstMetric(c.diskTrouble, prometheus.CounterValue, float64(n), kind)
		}
	}
	for kind, n := range st.Fences {
		ch <- prometheus.MustNewConstMetric(c.fences, prometheus.CounterValue, float64(n), kind)
	}
	c.recovery.collect(st.Recovery, ch)
	c.roles.collect(st.Transfers, ch)
	c.saved.collect(st.SavedCaches, ch)
	states, seen := map[string]int{}, map[string]bool{}
	for _, n := range st.Nodes {
		states[n.State]++
		if seen[n.ID] {
			continue // the same series twice would fail the whole scrape
		}
		seen[n.ID] = true
		gauge(c.share, n.Share, n.ID)
		if n.Role != "" {
			gauge(c.roles.role, 1, n.ID, n.Role)
		}
		gauge(c.used, float64(n.KVUsedBytes), n.ID)
		gauge(c.peak, float64(n.KVPeakBytes), n.ID)
		if n.Device != "" {
			gauge(c.cardUsed, float64(n.DeviceUsed), n.ID)
			gauge(c.cardMemory, float64(n.DeviceMemory), n.ID)
		}
		gauge(c.loraBytes, float64(n.LoRABytes), n.ID)
		gauge(c.loraCount, float64(n.LoRAAdapters), n.ID)
		gauge(c.budget, float64(n.KVBudgetBytes), n.ID)
		gauge(c.reserved, float64(n.KVReserved), n.ID)
		gauge(c.replicas, float64(n.KVReplicas), n.ID)
		gauge(c.fetched, float64(n.FetchedBytes), n.ID)
		gauge(c.late, n.Late, n.ID)
		gauge(c.freed, float64(n.KVFreed), n.ID)
		gauge(c.prefix, float64(n.KVPrefix), n.ID)
		gauge(c.sequences, float64(n.Sequences), n.ID)
		if n.KVDiskBytes > 0 {
			gauge(c.rowFiles, float64(n.KVDiskUsedBytes), n.ID)
			ch <- prometheus.MustNewConstMetric(c.rowFailures, prometheus.CounterValue, float64(n.KVDiskFailures), n.ID)
		}
		gauge(c.nodeSubs, float64(n.Subscriptions), n.ID)
	}
	for state, n := range states {
		gauge(c.nodes, float64(n), state)
	}
}

// modelLabel is vLLM's label of the metrics of one model.
const modelLabel = "model_name"

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
