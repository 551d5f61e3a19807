package openai

import (
	"math"
	"net/http"
	"slices"
	"sync/atomic"

	"github.com/shoal-llm/shoal/internal/server/generate"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
	"github.com/shoal-llm/shoal/internal/server/sessions"
	"github.com/shoal-llm/shoal/internal/server/vectors"
)

// API serves the routes of the protocol.
type API struct {
	*generate.Service
	peers     []*API // of all models of the server, with this one
	vectors   *vectors.API
	root      string                        // where the weights come from
	info      map[string]any                // /tokenizer_info
	responses atomic.Pointer[ResponseStore] // nil: they are not kept

	// Parameters of requests.
	shared, chat, completion, response, context, tokenizes, detokenizes *jsonbody.Table
}

// New serves a model whose weights come from root. info is the body of /tokenizer_info.
func New(s *generate.Service, v *vectors.API, root string, info map[string]any) *API {
	l := &s.Config.Limits
	a := &API{Service: s, vectors: v, root: root, info: info, shared: s.SharedParams()}
	a.peers = []*API{a}
	anyText, object := jsonbody.Text("", 0), jsonbody.ObjectOf("")
	// truncate_prompt_tokens takes any number
	ids := jsonbody.Param{Kind: jsonbody.KindList, Items: &jsonbody.Param{Kind: jsonbody.KindInteger, Max: int64(s.VocabSize - 1)}}
	a.chat = a.shared.With(generate.ToolParams()...).With(s.ConversationParams()...).With(jsonbody.Bool("logprobs"),
		jsonbody.Integer("top_logprobs", 0, int64(l.TopLogprobs)))
	a.completion = a.shared.With(
		jsonbody.Either("prompt", anyText, jsonbody.List("", l.Prompts, anyText), ids, jsonbody.List("", l.Prompts, ids)),
		jsonbody.Bool("echo"),
		jsonbody.Either("logprobs", jsonbody.Integer("", 0, int64(l.Logprobs)), jsonbody.Bool("")))
	a.response = a.shared.Renamed(responsesWords).With(generate.ToolParams()...).With(
		jsonbody.Either("input", anyText, jsonbody.List("", l.Messages, object)),
		jsonbody.Text("instructions", 0),
		jsonbody.Text("previous_response_id", 128),
		jsonbody.Bool("store"),
		jsonbody.Bool("background"),
		jsonbody.Integer("max_tool_calls", 0, math.MaxInt32),
		jsonbody.Param{Name: "text", Kind: jsonbody.KindObject,
			Members: jsonbody.NewTable(jsonbody.ObjectOf("format"), jsonbody.Text("verbosity", 32))},
		jsonbody.ObjectOf("reasoning"),
		jsonbody.List("include", 1<<16, anyText),
		jsonbody.Integer("top_logprobs", 0, int64(l.TopLogprobs)),
		jsonbody.Integer("max_output_tokens", -1, math.MaxInt32),
		jsonbody.ObjectOf("metadata"),
		jsonbody.Text("prompt_cache_key", 512),
		jsonbody.Text("safety_identifier", 512),
		jsonbody.Any("service_tier"), jsonbody.Any("stream_options"), jsonbody.Any("client_metadata"),
		jsonbody.Words("truncation", "auto", "disabled"))
	a.context = a.completion.Pick("model", "prompt", "add_special_tokens", "kv_policy").With(s.ConversationParams()...).With(
		// a context ends with its messages
		jsonbody.Text("name", 64), jsonbody.Bool("automatic"),
		jsonbody.Param{Name: "add_generation_prompt", Kind: jsonbody.KindBool, Hidden: true})
	a.tokenizes = jsonbody.NewTable(jsonbody.Text("model", 512), jsonbody.Text("prompt", 0), jsonbody.Text("content", 0),
		jsonbody.Bool("add_special_tokens"), jsonbody.Bool("add_special"), jsonbody.Bool("return_token_strs")).
		With(generate.ToolParams()...).With(s.ConversationParams()...)
	a.detokenizes = jsonbody.NewTable(jsonbody.Text("model", 512),
		jsonbody.List("tokens", l.DetokenizeToken, jsonbody.Integer("", 0, int64(s.VocabSize-1))))
	return a
}

// Introduce makes the APIs of the models of one server known to each other. The first answers the routes
// that have no body.
func Introduce(all []*API) {
	for _, a := range all {
		a.peers = all
	}
}

// peer returns the API of the model with a name; this one if there is none, or the name is empty.
func (s *API) peer(name string) *API {
	if i := slices.IndexFunc(s.peers, func(p *API) bool { return p.Serves(name) }); i >= 0 {
		return s.peers[i]
	}
	return s
}

func (s *API) AddRoutes(h *httpserver.Server) error {
	const get, post = http.MethodGet, http.MethodPost
	return h.HandleAll(append(s.adapterRoutes(h), []httpserver.Route{
		{Method: get, Path: "/v1/models", Brief: true, Handler: s.handleModels,
			Docs: []httpserver.Doc{{About: "the models and their names", Answer: modelList{}}}},
		{Method: get, Path: "/v1/models/*", Brief: true, Handler: s.handleModel,
			Docs: []httpserver.Doc{{About: "one of them", Answer: modelObject{}}}},
		{Method: post, Path: "/v1/chat/completions", Handler: s.GenerateHandler(s.decodeChat),
			Docs: []httpserver.Doc{{About: "a chat, in the model's own template", Params: s.chat, Required: []string{"messages"},
				Answer: chatCompletion{}, Events: chunkBody{}}}},
		{Method: post, Path: "/v1/completions", Handler: s.handleCompletions,
			Docs: []httpserver.Doc{{About: "text or token ids", Params: s.completion, Required: []string{"prompt"},
				Answer: completionBody{}, Events: chunkBody{}}}},
		{Method: post, Path: "/v1/responses", Handler: s.handleResponses,
			Docs: []httpserver.Doc{{About: "OpenAI's Responses", Params: s.response, Answer: responseObject{}, Events: jsonbody.Schema{}}}},
		{Method: post, Path: "/v1/responses/input_tokens", Handler: httpserver.JSONHandler(h, s.inputTokens),
			Docs: []httpserver.Doc{{About: "tokens of a response's prompt", Params: s.response, Answer: inputTokenCount{}}}},
		{Method: post, Path: "/v1/contexts", Handler: s.handleMakeContext,
			Docs: []httpserver.Doc{{About: "reads a text once, for requests that begin with it", Params: s.context,
				Required: []string{"name"}, Answer: generate.FixedContext{}}}},
		{Method: get, Path: "/v1/contexts", Brief: true, Handler: s.handleContexts,
			Docs: []httpserver.Doc{{About: "the contexts of the key"}}},
		{Method: get, Path: "/v1/contexts/*", Brief: true, Handler: s.handleContext,
			Docs: []httpserver.Doc{{About: "one of them, by name", Answer: generate.FixedContext{}}}},
		{Method: http.MethodDelete, Path: "/v1/contexts/*", Brief: true, Handler: s.handleContext,
			Docs: []httpserver.Doc{{About: "gives it up"}}},
		{Method: get, Path: "/v1/sessions", Brief: true, Handler: s.handleSessions,
			Docs: []httpserver.Doc{{About: "the sessions of the key", Answer: sessionList{}}}},
		{Method: get, Path: "/v1/sessions/*", Brief: true, Handler: s.handleSession,
			Docs: []httpserver.Doc{{About: "one of them, by name", Answer: sessions.Session{}}}},
		{Method: http.MethodDelete, Path: "/v1/sessions/*", Brief: true, Handler: s.handleSession,
			Docs: []httpserver.Doc{{About: "deletes it, with its cache", Answer: deletedSession{}}}},
		{Method: post, Path: "/tokenize", Handler: httpserver.JSONHandler(h, s.tokenize),
			Docs: []httpserver.Doc{{About: "token ids of a text or a chat", Params: s.tokenizes, Answer: tokenized{}}}},
		{Method: post, Path: "/detokenize", Handler: httpserver.JSONHandler(h, s.detokenize),
			Docs: []httpserver.Doc{{About: "text of token ids", Params: s.detokenizes, Required: []string{"tokens"}, Answer: detokenized{}}}},
		{Method: get, Path: "/tokenizer_info", Handler: s.handleTokenizerInfo,
			Docs: []httpserver.Doc{{About: "tokenizer_config.json"}}},
	}...))
}
