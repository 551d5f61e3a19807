package admin

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/shoal-llm/shoal/client/wire"
)

// savedCollector reads SavedCachesState at each scrape.
type savedCollector struct {
	caches, bytes, written, read, failures *prometheus.Desc
}

func newSavedCollector() savedCollector {
	desc := func(name, help string) *prometheus.Desc { return prometheus.NewDesc(name, help, nil, nil) }
	return savedCollector{
		caches:   desc("shoal_saved_caches", "Caches of idle sessions in files of all nodes."),
		bytes:    desc("shoal_saved_cache_bytes", "Bytes of caches of idle sessions in files of all nodes."),
		written:  desc("shoal_saved_caches_written_total", "Caches of idle sessions that were written to files."),
		read:     desc("shoal_saved_caches_read_total", "Caches that were read from files for the next turn."),
		failures: desc("shoal_saved_caches_failures_total", "Caches that could not be read from files. Their turns computed all tokens."),
	}
}

func (c savedCollector) describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.caches, c.bytes, c.written, c.read, c.failures} {
		ch <- d
	}
}

func (c savedCollector) collect(x *wire.SavedCachesState, ch chan<- prometheus.Metric) {
	if x == nil {
		return
	}
	ch <- prometheus.MustNewConstMetric(c.caches, prometheus.GaugeValue, float64(x.Caches))
	ch <- prometheus.MustNewConstMetric(c.bytes, prometheus.GaugeValue, float64(x.Bytes))
	ch <- prometheus.MustNewConstMetric(c.written, prometheus.CounterValue, float64(x.Written))
	ch <- prometheus.MustNewConstMetric(c.read, prometheus.CounterValue, float64(x.Read))
	ch <- prometheus.MustNewConstMetric(c.failures, prometheus.CounterValue, float64(x.Failed))
}
