package openai

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/shoal-llm/shoal/internal/options"
	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/generate"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
)

// Routes with vLLM's names that load and unload LoRA adapters.

var (
	loadParams   = jsonbody.NewTable(jsonbody.Text("lora_name", 128), jsonbody.Text("lora_path", 4096), jsonbody.Text("base_model_name", 512))
	unloadParams = jsonbody.NewTable(jsonbody.Text("lora_name", 128))
)

func (s *API) adapterRoutes(h *httpserver.Server) []httpserver.Route {
	return []httpserver.Route{
		{Method: http.MethodPost, Path: "/v1/load_lora_adapter", Operator: true, Handler: httpserver.JSONHandler(h, s.loadAdapter),
			Docs: []httpserver.Doc{{About: "serves a LoRA adapter from a folder below --lora-dir under a name", Params: loadParams,
				Required: []string{"lora_name", "lora_path"}, Answer: modelObject{}}}},
		{Method: http.MethodPost, Path: "/v1/unload_lora_adapter", Operator: true, Handler: httpserver.JSONHandler(h, s.unloadAdapter),
			Docs: []httpserver.Doc{{About: "gives up the name of a LoRA adapter; running requests continue", Params: unloadParams,
				Required: []string{"lora_name"}, Answer: modelObject{}}}},
	}
}

func (s *API) loadAdapter(_ context.Context, body []byte) (m modelObject, e *apierr.Error) {
	f, e := jsonbody.Parse(body, loadParams)
	if e != nil {
		return m, e
	}
	var name, path string
	var base generate.Params
	f.Text("base_model_name", &base.Model)
	f.Fail(s.CheckModel(&base))
	if !f.Text("lora_name", &name) || !f.Text("lora_path", &path) {
		f.Fail(apierr.InvalidCode("lora_name", "missing_required_parameter", "'lora_name' and 'lora_path' are required."))
	}
	if f.Err != nil {
		return m, f.Err
	}
	all := s.Adapters()
	if all == nil {
		return m, adapterError(engine.ErrAdaptersOff)
	}
	if other := s.peer(name); other != s {
		return m, apierr.InvalidCode("lora_name", "adapter_refused", "The model %s has this name, or an adapter of it.", other.Config.Models[0])
	}
	if err := all.LoadAdapter(name, path); err != nil {
		return m, adapterError(err)
	}
	return s.model(name), nil
}

func (s *API) unloadAdapter(_ context.Context, body []byte) (m modelObject, e *apierr.Error) {
	f, e := jsonbody.Parse(body, unloadParams)
	if e != nil {
		return m, e
	}
	var name string
	if !f.Text("lora_name", &name) {
		f.Fail(apierr.InvalidCode("lora_name", "missing_required_parameter", "'lora_name' is required."))
	}
	if f.Err != nil {
		return m, f.Err
	}
	all := s.Adapters()
	if all == nil {
		return m, adapterError(engine.ErrNoAdapter)
	}
	m = s.model(name)
	if err := all.UnloadAdapter(name); err != nil {
		return m, adapterError(err)
	}
	return m, nil
}

func adapterError(err error) *apierr.Error {
	switch {
	case errors.Is(err, engine.ErrNoAdapter):
		return &apierr.Error{Status: http.StatusNotFound, Type: apierr.TypeInvalid, Param: "lora_name", Code: "adapter_not_found",
			Message: "There is no LoRA adapter of this name; GET /v1/models lists them."}
	case errors.Is(err, engine.ErrAdaptersOff):
		return &apierr.Error{Status: http.StatusForbidden, Type: apierr.TypeInvalid, Code: "adapters_off",
			Message: fmt.Sprintf("Adapters cannot be loaded over the API: start the coordinator with %s DIR, or name adapters with %s NAME=FOLDER.",
				options.Name("lora-dir"), options.Name("lora"))}
	}
	return apierr.InvalidCode("lora_path", "adapter_refused", "The adapter was refused: %v.", err)
}
