package generate

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/shoal-llm/shoal/internal/server/engine"
)

// adapterMetrics count the sequences and tokens of requests with LoRA adapters, by name. Operators
// choose the names, and may load a bounded number.
type adapterMetrics struct{ sequences, prompt, generated *prometheus.CounterVec }

func newAdapterMetrics(model prometheus.Labels, registry prometheus.Registerer) adapterMetrics {
	counter := func(name, help string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: model}, []string{"adapter"})
		registry.MustRegister(c)
		return c
	}
	return adapterMetrics{
		sequences: counter("shoal_lora_sequences_total", "Sequences with a LoRA adapter that ended, by adapter."),
		prompt:    counter("shoal_lora_prompt_tokens_total", "Prompt tokens of requests and jobs with a LoRA adapter, by adapter."),
		generated: counter("shoal_lora_generation_tokens_total", "Tokens generated with a LoRA adapter, by adapter."),
	}
}

func (m *adapterMetrics) count(a *engine.Adapter, t *tally) {
	if a != nil {
		m.sequences.WithLabelValues(a.Name).Add(float64(len(t.ended)))
		m.prompt.WithLabelValues(a.Name).Add(float64(t.prompt))
		m.generated.WithLabelValues(a.Name).Add(float64(t.tokens))
	}
}
