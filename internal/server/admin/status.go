package admin

import (
	"errors"
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
)

// API has the routes for operators and monitors: state, health, metrics, the page, the description.
type API struct {
	http     *httpserver.Server
	engine   engine.Engine
	model    string // the first name
	version  string
	log      *slog.Logger
	requests *prometheus.CounterVec
	metrics  http.Handler
}

func New(e engine.Engine, model, version string, log *slog.Logger, registry *prometheus.Registry) *API {
	s := &API{engine: e, model: model, version: version, log: log}
	s.registerMetrics(registry, model)
	return s
}

func (s *API) AddRoutes(h *httpserver.Server) error {
	s.http = h
	const get = http.MethodGet
	return h.HandleAll([]httpserver.Route{
		{Method: get, Path: "/health", Public: true, Brief: true, Handler: s.handleHealth,
			Docs: []httpserver.Doc{{About: "whether requests are served"}}},
		{Method: get, Path: "/ready", Public: true, Brief: true, Handler: s.handleReady,
			Docs: []httpserver.Doc{{About: "200 if a request sent now would be accepted"}}},
		{Method: get, Path: "/{$}", BasicAuth: true, Handler: s.handleRoot,
			Docs: []httpserver.Doc{{About: "the web page for browsers; for other clients, a text that the server runs"}}},
		{Method: get, Path: "/web/*", Handler: s.handlePage, Docs: []httpserver.Doc{{About: "a file of the web page"}}},
		{Method: get, Path: "/openapi.json", Handler: s.handleOpenAPI, Docs: []httpserver.Doc{{About: "OpenAPI description of all routes"}}},
		{Method: get, Path: "/version", Brief: true, Handler: s.handleVersion, Docs: []httpserver.Doc{{About: "version of the server"}}},
		{Method: get, Path: "/metrics", Brief: true, Handler: s.handleMetrics, Docs: []httpserver.Doc{{About: "Prometheus"}}},
		{Method: get, Path: "/v1/cluster", Brief: true, Handler: s.handleCluster,
			Docs: []httpserver.Doc{{About: "nodes, epoch, queue", Answer: wire.ClusterState{}}}},
	})
}

func (s *API) handleCluster(w http.ResponseWriter, _ *http.Request) {
	st := s.engine.Cluster()
	if st.Nodes == nil {
		st.Nodes = []wire.NodeState{}
	}
	if st.Sequences == nil {
		st.Sequences = []wire.SequenceState{}
	}
	if st.Model == "" {
		st.Model = s.model
	}
	w.Header().Set("Cache-Control", "no-store")
	s.http.WriteJSON(w, http.StatusOK, st)
}

// handleHealth reports whether steps can finish. It needs no key, so it gives a reason only if the
// engine provides one.
func (s *API) handleHealth(w http.ResponseWriter, _ *http.Request) {
	s.status(w, "unhealthy", s.engine.Health())
}

// handleReady reports whether a request sent now would be accepted.
func (s *API) handleReady(w http.ResponseWriter, _ *http.Request) {
	err := s.engine.Ready()
	if s.http.Draining() {
		err = apierr.ErrNotReady{Reason: "draining"}
	}
	s.status(w, "not_ready", err)
}

func (s *API) status(w http.ResponseWriter, word string, err error) {
	w.Header().Set("Cache-Control", "no-store")
	if err == nil {
		s.http.WriteJSON(w, http.StatusOK, map[string]string{"status": "ok"})
		return
	}
	var less apierr.ErrDegraded
	if errors.As(err, &less) {
		s.http.WriteJSON(w, http.StatusOK, map[string]string{"status": "degraded", "reason": less.Reason})
		return
	}
	body := map[string]string{"status": word}
	var not apierr.ErrNotReady
	if errors.As(err, &not) {
		body["reason"] = not.Reason
	} else {
		s.log.Warn("admin: "+word, "error", err)
	}
	w.Header().Set("Retry-After", "1")
	s.http.WriteJSON(w, http.StatusServiceUnavailable, body)
}

func (s *API) handleVersion(w http.ResponseWriter, _ *http.Request) {
	s.http.WriteJSON(w, http.StatusOK, map[string]string{"version": s.version})
}
