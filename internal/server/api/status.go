package api

import (
	"errors"
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
)

// admin answers what operators and monitors ask: state, health, metrics, the page, the description.
type admin struct {
	http     *HTTP
	engine   Engine
	model    string // the first name
	version  string
	log      *slog.Logger
	requests *prometheus.CounterVec
	metrics  http.Handler
}

func newAdmin(e Engine, model, version string, log *slog.Logger, registry *prometheus.Registry) *admin {
	s := &admin{engine: e, model: model, version: version, log: log}
	s.registerMetrics(registry, model)
	return s
}

func (s *admin) addRoutes(h *HTTP) error {
	s.http = h
	const get = http.MethodGet
	return h.HandleAll([]Route{
		{Method: get, Path: "/health", Public: true, Brief: true, Handler: s.handleHealth, Docs: []Doc{{About: "whether requests are served"}}},
		{Method: get, Path: "/ready", Public: true, Brief: true, Handler: s.handleReady, Docs: []Doc{{About: "whether one that is sent now would be taken"}}},
		{Method: get, Path: "/{$}", BasicAuth: true, Handler: s.handleRoot, Docs: []Doc{{About: "the page, for browsers; else that the server runs"}}},
		{Method: get, Path: "/web/*", Handler: s.handlePage, Docs: []Doc{{About: "a file of the page"}}},
		{Method: get, Path: "/openapi.json", Handler: s.handleOpenAPI, Docs: []Doc{{About: "this"}}},
		{Method: get, Path: "/version", Brief: true, Handler: s.handleVersion, Docs: []Doc{{About: "of the server"}}},
		{Method: get, Path: "/metrics", Brief: true, Handler: s.handleMetrics, Docs: []Doc{{About: "Prometheus"}}},
		{Method: get, Path: "/v1/cluster", Brief: true, Handler: s.handleCluster, Docs: []Doc{{About: "nodes, epoch, queue", Answer: ClusterState{}}}},
	})
}

func (s *admin) handleCluster(w http.ResponseWriter, _ *http.Request) {
	st := s.engine.Cluster()
	if st.Nodes == nil {
		st.Nodes = []NodeState{}
	}
	if st.Sequences == nil {
		st.Sequences = []SequenceState{}
	}
	if st.Model == "" {
		st.Model = s.model
	}
	w.Header().Set("Cache-Control", "no-store")
	s.http.writeJSON(w, http.StatusOK, st)
}

// handleHealth tells whether steps can finish. It needs no key, so it says
// little: the reason only where the engine chose words for it.
func (s *admin) handleHealth(w http.ResponseWriter, _ *http.Request) {
	s.status(w, "unhealthy", s.engine.Health())
}

// handleReady tells whether a request sent now would be accepted.
func (s *admin) handleReady(w http.ResponseWriter, _ *http.Request) {
	err := s.engine.Ready()
	if s.http.Draining() {
		err = ErrNotReady{Reason: "draining"}
	}
	s.status(w, "not_ready", err)
}

func (s *admin) status(w http.ResponseWriter, word string, err error) {
	w.Header().Set("Cache-Control", "no-store")
	if err == nil {
		s.http.writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
		return
	}
	var less ErrDegraded
	if errors.As(err, &less) {
		s.http.writeJSON(w, http.StatusOK, map[string]string{"status": "degraded", "reason": less.Reason})
		return
	}
	body := map[string]string{"status": word}
	var not ErrNotReady
	if errors.As(err, &not) {
		body["reason"] = not.Reason
	} else {
		s.log.Warn("api: "+word, "err", err)
	}
	w.Header().Set("Retry-After", "1")
	s.http.writeJSON(w, http.StatusServiceUnavailable, body)
}

func (s *admin) handleVersion(w http.ResponseWriter, _ *http.Request) {
	s.http.writeJSON(w, http.StatusOK, map[string]string{"version": s.version})
}
