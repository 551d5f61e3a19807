package api

import (
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// metrics carries vLLM's names, so that its dashboards and routers work, and
// Shoal's own. All intervals are of this process's monotonic clock, or the
// engine's own (Timings).
type metrics struct {
	registry *prometheus.Registry
	handler  http.Handler

	prompt, generated              prometheus.Counter
	promptTokens, outputTokens     prometheus.Histogram // of each sequence
	finish                         *prometheus.CounterVec
	ttft, itl, e2e                 prometheus.Histogram
	queueing, prefilling, decoding prometheus.Histogram
	requests                       *prometheus.CounterVec
}

var (
	ttftBuckets = []float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
	itlBuckets  = []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	e2eBuckets  = []float64{0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
)

// tokenBuckets are vLLM's: 1, 2, 5, 10, 20, 50 ... up to the context.
func tokenBuckets(most int) (out []float64) {
	for decade := 1; ; decade *= 10 {
		for _, m := range [...]int{1, 2, 5} {
			if m*decade > most {
				return out
			}
			out = append(out, float64(m*decade))
		}
	}
}

func newMetrics(model string, context int, e Engine) *metrics {
	m := &metrics{registry: prometheus.NewRegistry()}
	label := prometheus.Labels{"model_name": model}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: label})
		m.registry.MustRegister(c)
		return c
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, ConstLabels: label, Buckets: buckets})
		m.registry.MustRegister(h)
		return h
	}
	m.prompt = counter("vllm:prompt_tokens_total", "Prompt tokens of requests and jobs: each prompt once, as in usage.")
	m.generated = counter("vllm:generation_tokens_total", "Tokens generated for requests and jobs, as in usage.")
	m.ttft = histogram("vllm:time_to_first_token_seconds", "Request accepted, or attempt of a job started, to first token.", ttftBuckets)
	m.itl = histogram("vllm:inter_token_latency_seconds", "Between two tokens of a sequence; the tokens of one step share its time equally.", itlBuckets)
	m.e2e = histogram("vllm:e2e_request_latency_seconds", "Request accepted, or attempt of a job started, to last token, of sequences that finished.", e2eBuckets)
	m.queueing = histogram("vllm:request_queue_time_seconds", "Accepted to first step.", e2eBuckets)
	m.prefilling = histogram("vllm:request_prefill_time_seconds", "First step to first token.", e2eBuckets)
	m.decoding = histogram("vllm:request_decode_time_seconds", "First to last token.", e2eBuckets)
	m.promptTokens = histogram("vllm:request_prompt_tokens", "Prompt tokens of a sequence that finished.", tokenBuckets(context))
	m.outputTokens = histogram("vllm:request_generation_tokens", "Tokens generated of a sequence that finished.", tokenBuckets(context))
	m.finish = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "vllm:request_success_total", Help: "Sequences that ended, by reason.", ConstLabels: label}, []string{"finished_reason"})
	for _, reason := range []string{FinishStop, FinishLength, "abort", "error"} {
		m.finish.WithLabelValues(reason)
	}
	m.requests = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "shoal_http_requests_total", Help: "HTTP requests by route and status (499: the client left)."}, []string{"route", "code"})
	m.registry.MustRegister(m.finish, m.requests, newClusterCollector(e, label),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.handler = promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Registry: m.registry})
	return m
}

func (s *Server) handleMetrics(w http.ResponseWriter, r *http.Request) {
	s.deadline(w)
	s.metrics.handler.ServeHTTP(w, r)
}

func (m *metrics) http(route string, code int) {
	m.requests.WithLabelValues(route, strconv.Itoa(code)).Inc()
}

// clusterCollector reads the engine's state at each scrape.
type clusterCollector struct {
	engine                         Engine
	running, waiting, usage, epoch *prometheus.Desc
	recoveries, nodes, share       *prometheus.Desc
	used, budget, sequences        *prometheus.Desc
	subscriptions, nodeSubs        *prometheus.Desc
	reserved, freed, batch         *prometheus.Desc
	replicas, late, fences         *prometheus.Desc
	fetched, clustering, rate      *prometheus.Desc
	queries, hits, prefix          *prometheus.Desc
	disk, restored, diskTrouble    *prometheus.Desc
	rowFiles, rowFailures          *prometheus.Desc
	recovery                       recoveryCollector
	drafts                         draftsCollector
}

func newClusterCollector(e Engine, label prometheus.Labels) *clusterCollector {
	desc := func(name, help string, vars ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, vars, nil)
	}
	return &clusterCollector{
		engine:        e,
		recovery:      newRecoveryCollector(label),
		drafts:        newDraftsCollector(label),
		running:       prometheus.NewDesc("vllm:num_requests_running", "Sequences in the running batch.", nil, label),
		waiting:       prometheus.NewDesc("vllm:num_requests_waiting", "Sequences that wait for admission.", nil, label),
		usage:         prometheus.NewDesc("vllm:kv_cache_usage_perc", "KV cache bytes in use, 1 is the whole budget.", nil, label),
		queries:       prometheus.NewDesc("vllm:prefix_cache_queries_total", "Prompt tokens that were looked up in the prefix cache.", nil, label),
		hits:          prometheus.NewDesc("vllm:prefix_cache_hits_total", "Prompt tokens that were found there.", nil, label),
		disk:          desc("shoal_prefix_disk_bytes", "Bytes of the prefix cache in files, of all nodes."),
		restored:      desc("shoal_prefix_disk_restored_tokens_total", "Prompt tokens that came from files."),
		diskTrouble:   desc("shoal_prefix_disk_trouble_total", "Blocks that were dropped (the disk was slower than prompts are read) or damaged, failed operations, and times that the disk was too slow to be waited for (late).", "kind"),
		rowFiles:      desc("shoal_node_kv_disk_used_bytes", "Bytes of files with rows of sequences that the node's memory has no room for.", "node"),
		rowFailures:   desc("shoal_node_kv_disk_failures_total", "Failures of the disk of those files.", "node"),
		prefix:        desc("shoal_node_kv_prefix_bytes", "Bytes of the prefix cache on the node, which go when sequences need them.", "node"),
		epoch:         desc("shoal_epoch", "Number of the current placement."),
		recoveries:    desc("shoal_recoveries_total", "Serving placements that were withdrawn because a node was lost or a step failed."),
		nodes:         desc("shoal_nodes", "Nodes by state.", "state"),
		share:         desc("shoal_node_share", "Fraction of the weights on the node.", "node"),
		used:          desc("shoal_node_kv_used_bytes", "KV cache bytes in use on the node.", "node"),
		budget:        desc("shoal_node_kv_budget_bytes", "KV cache budget of the node.", "node"),
		reserved:      desc("shoal_node_kv_reserved_bytes", "KV cache bytes that the ledger has promised to running sequences on the node.", "node"),
		replicas:      desc("shoal_node_kv_replica_bytes", "KV cache bytes on the node that copies of other nodes' caches take.", "node"),
		freed:         desc("shoal_node_kv_freed_bytes", "KV cache bytes that ends of prefill gave back on the node in this epoch.", "node"),
		fetched:       desc("shoal_node_fetched_bytes", "Bytes of the checkpoint that the node fetched from other processes.", "node"),
		late:          desc("shoal_node_late_ratio", "Part of the steps' time in which the others wait for the node alone; a straggler above 0.5.", "node"),
		fences:        desc("shoal_fences_total", "Nodes that were left out for a while, because they were slow or hung, or broke epochs.", "kind"),
		batch:         desc("shoal_batch_sequences", "Sequences in the step in flight."),
		rate:          desc("shoal_tokens_per_second", "Prompt tokens read and tokens generated in the last second; 0 when idle."),
		clustering:    desc("shoal_clustering_seconds_total", "Time of steps that went into clustering the keys of prompts (squeezed), of the slowest node of each."),
		sequences:     desc("shoal_node_sequences", "Sequences whose cache the node owns.", "node"),
		subscriptions: desc("shoal_subscriptions", "Subscriptions of the bus in the coordinator's process."),
		nodeSubs:      desc("shoal_node_subscriptions", "Subscriptions of the bus in the node's process.", "node"),
	}
}

func (c *clusterCollector) Describe(ch chan<- *prometheus.Desc) {
	c.recovery.describe(ch)
	c.drafts.describe(ch)
	for _, d := range []*prometheus.Desc{c.running, c.waiting, c.usage, c.epoch, c.recoveries, c.nodes, c.share, c.used, c.budget, c.sequences, c.reserved, c.freed, c.replicas, c.late, c.fences, c.fetched, c.clustering, c.rate, c.batch, c.subscriptions, c.nodeSubs, c.queries, c.hits, c.prefix, c.disk, c.restored, c.diskTrouble, c.rowFiles, c.rowFailures} {
		ch <- d
	}
}

func (c *clusterCollector) Collect(ch chan<- prometheus.Metric) {
	st := c.engine.Cluster()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(c.running, float64(st.Running))
	gauge(c.waiting, float64(st.Waiting))
	gauge(c.epoch, float64(st.Epoch))
	gauge(c.batch, float64(st.BatchSequences))
	gauge(c.rate, st.TokensPerSecond)
	gauge(c.subscriptions, float64(st.Subscriptions))
	ch <- prometheus.MustNewConstMetric(c.recoveries, prometheus.CounterValue, float64(st.Recoveries))
	ch <- prometheus.MustNewConstMetric(c.clustering, prometheus.CounterValue, st.Clustering)
	if p := st.PrefixCache; p != nil {
		ch <- prometheus.MustNewConstMetric(c.queries, prometheus.CounterValue, float64(p.Queries))
		ch <- prometheus.MustNewConstMetric(c.hits, prometheus.CounterValue, float64(p.Hits))
		if d := p.Disk; d != nil {
			gauge(c.disk, float64(d.Bytes))
			ch <- prometheus.MustNewConstMetric(c.restored, prometheus.CounterValue, float64(d.Restored))
			for kind, n := range map[string]uint64{"dropped": d.Dropped, "damaged": d.Damaged, "failed": d.Failed, "late": d.Late} {
				ch <- prometheus.MustNewConstMetric(c.diskTrouble, prometheus.CounterValue, float64(n), kind)
			}
		}
	}
	for kind, n := range st.Fences {
		ch <- prometheus.MustNewConstMetric(c.fences, prometheus.CounterValue, float64(n), kind)
	}
	c.recovery.collect(st.Recovery, ch)
	c.drafts.collect(st.Drafts, ch)
	var used, budget int64
	states, seen := map[string]int{}, map[string]bool{}
	for _, n := range st.Nodes {
		used, budget = used+n.KVUsedBytes, budget+n.KVBudgetBytes
		states[n.State]++
		if seen[n.ID] {
			continue // the same series twice would fail the whole scrape
		}
		seen[n.ID] = true
		gauge(c.share, n.Share, n.ID)
		gauge(c.used, float64(n.KVUsedBytes), n.ID)
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
	full := 0.0
	if budget > 0 {
		full = float64(used) / float64(budget)
	}
	gauge(c.usage, full)
}
