package admin

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/shoal-llm/shoal/client/wire"
)

// rolesCollector reads the roles of nodes and TransfersState at each scrape.
type rolesCollector struct {
	role, caches, bytes, seconds, failures *prometheus.Desc
}

func newRolesCollector() rolesCollector {
	desc := func(name, help string, vars ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, vars, nil)
	}
	return rolesCollector{
		role:    desc("shoal_node_role", "1 for the role in which the node works: prefill, decode or both.", "node", "role"),
		caches:  desc("shoal_transfers_total", "Caches of prompts that moved from prefill nodes to decode nodes."),
		bytes:   desc("shoal_transfer_bytes_total", "Bytes of these caches."),
		seconds: desc("shoal_transfer_seconds_total", "Sum of the times that these caches took to move."),
		failures: desc("shoal_transfer_failures_total",
			"Prompts that prefill nodes did not read, or whose caches did not arrive. They are read again."),
	}
}

func (c rolesCollector) describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.role, c.caches, c.bytes, c.seconds, c.failures} {
		ch <- d
	}
}

func (c rolesCollector) collect(t *wire.TransfersState, ch chan<- prometheus.Metric) {
	if t == nil {
		return
	}
	ch <- prometheus.MustNewConstMetric(c.caches, prometheus.CounterValue, float64(t.Caches))
	ch <- prometheus.MustNewConstMetric(c.bytes, prometheus.CounterValue, float64(t.Bytes))
	ch <- prometheus.MustNewConstMetric(c.seconds, prometheus.CounterValue, t.Seconds)
	ch <- prometheus.MustNewConstMetric(c.failures, prometheus.CounterValue, float64(t.Failed))
}
