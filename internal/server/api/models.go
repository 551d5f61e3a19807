package api

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/internal/server/anthropic"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/generate"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
	"github.com/shoal-llm/shoal/internal/server/ollama"
	"github.com/shoal-llm/shoal/internal/server/openai"
	"github.com/shoal-llm/shoal/internal/server/sessions"
	"github.com/shoal-llm/shoal/internal/server/vectors"
)

// Model is one of the models of a server.
type Model struct {
	Config    // its own fields; those of the whole server do not count
	Engine    engine.Engine
	Tokenizer engine.Tokenizer
	Template  engine.ChatTemplate // nil: no chat
}

// member answers all protocols for one model.
type member struct {
	service   *generate.Service
	openai    *openai.API
	anthropic *anthropic.API
	ollama    *ollama.API
	vectors   *vectors.API
}

// addRoutes adds the routes of one model.
func (m *member) addRoutes(h *httpserver.Server) error {
	for _, add := range []func(*httpserver.Server) error{m.openai.AddRoutes, m.vectors.AddRoutes, m.anthropic.AddRoutes, m.ollama.AddRoutes} {
		if err := add(h); err != nil {
			return err
		}
	}
	return nil
}

// addRoutes adds the routes of all models. A request with a body goes to the model that it names. The
// first model answers all others, for all models.
func (s *Server) addRoutes() error {
	if len(s.members) == 1 {
		return s.members[0].addRoutes(s.Server)
	}
	var routes []httpserver.Route
	handlers := map[string][]http.HandlerFunc{} // of the members, by method and path
	for i, m := range s.members {
		own, err := s.Collect(func() error { return m.addRoutes(s.Server) })
		if err != nil {
			return err
		}
		for _, r := range own {
			key := r.Method + " " + r.Path
			handlers[key] = append(handlers[key], r.Handler)
			if i == 0 {
				routes = append(routes, r)
			}
		}
	}
	for _, r := range routes {
		if of := handlers[r.Method+" "+r.Path]; r.Method == http.MethodPost {
			r.Handler = s.byModel(r.Path, of)
		}
		if err := s.Handle(r); err != nil {
			return err
		}
	}
	return nil
}

// byModel passes a request to the handler of the model that its body names.
func (s *Server) byModel(path string, handlers []http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, e := s.ReadBody(w, r)
		if e != nil {
			s.Fail(w, e, false)
			return
		}
		handlers[s.memberOf(path, body)](w, r)
	}
}

// memberOf returns the number of the model for a body of an endpoint. Without a name, or with one that
// no model has, it is the first model that can answer there.
func (s *Server) memberOf(path string, body []byte) int {
	if i := s.memberNamed(namedModel(body)); i >= 0 {
		return i
	}
	can := needed(path)
	return max(0, slices.IndexFunc(s.members, func(m *member) bool {
		return can == "" || slices.Contains(m.service.Capabilities(), can)
	}))
}

// memberNamed returns the number of the model that has a name, or an adapter of that name; -1: none.
func (s *Server) memberNamed(name string) int {
	if name == "" {
		return -1
	}
	i := slices.IndexFunc(s.members, func(m *member) bool { return m.service.Serves(name) })
	if base, latest := strings.CutSuffix(name, ":latest"); i < 0 && latest { // Ollama's default tag
		return s.memberNamed(base)
	}
	return i
}

// namedModel returns the model that a body names; "": none. Routes of LoRA adapters name the model that
// an adapter belongs to, or the adapter.
func namedModel(body []byte) string {
	f, e := jsonbody.Parse(body, nil)
	if e != nil {
		return "" // the handler finds it out too
	}
	for _, key := range []string{"model", "name", "base_model_name", "lora_name"} {
		var name string
		if jsonbody.Unmarshal(f.Get(key), &name) == nil && name != "" {
			return name
		}
	}
	return ""
}

// needed returns the capability that a model needs for an endpoint; "": none.
func needed(path string) string {
	switch path {
	case vectors.EndpointEmbeddings, "/api/embed", "/api/embeddings":
		return generate.CanEmbed
	case vectors.EndpointRerank, "/rerank", "/v2/rerank", vectors.EndpointScore, "/score":
		return generate.CanRerank
	case openai.EndpointChat, openai.EndpointCompletions, openai.EndpointResponses, "/v1/responses/input_tokens", "/v1/contexts",
		"/v1/messages", "/v1/messages/count_tokens", "/api/chat", "/api/generate":
		return generate.CanComplete
	}
	return ""
}

// withFingerprint returns the number of the model with a fingerprint; -1: none has it.
func (s *Server) withFingerprint(print string) int {
	return slices.IndexFunc(s.members, func(m *member) bool { return m.service.Config.SystemFingerprint == print })
}

// Text decodes tokens of the model with a fingerprint. It omits control tokens, and the bytes of an
// unfinished character at the end. If that model is no longer served, Text uses the first model.
func (s *Server) Text(fingerprint string, ids []int32) string {
	return s.members[max(0, s.withFingerprint(fingerprint))].service.Text(ids)
}

// taskMember returns the server for the body of a task. A body that names no model, or by a name that no model has
// now, stays with the model of the fingerprint.
func (s *Server) taskMember(endpoint string, body []byte, fingerprint string) *member {
	if i := s.withFingerprint(fingerprint); i >= 0 && (namedModel(body) == "" || s.renamed(body)) {
		return s.members[i]
	}
	return s.members[s.memberOf(endpoint, body)]
}

// Fingerprint returns the fingerprint for the body of a task: it identifies everything except the request that
// determines the bits (Config.SystemFingerprint). accepted is the fingerprint with which the task was accepted; "": it is new.
func (s *Server) Fingerprint(endpoint string, body []byte, accepted string) string {
	return s.taskMember(endpoint, body, accepted).service.Config.SystemFingerprint
}

// NewTask makes a task from the body of a request to an OpenAI endpoint.
func (s *Server) NewTask(ctx context.Context, endpoint string, body []byte, o generate.TaskOptions) (*generate.Task, error) {
	m := s.taskMember(endpoint, body, o.Fingerprint)
	if o.Renamed && o.Fingerprint != "" && m.service.Config.SystemFingerprint == o.Fingerprint && s.renamed(body) {
		body = withoutModel(body)
	}
	return m.openai.NewTask(ctx, endpoint, body, o)
}

// renamed reports whether the name of the model in a body is none that is served.
func (s *Server) renamed(body []byte) bool {
	name := namedModel(body)
	return name != "" && s.memberNamed(name) < 0
}

// withoutModel returns a body without the name of a model.
func withoutModel(body []byte) []byte {
	f, e := jsonbody.Parse(body, nil)
	if e != nil {
		return body // the handler finds it out too
	}
	delete(f.Raw, "model")
	return jsonbody.MustJSON(f.Raw)
}

// SetContextStore sets the store of contexts and reads its contexts; nil removes the store. If the store cannot read all
// of them yet, it is asked again later. It must not be called concurrently.
func (s *Server) SetContextStore(store generate.ContextStore) {
	if s.contextStop != nil {
		s.contextStop()
		s.contextStop = nil
	}
	set := func() (all bool) {
		all = true
		for _, m := range s.members {
			all = m.service.SetContextStore(store) && all
		}
		return all
	}
	if set() {
		return
	}
	quit, ended := make(chan struct{}), make(chan struct{})
	s.contextStop = func() { close(quit); <-ended }
	go func() {
		defer close(ended)
		for pause, try := time.Second, 0; try < contextTries; pause, try = min(2*pause, 32*time.Second), try+1 {
			select {
			case <-time.After(pause):
			case <-quit:
				return
			case <-s.Stopping():
				return
			}
			if set() {
				return
			}
		}
	}()
}

// contextTries is how often a store is asked again for contexts that it cannot read: for about 8 minutes.
const contextTries = 20

// SetSessionBook sets the sessions of the server; nil: their store is away. Caches of ended sessions are freed first.
func (s *Server) SetSessionBook(b *sessions.Book, ended ...sessions.Ended) {
	for _, e := range ended {
		s.members[0].service.EndSession(e.Tenant, e.Name)
	}
	s.members[0].service.SetSessionBook(b)
}

// SetResponseStore sets the store of responses; nil removes it.
func (s *Server) SetResponseStore(store openai.ResponseStore) {
	for _, m := range s.members {
		m.openai.SetResponseStore(store)
	}
}

// ShowResponse returns a kept response in the form of the API.
func (s *Server) ShowResponse(k generate.StoredResponse) (any, error) {
	return s.ofResponse(k).ShowResponse(k)
}

// ResponseInput returns the input items of a stored response.
func (s *Server) ResponseInput(k generate.StoredResponse) ([]json.RawMessage, error) {
	return s.ofResponse(k).ResponseInput(k)
}

func (s *Server) ofResponse(k generate.StoredResponse) *openai.API {
	return s.members[s.memberOf(openai.EndpointResponses, k.Body)].openai
}
