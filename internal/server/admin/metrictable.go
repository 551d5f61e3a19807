package admin

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/shoal-llm/shoal/client/wire"
)

// metric is one metric of a state T. Exactly one of value, values and times is set.
type metric[T any] struct {
	name, help string
	kind       prometheus.ValueType
	value      func(*T) float64
	label      string // of values, after the labels of the table
	values     func(x *T, add func(key string, v float64))
	times      func(*T) *wire.Durations // a histogram, in seconds
}

type number interface {
	~int | ~int64 | ~uint32 | ~uint64 | ~float64
}

func gauge[T any, V number](name, help string, value func(*T) V) metric[T] {
	return metric[T]{name: name, help: help, kind: prometheus.GaugeValue, value: func(x *T) float64 { return float64(value(x)) }}
}

func counter[T any, V number](name, help string, value func(*T) V) metric[T] {
	m := gauge(name, help, value)
	m.kind = prometheus.CounterValue
	return m
}

func gauges[T any, V number](name, help, label string, values func(*T) map[string]V) metric[T] {
	return metric[T]{name: name, help: help, kind: prometheus.GaugeValue, label: label, values: func(x *T, add func(key string, v float64)) {
		for key, v := range values(x) {
			add(key, float64(v))
		}
	}}
}

func counters[T any, V number](name, help, label string, values func(*T) map[string]V) metric[T] {
	m := gauges(name, help, label, values)
	m.kind = prometheus.CounterValue
	return m
}

func histogram[T any](name, help string, times func(*T) *wire.Durations) metric[T] {
	return metric[T]{name: name, help: help, times: times}
}

// table exports the metrics of a state T.
type table[T any] struct {
	metrics []metric[T]
	descs   []*prometheus.Desc
}

// newTable makes a table whose metrics have one label; "": none.
func newTable[T any](label string, metrics ...metric[T]) table[T] {
	t := table[T]{metrics: metrics}
	for _, m := range metrics {
		var labels []string
		for _, l := range [...]string{label, m.label} {
			if l != "" {
				labels = append(labels, l)
			}
		}
		t.descs = append(t.descs, prometheus.NewDesc(m.name, m.help, labels, nil))
	}
	return t
}

func (t table[T]) describe(ch chan<- *prometheus.Desc) {
	for _, d := range t.descs {
		ch <- d
	}
}

// collect exports a state; nil has no metrics.
func (t table[T]) collect(ch chan<- prometheus.Metric, x *T, labels ...string) {
	if x == nil {
		return
	}
	for i, m := range t.metrics {
		switch d := t.descs[i]; {
		case m.value != nil:
			ch <- prometheus.MustNewConstMetric(d, m.kind, m.value(x), labels...)
		case m.times != nil:
			h := m.times(x)
			ch <- prometheus.MustNewConstHistogram(d, h.Count, h.Seconds, h.Buckets, labels...)
		default:
			m.values(x, func(key string, v float64) {
				ch <- prometheus.MustNewConstMetric(d, m.kind, v, append(slices.Clip(labels), key)...)
			})
		}
	}
}
