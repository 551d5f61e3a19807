package api

import "net/http"

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

func (s *openAI) model(name string) modelObject {
	return modelObject{ID: name, Object: "model", Created: s.started.Unix(), OwnedBy: "shoal", Root: s.root, MaxModelLen: s.cfg.MaxModelLen}
}

type modelList struct {
	Object string        `json:"object"`
	Data   []modelObject `json:"data"`
	Models *[]any        `json:"models,omitempty"` // Codex decodes it; it has its own list
}

func (s *openAI) handleModels(w http.ResponseWriter, r *http.Request) {
	list := modelList{Object: "list"}
	if r.URL.Query().Has("client_version") {
		list.Models = &[]any{}
	}
	for _, m := range s.cfg.Models {
		list.Data = append(list.Data, s.model(m))
	}
	s.http.writeJSON(w, http.StatusOK, list)
}

func (s *openAI) handleModel(w http.ResponseWriter, r *http.Request) {
	p := params{model: r.URL.Path[len("/v1/models/"):]}
	if e := s.checkModel(&p); e != nil {
		s.http.writeError(w, e, false)
		return
	}
	s.http.writeJSON(w, http.StatusOK, s.model(p.model))
}
