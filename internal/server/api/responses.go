package api

import (
	"context"
	"encoding/json"
	"math"
	"net/http"

	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

// OpenAI's Responses API. Items become the turns of a chat and take the way of one from
// there; what is generated becomes items again, in one machine for streams and wholes.

func (s *openAI) handleResponses(w http.ResponseWriter, r *http.Request) {
	in, ok := decodeBody(s.http, w, r, s.decodeResponses)
	if !ok {
		return
	}
	g := in.generation
	if !in.q.background {
		s.generate(w, r, g)
		return
	}
	g.nameIgnored(w)
	store := s.kept()
	k, existed, err := store.BeginResponse(r, g.head.ID, in.q.body)
	if err != nil {
		s.http.WriteError(w, err)
		return
	}
	if existed {
		w.Header().Set("Idempotency-Replayed", "true")
	}
	if g.stream {
		store.FollowResponse(w, r, k.ID, -1)
		return
	}
	out, err := s.ShowResponse(k)
	if err != nil {
		s.http.WriteError(w, err)
		return
	}
	s.http.writeJSON(w, http.StatusOK, out)
}

type inputTokenCount struct {
	Tokens int    `json:"input_tokens"`
	Object string `json:"object"`
}

// inputTokens counts what a request would read.
func (s *openAI) inputTokens(ctx context.Context, body []byte) (*inputTokenCount, *apiError) {
	g, e := s.decodeResponses(ctx, body)
	if e != nil {
		return nil, e
	}
	return &inputTokenCount{len(g.prompts[0].ids), "response.input_tokens"}, nil
}

// responseGeneration is a decoded request of Responses.
type responseGeneration struct {
	*generation
	q *responseRequest
}

// responseRequest is what Responses has beyond a chat.
type responseRequest struct {
	body       []byte   // as it came
	holder     string   // whose it is
	input      []inItem // of this request alone
	previous   string
	store      *bool // nil: not said
	background bool
	encrypted  bool // thoughts come back in a member that clients send again
	logprobs   bool
	free       map[string]bool
	ignored    []string
	tools      *toolset
	spaces     map[string]spaced // of functions in namespaces, by the names that the model sees
	talk       talk
	instruct   string
	echo       responseObject
}

// responseObject is OpenAI's, in OpenResponses' form: every member is always there.
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
	for _, name := range [...]string{"model", "stream", "temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "top_k", "min_p", "repetition_penalty",
		"min_tokens", "stop", "stop_token_ids", "ignore_eos", "logit_bias", "kv_policy", "cache", "cache_salt", "speculate", "priority", "user", "structured_outputs"} {
		responsesWords[name] = name
	}
}

// decodeResponses turns the body of POST /v1/responses into a generation.
func (s *openAI) decodeResponses(ctx context.Context, body []byte) (*responseGeneration, *apiError) {
	f, e := parseFields(body, s.response)
	if e != nil {
		return nil, e
	}
	g, q := s.parseResponse(f)
	q.body, q.holder = body, HolderOf(ctx)
	g.ignored = append(s.ignored(f), q.ignored...)
	s.checkServerTools(f, q.ignored)
	f.fail(s.mayStore(q))
	if f.err != nil {
		return nil, f.err
	}
	items := q.input
	if q.previous != "" {
		before, e := s.history(ctx, q.previous)
		if e != nil {
			return nil, e
		}
		items = append(before, items...)
	}
	if q.talk.Messages, q.talk.left, e = s.turnsOfItems(ctx, q.instruct, items, len(q.input)); e != nil {
		return nil, e
	}
	g.ignored = append(g.ignored, q.talk.left...)
	g.head = s.newHead("resp_", "response", g.model)
	q.echo.ID, q.echo.CreatedAt, q.echo.Model = g.head.ID, g.head.Created, g.model
	if e := s.converse(tokenizer.WithSearches(ctx), g, q.talk); e != nil {
		return nil, e
	}
	g.keepsBody = q.echo.Store
	return &responseGeneration{g, q}, nil
}

// parseResponse reads the body without what is stored elsewhere. Errors are left in f.
func (s *openAI) parseResponse(f *fields) (*generation, *responseRequest) {
	q := &responseRequest{free: map[string]bool{}, spaces: map[string]spaced{}, echo: responseObject{Object: "response", Status: "in_progress", Output: []outItem{}, ServiceTier: "default",
		Truncation: "disabled", Parallel: true, Metadata: json.RawMessage("{}"), ToolChoice: json.RawMessage(`"auto"`), Tools: []any{}, Reasoning: json.RawMessage(`{"effort":null,"summary":null}`),
		Text: responseText{Format: json.RawMessage(`{"type":"text"}`)}}}
	words := f.as(responsesWords, s.shared)
	q.text(f, words)
	g := &generation{params: s.parseParams(words), promptLogprobs: -1,
		newEncoder: func(r *run, out *Stream) encoder {
			return &responseEncoder{s: s, r: r, q: q, out: newSSE(out), after: -1}
		},
		resume: func(r *run, out *Stream, after int) resumable {
			e := &responseEncoder{s: s, r: r, q: q, out: newSSE(out), after: after}
			e.begin()
			return e
		}}
	f.fail(words.err)
	for _, name := range [...]string{"conversation", "prompt"} {
		if v := f.unlisted(name); v != nil && !emptyValue(v) {
			f.fail(invalidCode(name, "unsupported_parameter", "'%s' is not supported.", name))
		}
	}
	f.ignore("service_tier", "stream_options", "client_metadata", "max_tool_calls", "truncation")
	e := &q.echo
	var x int64
	if f.most("max_output_tokens", &g.maxTokens) {
		if g.maxTokens == 0 {
			f.fail(invalid("max_output_tokens", "'max_output_tokens' must be at least 1, or -1 for as many as there is room for."))
		}
		if most := int64(g.maxTokens); most < math.MaxInt32 {
			e.MaxOutputTokens = &most
		}
	}
	if f.integer("max_tool_calls", &x) {
		e.MaxToolCalls = &x
	}
	f.integer("top_logprobs", &e.TopLogprobs)
	for _, o := range [...]struct {
		name string
		to   **string
	}{{"instructions", &e.Instructions}, {"previous_response_id", &e.Previous}, {"prompt_cache_key", &e.CacheKey}, {"safety_identifier", &e.SafetyID}, {"user", &e.User}} {
		var v string
		if f.str(o.name, &v) {
			*o.to = &v
		}
	}
	if e.Instructions != nil {
		q.instruct = *e.Instructions
	}
	if e.Previous != nil {
		q.previous = *e.Previous
	}
	f.boolean("background", &q.background)
	var keep bool
	if f.boolean("store", &keep) {
		q.store = &keep
	}
	if v := f.get("metadata"); v != nil {
		if e.Metadata = v; v[0] != '{' {
			f.fail(invalid("metadata", "'metadata' must be an object."))
		}
	}
	switch v := f.get("truncation"); string(v) {
	case "", `"disabled"`:
	case `"auto"`:
		q.ignored = append(q.ignored, "truncation") // items are never left out
	default:
		f.fail(invalid("truncation", "'truncation' must be auto or disabled."))
	}
	q.include(f)
	if e.TopLogprobs > 0 || q.logprobs {
		g.sampling.Logprobs, q.logprobs = int(e.TopLogprobs), true
	}
	q.talk.AddGenerationPrompt, q.talk.merge = true, true
	s.reasoning(f, q)
	e.Background, e.Temperature, e.TopP = q.background, g.sampling.Temperature, g.sampling.TopP
	e.PresencePenalty, e.FrequencyPenalty = g.sampling.PresencePenalty, g.sampling.FrequencyPenalty
	f.fail(s.checkModel(&g.params))
	if q.parseTools(f); f.err != nil {
		return g, q
	}
	g.tools = q.tools
	input, failed := decodeItems(f.get("input"), s.cfg.Limits)
	f.fail(failed)
	q.input = input
	return g, q
}

// text reads what the answer is to be: response_format in other words.
func (q *responseRequest) text(f, words *fields) {
	t := f.object("text")
	if t == nil {
		return
	}
	t.str("verbosity", &q.echo.Text.Verbosity)
	format := t.get("format")
	if format == nil {
		return
	}
	words.set("response_format", format, "text.format")
	var x struct {
		Type        string          `json:"type"`
		Name        string          `json:"name"`
		Description *string         `json:"description"`
		Schema      json.RawMessage `json:"schema"`
		Strict      bool            `json:"strict"`
	}
	if unmarshal(format, &x) != nil {
		f.fail(invalid("text.format", "'text.format' must be an object with a 'type'."))
		return
	}
	q.echo.Text.Format = format
	if x.Type == "json_schema" {
		q.echo.Text.Format = mustJSON(x)
	}
}

// include reads what is wanted besides; what concerns tools of servers is not there.
func (q *responseRequest) include(f *fields) {
	v := f.get("include")
	if v == nil {
		return
	}
	var names []string
	if unmarshal(v, &names) != nil {
		f.fail(invalid("include", "'include' must be a list of strings."))
	}
	for _, name := range names {
		q.encrypted = q.encrypted || name == "reasoning.encrypted_content"
		q.logprobs = q.logprobs || name == "message.output_text.logprobs"
	}
}

// reasoning reads how much the model is to think.
func (s *openAI) reasoning(f *fields, q *responseRequest) {
	v := f.get("reasoning")
	if v == nil {
		return
	}
	var r struct {
		Effort  *string `json:"effort"`
		Summary *string `json:"summary"`
	}
	if unmarshal(v, &r) != nil {
		f.fail(invalid("reasoning", "'reasoning' must be an object with 'effort' and 'summary'."))
		return
	}
	q.echo.Reasoning = mustJSON(r)
	if r.Effort != nil {
		s.effort(&q.talk.Conversation, *r.Effort)
	}
}

// ResponseType is a value of the type of a response, for the docs of routes that give kept ones.
func ResponseType() any { return responseObject{} }
