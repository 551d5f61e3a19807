package admin

import (
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// registerMetrics adds the metrics of the process, of HTTP and of the cluster.
func (s *API) registerMetrics(registry *prometheus.Registry, model string) {
	s.requests = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "shoal_http_requests_total",
		Help: "HTTP requests by route and status (499: the client left)."}, []string{"route", "code"})
	registry.MustRegister(s.requests, &clusterCollector{s.engine, model},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	s.metrics = promhttp.HandlerFor(registry, promhttp.HandlerOpts{Registry: registry})
}

func (s *API) handleMetrics(w http.ResponseWriter, r *http.Request) {
	s.http.Deadline(w)
	s.metrics.ServeHTTP(w, r)
}

// Observe counts an answer.
func (s *API) Observe(route string, status int) {
	s.requests.WithLabelValues(route, strconv.Itoa(status)).Inc()
}
