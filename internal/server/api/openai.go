package api

import (
	"math"
	"net/http"
	"sync/atomic"
)

// openAI is OpenAI's protocol, with vLLM's extensions and the routes of fixed contexts.
type openAI struct {
	*Service
	root      string                        // where the weights come from
	info      map[string]any                // /tokenizer_info
	responses atomic.Pointer[ResponseStore] // nil: they are not kept

	// Parameters of requests.
	shared, chat, completion, response, context, tokenizes, detokenizes *Table
}

// newOpenAI serves a model whose weights come from root. info is the body of /tokenizer_info.
func newOpenAI(s *Service, root string, info map[string]any) *openAI {
	l := &s.cfg.Limits
	a := &openAI{Service: s, root: root, info: info, shared: s.sharedParams()}
	anyText, object := textParam("", 0), objectParam("")
	ids := Param{Kind: KindList, Items: &Param{Kind: KindInteger, Max: int64(s.vocab - 1)}} // truncate_prompt_tokens takes any number
	a.chat = a.shared.With(toolParams()...).With(s.conversationParams()...).With(boolParam("logprobs"), integerParam("top_logprobs", 0, int64(l.TopLogprobs)))
	a.completion = a.shared.With(
		eitherParam("prompt", anyText, listParam("", l.Prompts, anyText), ids, listParam("", l.Prompts, ids)),
		boolParam("echo"),
		eitherParam("logprobs", integerParam("", 0, int64(l.Logprobs)), boolParam("")))
	a.response = a.shared.Renamed(responsesWords).With(toolParams()...).With(
		eitherParam("input", anyText, listParam("", l.Messages, object)),
		textParam("instructions", 0),
		textParam("previous_response_id", 128),
		boolParam("store"),
		boolParam("background"),
		integerParam("max_tool_calls", 0, math.MaxInt32),
		Param{Name: "text", Kind: KindObject, Members: NewTable(objectParam("format"), textParam("verbosity", 32))},
		objectParam("reasoning"),
		listParam("include", 1<<16, anyText),
		integerParam("top_logprobs", 0, int64(l.TopLogprobs)),
		integerParam("max_output_tokens", -1, math.MaxInt32),
		objectParam("metadata"),
		textParam("prompt_cache_key", 512),
		textParam("safety_identifier", 512),
		anyParam("service_tier"), anyParam("stream_options"), anyParam("client_metadata"),
		wordsParam("truncation", "auto", "disabled"))
	a.context = a.completion.Pick("model", "prompt", "add_special_tokens", "kv_policy").With(s.conversationParams()...).With(
		textParam("name", 64), boolParam("automatic"), Param{Name: "add_generation_prompt", Kind: KindBool, Hidden: true}) // a context ends with its messages
	a.tokenizes = NewTable(textParam("model", 512), textParam("prompt", 0), textParam("content", 0), boolParam("add_special_tokens"), boolParam("add_special"), boolParam("return_token_strs")).
		With(toolParams()...).With(s.conversationParams()...)
	a.detokenizes = NewTable(textParam("model", 512), listParam("tokens", l.DetokenizeToken, integerParam("", 0, int64(s.vocab-1))))
	return a
}

func (s *openAI) addRoutes(h *HTTP) error {
	const get, post = http.MethodGet, http.MethodPost
	return h.HandleAll([]Route{
		{Method: get, Path: "/v1/models", Brief: true, Handler: s.handleModels,
			Docs: []Doc{{About: "the names of the model", Answer: modelList{}}}},
		{Method: get, Path: "/v1/models/*", Brief: true, Handler: s.handleModel,
			Docs: []Doc{{About: "one of them", Answer: modelObject{}}}},
		{Method: post, Path: "/v1/chat/completions", Handler: s.generateHandler(s.decodeChat),
			Docs: []Doc{{About: "a chat, in the model's own template", Params: s.chat, Required: []string{"messages"}, Answer: chatCompletion{}, Events: chunkBody{}}}},
		{Method: post, Path: "/v1/completions", Handler: s.handleCompletions,
			Docs: []Doc{{About: "text or token ids", Params: s.completion, Required: []string{"prompt"}, Answer: completionBody{}, Events: chunkBody{}}}},
		{Method: post, Path: "/v1/responses", Handler: s.handleResponses,
			Docs: []Doc{{About: "OpenAI's Responses", Params: s.response, Answer: responseObject{}, Events: Schema{}}}},
		{Method: post, Path: "/v1/responses/input_tokens", Handler: jsonHandler(h, s.inputTokens),
			Docs: []Doc{{About: "tokens of a response's prompt", Params: s.response, Answer: inputTokenCount{}}}},
		{Method: post, Path: "/v1/contexts", Handler: s.handleMakeContext,
			Docs: []Doc{{About: "reads a text once, for requests that begin with it", Params: s.context, Required: []string{"name"}, Answer: fixedContext{}}}},
		{Method: get, Path: "/v1/contexts", Brief: true, Handler: s.handleContexts,
			Docs: []Doc{{About: "the contexts of the key"}}},
		{Method: get, Path: "/v1/contexts/*", Brief: true, Handler: s.handleContext,
			Docs: []Doc{{About: "one of them, by name", Answer: fixedContext{}}}},
		{Method: http.MethodDelete, Path: "/v1/contexts/*", Brief: true, Handler: s.handleContext,
			Docs: []Doc{{About: "gives it up"}}},
		{Method: post, Path: "/tokenize", Handler: jsonHandler(h, s.tokenize),
			Docs: []Doc{{About: "token ids of a text or a chat", Params: s.tokenizes, Answer: tokenized{}}}},
		{Method: post, Path: "/detokenize", Handler: jsonHandler(h, s.detokenize),
			Docs: []Doc{{About: "text of token ids", Params: s.detokenizes, Required: []string{"tokens"}, Answer: detokenized{}}}},
		{Method: get, Path: "/tokenizer_info", Handler: s.handleTokenizerInfo,
			Docs: []Doc{{About: "tokenizer_config.json"}}},
	})
}
