package api

import (
	"net/http"
	"sync/atomic"
)

// openAI is OpenAI's protocol, with vLLM's extensions and the routes of fixed contexts.
type openAI struct {
	*Service
	root      string                        // where the weights come from
	info      map[string]any                // /tokenizer_info
	responses atomic.Pointer[ResponseStore] // nil: they are not kept
}

func (s *openAI) addRoutes(h *HTTP) error {
	const get, post = http.MethodGet, http.MethodPost
	return h.HandleAll([]Route{
		{Method: get, Path: "/v1/models", Brief: true, Handler: s.handleModels},
		{Method: get, Path: "/v1/models/*", Brief: true, Handler: s.handleModel},
		{Method: post, Path: "/v1/chat/completions", Handler: s.generateHandler(s.decodeChat)},
		{Method: post, Path: "/v1/completions", Handler: s.handleCompletions},
		{Method: post, Path: "/v1/responses", Handler: s.handleResponses},
		{Method: post, Path: "/v1/responses/input_tokens", Handler: jsonHandler(h, s.inputTokens)},
		{Method: post, Path: "/v1/contexts", Handler: s.handleMakeContext},
		{Method: get, Path: "/v1/contexts", Brief: true, Handler: s.handleContexts},
		{Method: get, Path: "/v1/contexts/*", Brief: true, Handler: s.handleContext},
		{Method: http.MethodDelete, Path: "/v1/contexts/*", Brief: true, Handler: s.handleContext},
		{Method: post, Path: "/tokenize", Handler: jsonHandler(h, s.tokenize)},
		{Method: post, Path: "/detokenize", Handler: jsonHandler(h, s.detokenize)},
		{Method: get, Path: "/tokenizer_info", Handler: s.handleTokenizerInfo},
	})
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
