package api

import (
	"errors"
	"net/http"
)

func (s *Server) handleCluster(w http.ResponseWriter, _ *http.Request) {
	st := s.engine.Cluster()
	if st.Nodes == nil {
		st.Nodes = []NodeState{}
	}
	if st.Sequences == nil {
		st.Sequences = []SequenceState{}
	}
	if st.Model == "" {
		st.Model = s.cfg.Models[0]
	}
	w.Header().Set("Cache-Control", "no-store")
	s.writeJSON(w, http.StatusOK, st)
}

// handleHealth tells whether steps can finish. It needs no key, so it says
// little: the reason only where the engine chose words for it.
func (s *Server) handleHealth(w http.ResponseWriter, _ *http.Request) {
	s.status(w, "unhealthy", s.engine.Health())
}

// handleReady tells whether a request sent now would be accepted.
func (s *Server) handleReady(w http.ResponseWriter, _ *http.Request) {
	err := s.engine.Ready()
	if s.draining.Load() {
		err = ErrNotReady{Reason: "draining"}
	}
	s.status(w, "not_ready", err)
}

func (s *Server) status(w http.ResponseWriter, word string, err error) {
	w.Header().Set("Cache-Control", "no-store")
	if err == nil {
		s.writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
		return
	}
	var less ErrDegraded
	if errors.As(err, &less) {
		s.writeJSON(w, http.StatusOK, map[string]string{"status": "degraded", "reason": less.Reason})
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
	s.writeJSON(w, http.StatusServiceUnavailable, body)
}

func (s *Server) handleVersion(w http.ResponseWriter, _ *http.Request) {
	s.writeJSON(w, http.StatusOK, map[string]string{"version": s.cfg.Version})
}

// modelObject is one entry of /v1/models.
type modelObject struct {
	ID          string  `json:"id"`
	Object      string  `json:"object"`
	Created     int64   `json:"created"`
	OwnedBy     string  `json:"owned_by"`
	Root        string  `json:"root"`
	Parent      *string `json:"parent"`
	MaxModelLen int     `json:"max_model_len"`
}

func (s *Server) model(name string) modelObject {
	return modelObject{ID: name, Object: "model", Created: s.started.Unix(), OwnedBy: "shoal", Root: s.cfg.ModelRoot, MaxModelLen: s.cfg.MaxModelLen}
}

type modelList struct {
	Object string        `json:"object"`
	Data   []modelObject `json:"data"`
	Models *[]any        `json:"models,omitempty"` // Codex decodes it; it has its own list
}

func (s *Server) handleModels(w http.ResponseWriter, r *http.Request) {
	list := modelList{Object: "list"}
	if r.URL.Query().Has("client_version") {
		list.Models = &[]any{}
	}
	for _, m := range s.cfg.Models {
		list.Data = append(list.Data, s.model(m))
	}
	s.writeJSON(w, http.StatusOK, list)
}

func (s *Server) handleModel(w http.ResponseWriter, r *http.Request) {
	p := params{model: r.URL.Path[len("/v1/models/"):]}
	if e := s.checkModel(&p); e != nil {
		s.writeError(w, e, false)
		return
	}
	s.writeJSON(w, http.StatusOK, s.model(p.model))
}
