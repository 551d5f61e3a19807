package openai

import (
	"context"
	"encoding/json"
	"math"
	"net/http"

	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/generate"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

// In OpenAI's Responses API, items become the turns of a chat, and the output becomes items
// again. One encoder writes streams and bodies.

func (s *API) handleResponses(w http.ResponseWriter, r *http.Request) {
	in, ok := httpserver.DecodeBody(s.HTTP, w, r, s.decodeResponses)
	if !ok {
		return
	}
	g := in.Request
	if !in.q.background {
		s.Generate(w, r, g)
		return
	}
	g.NameIgnored(w)
	store := s.kept()
	k, existed, err := store.BeginResponse(r, g.Head.ID, in.q.body)
	if err != nil {
		s.HTTP.WriteError(w, err)
		return
	}
	httpserver.ScopeOf(r).Settle() // the job has the body, and the events may last for hours
	if existed {
		w.Header().Set("Idempotency-Replayed", "true")
	}
	if g.Stream {
		store.FollowResponse(w, r, k.ID, -1)
		return
	}
	out, err := s.ShowResponse(k)
	if err != nil {
		s.HTTP.WriteError(w, err)
		return
	}
	s.HTTP.WriteJSON(w, http.StatusOK, out)
}

type inputTokenCount struct {
	Tokens int    `json:"input_tokens"`
	Object string `json:"object"`
}

// inputTokens counts the prompt tokens of a request.
func (s *API) inputTokens(ctx context.Context, body []byte) (*inputTokenCount, *apierr.Error) {
	g, e := s.responseOf(ctx, body, purpose{count: true})
	if e != nil {
		return nil, e
	}
	return &inputTokenCount{len(g.Prompts[0].Ids), "response.input_tokens"}, nil
}

// responseGeneration is a decoded request of Responses.
type responseGeneration struct {
	*generate.Request
	q *responseRequest
}

// responseRequest is the part of a Responses request that a chat does not have.
type responseRequest struct {
	body       []byte   // as it came
	holder     string   // whose it is
	input      []inItem // of this request alone
	replay     bool     // items of other responses that are gone are left out
	previous   string
	store      *bool // nil: not given
	background bool
	encrypted  bool // thoughts come back in a member that clients send again
	logprobs   bool
	free       map[string]bool
	ignored    []string
	tools      *generate.Toolset
	spaces     map[string]spaced // of functions in namespaces, by their names in the prompt
	talk       generate.Chat
	instruct   string
	echo       responseObject
}

// responseObject is the response object of OpenAI. It always has every member, as OpenResponses requires.
type responseObject struct {
	ID               string          `json:"id"`
	Object           string          `json:"object"`
	CreatedAt        int64           `json:"created_at"`
	CompletedAt      *int64          `json:"completed_at"`
	Status           string          `json:"status"` // queued, in_progress, completed, incomplete, failed, cancelled
	Background       bool            `json:"background"`
	Error            *responseError  `json:"error"`
	Incomplete       *incomplete     `json:"incomplete_details"`
	Instructions     *string         `json:"instructions"`
	MaxOutputTokens  *int64          `json:"max_output_tokens"`
	MaxToolCalls     *int64          `json:"max_tool_calls"`
	Model            string          `json:"model"`
	Output           []outItem       `json:"output"`
	Parallel         bool            `json:"parallel_tool_calls"`
	Previous         *string         `json:"previous_response_id"`
	CacheKey         *string         `json:"prompt_cache_key"`
	Reasoning        json.RawMessage `json:"reasoning"`
	SafetyID         *string         `json:"safety_identifier"`
	ServiceTier      string          `json:"service_tier"`
	Store            bool            `json:"store"`
	Temperature      float32         `json:"temperature"`
	PresencePenalty  float32         `json:"presence_penalty"`
	FrequencyPenalty float32         `json:"frequency_penalty"`
	TopP             float32         `json:"top_p"`
	TopLogprobs      int64           `json:"top_logprobs"`
	Text             responseText    `json:"text"`
	ToolChoice       json.RawMessage `json:"tool_choice"`
	Tools            []any           `json:"tools"`
	Truncation       string          `json:"truncation"`
	Usage            *responseUsage  `json:"usage"`
	User             *string         `json:"user"`
	Metadata         json.RawMessage `json:"metadata"`
}

type responseError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

type incomplete struct {
	Reason string `json:"reason"`
}

type responseText struct {
	Format    json.RawMessage `json:"format"`
	Verbosity string          `json:"verbosity,omitempty"`
}

type responseUsage struct {
	Input        int `json:"input_tokens"`
	InputDetails struct {
		Cached int `json:"cached_tokens"`
	} `json:"input_tokens_details"`
	Output        int `json:"output_tokens"`
	OutputDetails struct {
		Reasoning int `json:"reasoning_tokens"`
	} `json:"output_tokens_details"`
	Total int `json:"total_tokens"`
}

// responsesWords are the parameters that Responses shares with chats.
var responsesWords = map[string]string{}

func init() {
	for _, name := range [...]string{"model", "stream", "temperature", "top_p", "presence_penalty", "frequency_penalty",
		"seed", "top_k", "min_p", "repetition_penalty",
		"min_tokens", "stop", "stop_token_ids", "ignore_eos", "logit_bias", "kv_policy", "cache", "cache_salt", "session", "session_ttl",
		"session_turns", "speculate", "priority", "user", "structured_outputs"} {
		responsesWords[name] = name
	}
}

// decodeResponses decodes the body of POST /v1/responses.
func (s *API) decodeResponses(ctx context.Context, body []byte) (*responseGeneration, *apierr.Error) {
	return s.responseOf(ctx, body, purpose{})
}

// purpose is why the body of a response is decoded.
type purpose struct {
	count  bool // only the tokens of the prompt are wanted: nothing is stored
	replay bool // see generate.TaskOptions
}

func (s *API) responseOf(ctx context.Context, body []byte, p purpose) (*responseGeneration, *apierr.Error) {
	f, e := jsonbody.Parse(body, s.response)
	if e != nil {
		return nil, e
	}
	g, q := s.parseResponse(f)
	f.Fail(s.CheckModel(&g.Params))
	q.body, q.holder, q.replay = body, httpserver.KeyName(ctx), p.replay
	g.Ignored = append(s.Ignored(f), q.ignored...)
	s.CheckServerTools(f, q.ignored)
	if !p.count {
		f.Fail(s.mayStore(q))
	}
	f.Fail(ofSession(g, q))
	if f.Err != nil {
		return nil, f.Err
	}
	items := q.input
	if q.previous != "" {
		before, e := s.history(ctx, q)
		if e != nil {
			return nil, e
		}
		items = append(before, items...)
	}
	if q.talk.Messages, q.talk.Left, e = s.turnsOfItems(ctx, q, items); e != nil {
		return nil, e
	}
	g.Ignored = append(g.Ignored, q.talk.Left...)
	g.Head = s.NewHead("resp_", "response", g.Model)
	q.echo.ID, q.echo.CreatedAt, q.echo.Model = g.Head.ID, g.Head.Created, g.Model
	if e := s.Converse(tokenizer.WithSearches(ctx), g, q.talk); e != nil {
		return nil, e
	}
	g.KeepsBody = q.echo.Store
	return &responseGeneration{g, q}, nil
}

// parseResponse reads the body without the parts that are stored elsewhere. Errors are left in f. The caller checks the
// model: a stored response is shown also when its model has another name.
func (s *API) parseResponse(f *jsonbody.Object) (*generate.Request, *responseRequest) {
	q := &responseRequest{free: map[string]bool{}, spaces: map[string]spaced{},
		echo: responseObject{Object: "response", Status: "in_progress", Output: []outItem{}, ServiceTier: "default",
			Truncation: "disabled", Parallel: true, Metadata: json.RawMessage("{}"), ToolChoice: json.RawMessage(`"auto"`), Tools: []any{},
			Reasoning: json.RawMessage(`{"effort":null,"summary":null}`),
			Text:      responseText{Format: json.RawMessage(`{"type":"text"}`)}}}
	words := f.As(responsesWords, s.shared)
	q.text(f, words)
	g := &generate.Request{Params: s.ParseParams(words), PromptLogprobs: -1,
		NewEncoder: func(r *generate.Run, out *httpserver.Stream) generate.Encoder {
			return &responseEncoder{s: s, r: r, q: q, out: httpserver.NewSSE(out), after: -1}
		},
		Resume: func(r *generate.Run, out *httpserver.Stream, after int) generate.Resumable {
			e := &responseEncoder{s: s, r: r, q: q, out: httpserver.NewSSE(out), after: after}
			e.begin()
			return e
		}}
	f.Fail(words.Err)
	for _, name := range [...]string{"conversation", "prompt"} {
		if v := f.Unlisted(name); v != nil && !jsonbody.EmptyValue(v) {
			f.Fail(apierr.InvalidCode(name, "unsupported_parameter", "'%s' is not supported.", name))
		}
	}
	f.Ignore("service_tier", "stream_options", "client_metadata", "max_tool_calls", "truncation")
	q.members(f, g)
	q.include(f)
	e := &q.echo
	if e.TopLogprobs > 0 || q.logprobs {
		g.Sampling.Logprobs, q.logprobs = int(e.TopLogprobs), true
	}
	q.talk.AddGenerationPrompt, q.talk.Merge = true, true
	s.reasoning(f, q)
	e.Background, e.Temperature, e.TopP = q.background, g.Sampling.Temperature, g.Sampling.TopP
	e.PresencePenalty, e.FrequencyPenalty = g.Sampling.PresencePenalty, g.Sampling.FrequencyPenalty
	if q.parseTools(f); f.Err != nil {
		return g, q
	}
	g.Tools = q.tools
	input, failed := decodeItems(f.Get("input"), s.Config.Limits)
	f.Fail(failed)
	q.input = input
	return g, q
}

// members reads the parameters that only Responses has. The response shows most of them.
func (q *responseRequest) members(f *jsonbody.Object, g *generate.Request) {
	e := &q.echo
	var x int64
	if f.TokenLimit("max_output_tokens", &g.MaxTokens) {
		if g.MaxTokens == 0 {
			f.Fail(apierr.Invalid("max_output_tokens", "'max_output_tokens' must be at least 1, or -1 for as many as there is room for."))
		}
		if most := int64(g.MaxTokens); most < math.MaxInt32 {
			e.MaxOutputTokens = &most
		}
	}
	if f.Integer("max_tool_calls", &x) {
		e.MaxToolCalls = &x
	}
	f.Integer("top_logprobs", &e.TopLogprobs)
	for _, o := range [...]struct {
		name string
		to   **string
	}{{"instructions", &e.Instructions}, {"previous_response_id", &e.Previous}, {"prompt_cache_key", &e.CacheKey},
		{"safety_identifier", &e.SafetyID}, {"user", &e.User}} {
		var v string
		if f.Text(o.name, &v) {
			*o.to = &v
		}
	}
	if e.Instructions != nil {
		q.instruct = *e.Instructions
	}
	if e.Previous != nil {
		q.previous = *e.Previous
	}
	f.Boolean("background", &q.background)
	var keep bool
	if f.Boolean("store", &keep) {
		q.store = &keep
	}
	if v := f.Get("metadata"); v != nil {
		if e.Metadata = v; v[0] != '{' {
			f.Fail(apierr.Invalid("metadata", "'metadata' must be an object."))
		}
	}
	switch v := f.Get("truncation"); string(v) {
	case "", `"disabled"`:
	case `"auto"`:
		q.ignored = append(q.ignored, "truncation") // items are never left out
	default:
		f.Fail(apierr.Invalid("truncation", "'truncation' must be auto or disabled."))
	}
}

// text reads the form of the answer: response_format of a chat.
func (q *responseRequest) text(f, words *jsonbody.Object) {
	t := f.Object("text")
	if t == nil {
		return
	}
	t.Text("verbosity", &q.echo.Text.Verbosity)
	format := t.Get("format")
	if format == nil {
		return
	}
	words.Set("response_format", format, "text.format")
	var x struct {
		Type        string          `json:"type"`
		Name        string          `json:"name"`
		Description *string         `json:"description"`
		Schema      json.RawMessage `json:"schema"`
		Strict      bool            `json:"strict"`
	}
	if jsonbody.Unmarshal(format, &x) != nil {
		f.Fail(apierr.Invalid("text.format", "'text.format' must be an object with a 'type'."))
		return
	}
	q.echo.Text.Format = format
	if x.Type == "json_schema" {
		q.echo.Text.Format = jsonbody.MustJSON(x)
	}
}

// include reads which extra data the answer must hold.
func (q *responseRequest) include(f *jsonbody.Object) {
	v := f.Get("include")
	if v == nil {
		return
	}
	var names []string
	if jsonbody.Unmarshal(v, &names) != nil {
		f.Fail(apierr.Invalid("include", "'include' must be a list of strings."))
	}
	for _, name := range names {
		q.encrypted = q.encrypted || name == "reasoning.encrypted_content"
		q.logprobs = q.logprobs || name == "message.output_text.logprobs"
	}
}

// reasoning reads the member reasoning: effort and summary.
func (s *API) reasoning(f *jsonbody.Object, q *responseRequest) {
	v := f.Get("reasoning")
	if v == nil {
		return
	}
	var r struct {
		Effort  *string `json:"effort"`
		Summary *string `json:"summary"`
	}
	if jsonbody.Unmarshal(v, &r) != nil {
		f.Fail(apierr.Invalid("reasoning", "'reasoning' must be an object with 'effort' and 'summary'."))
		return
	}
	q.echo.Reasoning = jsonbody.MustJSON(r)
	if r.Effort != nil {
		s.Effort(&q.talk.Conversation, *r.Effort)
		q.talk.Offered = "reasoning.effort" // Codex sends one that not all templates know
	}
}

// ResponseType returns a value of the type of a response, for the docs of routes that give kept ones.
func ResponseType() any { return responseObject{} }
