package openai

import (
	"net/http"

	"github.com/shoal-llm/shoal/internal/server/generate"
)

// modelObject is one entry of /v1/models.
type modelObject struct {
	ID           string   `json:"id"`
	Object       string   `json:"object"`
	Created      int64    `json:"created"`
	OwnedBy      string   `json:"owned_by"`
	Root         string   `json:"root"`
	Parent       *string  `json:"parent"`
	MaxModelLen  int      `json:"max_model_len"`
	Capabilities []string `json:"capabilities"` // completion, embedding, rerank
}

func (s *API) model(name string) modelObject {
	if a, ok := s.AdapterNamed(name); ok {
		return modelObject{ID: name, Object: "model", Created: a.Created.Unix(), OwnedBy: "shoal", Root: a.Root, Parent: &s.Config.Models[0],
			MaxModelLen: s.Config.MaxModelLen, Capabilities: s.Capabilities()}
	}
	return modelObject{ID: name, Object: "model", Created: s.Started.Unix(), OwnedBy: "shoal", Root: s.root,
		MaxModelLen: s.Config.MaxModelLen, Capabilities: s.Capabilities()}
}

type modelList struct {
	Object string        `json:"object"`
	Data   []modelObject `json:"data"`
	Models *[]any        `json:"models,omitempty"` // Codex decodes it; it has its own list
}

func (s *API) handleModels(w http.ResponseWriter, r *http.Request) {
	list := modelList{Object: "list"}
	if r.URL.Query().Has("client_version") {
		list.Models = &[]any{}
	}
	for _, p := range s.peers {
		for _, m := range p.Config.Models {
			list.Data = append(list.Data, p.model(m))
		}
		if all := p.Adapters(); all != nil {
			for _, a := range all.Adapters() {
				list.Data = append(list.Data, p.model(a.Name))
			}
		}
	}
	s.HTTP.WriteJSON(w, http.StatusOK, list)
}

func (s *API) handleModel(w http.ResponseWriter, r *http.Request) {
	p := generate.Params{Model: r.URL.Path[len("/v1/models/"):]}
	of := s.peer(p.Model)
	if e := of.CheckModel(&p); e != nil {
		s.HTTP.Fail(w, e, false)
		return
	}
	s.HTTP.WriteJSON(w, http.StatusOK, of.model(p.Model))
}
