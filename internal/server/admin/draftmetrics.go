package admin

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/shoal-llm/shoal/client/wire"
)

// draftsCollector exports the results of speculation under vLLM's names.
type draftsCollector struct{ drafts, tokens, accepted, at, texts *prometheus.Desc }

func newDraftsCollector() draftsCollector {
	return draftsCollector{
		drafts: prometheus.NewDesc("vllm:spec_decode_num_drafts_total", "Decode rows with drafts.", []string{modelLabel}, nil),
		tokens: prometheus.NewDesc("vllm:spec_decode_num_draft_tokens_total", "Tokens that were drafted and tried.", []string{modelLabel}, nil),
		accepted: prometheus.NewDesc("vllm:spec_decode_num_accepted_tokens_total",
			"Of these, tokens that were right.", []string{modelLabel}, nil),
		at: prometheus.NewDesc("vllm:spec_decode_num_accepted_tokens_per_pos_total",
			"Tokens that were right as the first, second, ... draft of their row.", []string{modelLabel, "position"}, nil),
		texts: prometheus.NewDesc("shoal_speculate_bytes", "Memory of the indexes that drafts are made from.", []string{"of"}, nil),
	}
}

func (c *draftsCollector) describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.drafts, c.tokens, c.accepted, c.at, c.texts} {
		ch <- d
	}
}

// collect exports the results of one model.
func (c *draftsCollector) collect(model string, s *wire.DraftsState, ch chan<- prometheus.Metric) {
	if s == nil {
		return
	}
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), append([]string{model}, labels...)...)
	}
	counter(c.drafts, s.Steps)
	counter(c.tokens, s.Drafted)
	counter(c.accepted, s.Accepted)
	for i, n := range s.At {
		counter(c.at, n, strconv.Itoa(i))
	}
}

// collectTexts exports the memory of all models.
func (c *draftsCollector) collectTexts(st *wire.ClusterState, ch chan<- prometheus.Metric) {
	var texts, recent int64
	some := false
	for _, m := range modelsOf(st, "") {
		if d := m.Drafts; d != nil {
			texts, recent, some = texts+d.TextBytes, recent+d.Recent, true
		}
	}
	if some {
		ch <- prometheus.MustNewConstMetric(c.texts, prometheus.GaugeValue, float64(texts), "sequences")
		ch <- prometheus.MustNewConstMetric(c.texts, prometheus.GaugeValue, float64(recent), "recent outputs")
	}
}
