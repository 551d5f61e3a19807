package generate

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/shoal-llm/shoal/internal/server/engine"
)

// metrics carries vLLM's names, so that its dashboards and routers work, and
// Shoal's own. All intervals are of this process's monotonic clock, or the
// engine's own (Timings).
type metrics struct {
	prompt, generated              prometheus.Counter
	promptTokens, outputTokens     prometheus.Histogram // of each sequence
	finish                         *prometheus.CounterVec
	ttft, itl, e2e                 prometheus.Histogram
	queueing, prefilling, decoding prometheus.Histogram
	adapted                        adapterMetrics
}

var (
	ttftBuckets = []float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
	itlBuckets  = []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3,
		0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	e2eBuckets = []float64{0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
)

// tokenBuckets returns the buckets that vLLM uses: 1, 2, 5, 10, 20, 50 ... up to the context.
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

func newMetrics(model string, context int, registry prometheus.Registerer) *metrics {
	m := &metrics{}
	label := prometheus.Labels{"model_name": model}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: label})
		registry.MustRegister(c)
		return c
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, ConstLabels: label, Buckets: buckets})
		registry.MustRegister(h)
		return h
	}
	m.prompt = counter("vllm:prompt_tokens_total", "Prompt tokens of requests and jobs: each prompt once, as in usage.")
	m.generated = counter("vllm:generation_tokens_total", "Tokens generated for requests and jobs, as in usage.")
	m.ttft = histogram("vllm:time_to_first_token_seconds", "Request accepted, or attempt of a job started, to first token.", ttftBuckets)
	m.itl = histogram("vllm:inter_token_latency_seconds",
		"Between two tokens of a sequence; the tokens of one step share its time equally.", itlBuckets)
	m.e2e = histogram("vllm:e2e_request_latency_seconds",
		"Request accepted, or attempt of a job started, to last token, of sequences that finished.", e2eBuckets)
	m.queueing = histogram("vllm:request_queue_time_seconds", "Accepted to first step.", e2eBuckets)
	m.prefilling = histogram("vllm:request_prefill_time_seconds", "First step to first token.", e2eBuckets)
	m.decoding = histogram("vllm:request_decode_time_seconds", "First to last token.", e2eBuckets)
	m.promptTokens = histogram("vllm:request_prompt_tokens", "Prompt tokens of a sequence that finished.", tokenBuckets(context))
	m.outputTokens = histogram("vllm:request_generation_tokens", "Tokens generated of a sequence that finished.", tokenBuckets(context))
	m.finish = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "vllm:request_success_total", Help: "Sequences that ended, by reason.",
		ConstLabels: label}, []string{"finished_reason"})
	for _, reason := range []string{engine.FinishStop, engine.FinishLength, "abort", "error"} {
		m.finish.WithLabelValues(reason)
	}
	registry.MustRegister(m.finish)
	m.adapted = newAdapterMetrics(label, registry)
	return m
}
