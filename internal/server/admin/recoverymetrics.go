package admin

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/shoal-llm/shoal/client/wire"
)

// recoveryCollector reads RecoveryState at each scrape.
type recoveryCollector struct {
	tokens, caches, bytes, changes, preemptions, detection, stall *prometheus.Desc
}

func newRecoveryCollector() recoveryCollector {
	desc := func(name, help string, vars ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, vars, nil)
	}
	return recoveryCollector{
		preemptions: desc("vllm:num_preemptions_total", "Times that a running sequence gave its place or memory to others.", modelLabel),
		tokens: desc("shoal_rebuilt_tokens_total",
			"Tokens that were computed once more for sequences that were cut off: recomputed by prefill, replayed by decode.", "how"),
		caches:  desc("shoal_restored_caches_total", "Caches that went on in a new epoch: the owner's own, or a replica.", "from"),
		bytes:   desc("shoal_replica_bytes_total", "Bytes of cache rows that were sent to replicas."),
		changes: desc("shoal_placement_changes_total", "Serving placements that were withdrawn, by reason.", "reason"),
		detection: desc("shoal_detection_seconds",
			"From the start of the step in flight, or just failed, to the end of its placement, when a fault ended it."),
		stall: desc("shoal_stall_seconds", "From the end of a placement to the next that serves."),
	}
}

func (c recoveryCollector) describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.tokens, c.caches, c.bytes, c.changes, c.preemptions, c.detection, c.stall} {
		ch <- d
	}
}

func (c recoveryCollector) collect(r *wire.RecoveryState, ch chan<- prometheus.Metric) {
	if r == nil {
		return
	}
	counter := func(d *prometheus.Desc, n uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	counter(c.tokens, r.RecomputedTokens, "recomputed")
	counter(c.tokens, r.ReplayedTokens, "replayed")
	counter(c.caches, r.RestoredCaches, "owner")
	counter(c.caches, r.RestoredReplicas, "replica")
	counter(c.bytes, r.ReplicaBytes)
	for reason, n := range r.Placements {
		counter(c.changes, n, reason)
	}
	ch <- prometheus.MustNewConstHistogram(c.detection, r.Detection.Count, r.Detection.Seconds, r.Detection.Buckets)
	ch <- prometheus.MustNewConstHistogram(c.stall, r.Stall.Count, r.Stall.Seconds, r.Stall.Buckets)
}
