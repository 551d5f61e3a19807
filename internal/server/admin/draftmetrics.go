package admin

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/shoal-llm/shoal/client/wire"
)

// draftsCollector exports the results of speculation under vLLM's names.
type draftsCollector struct{ drafts, tokens, accepted, at, texts *prometheus.Desc }

func newDraftsCollector(label prometheus.Labels) draftsCollector {
	return draftsCollector{
		drafts:   prometheus.NewDesc("vllm:spec_decode_num_drafts_total", "Decode rows with drafts.", nil, label),
		tokens:   prometheus.NewDesc("vllm:spec_decode_num_draft_tokens_total", "Tokens that were drafted and tried.", nil, label),
		accepted: prometheus.NewDesc("vllm:spec_decode_num_accepted_tokens_total", "Of these, tokens that were right.", nil, label),
		at:       prometheus.NewDesc("vllm:spec_decode_num_accepted_tokens_per_pos_total", "Tokens that were right as the first, second, ... draft of their row.", []string{"position"}, label),
		texts:    prometheus.NewDesc("shoal_speculate_bytes", "Memory of the indexes that drafts are made from.", []string{"of"}, nil),
	}
}

func (c *draftsCollector) describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.drafts, c.tokens, c.accepted, c.at, c.texts} {
		ch <- d
	}
}

func (c *draftsCollector) collect(s *wire.DraftsState, ch chan<- prometheus.Metric) {
	if s == nil {
		return
	}
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	counter(c.drafts, s.Steps)
	counter(c.tokens, s.Drafted)
	counter(c.accepted, s.Accepted)
	for i, n := range s.At {
		counter(c.at, n, strconv.Itoa(i))
	}
	ch <- prometheus.MustNewConstMetric(c.texts, prometheus.GaugeValue, float64(s.TextBytes), "sequences")
	ch <- prometheus.MustNewConstMetric(c.texts, prometheus.GaugeValue, float64(s.Recent), "recent outputs")
}
