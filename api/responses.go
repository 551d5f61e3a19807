package api

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/shoal-llm/shoal/tokenizer"
)

// OpenAI's Responses API. Items become the turns of a chat and take the way of one from
// there; what is generated becomes items again, in one machine for streams and wholes.

func (s *Server) handleResponses(w http.ResponseWriter, r *http.Request) {
	g, ok := posted(s, w, r, s.decodeResponses)
	if !ok {
		return
	}
	if !g.response.background {
		s.generate(w, r, g)
		return
	}
	if len(g.ignored) > 0 {
		w.Header().Set("X-Ignored-Parameters", strings.Join(g.ignored, ", "))
	}
	store := s.kept()
	if err := store.BeginResponse(r, g.head.ID, g.response.body); err != nil {
		s.WriteError(w, err)
		return
	}
	if g.stream {
		store.FollowResponse(w, r, g.head.ID, -1)
		return
	}
	g.response.echo.Status = "queued"
	s.writeJSON(w, http.StatusOK, g.response.echo)
}

// inputTokens counts what a request would read.
func (s *Server) inputTokens(ctx context.Context, body []byte) (any, *apiError) {
	g, e := s.decodeResponses(ctx, body)
	if e != nil {
		return nil, e
	}
	return map[string]any{"object": "response.input_tokens", "input_tokens": len(g.prompts[0].ids)}, nil
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
	most       int64 // of tokens; 0: not said
	free       map[string]bool
	ignored    []string
	tools      *toolset
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
func (s *Server) decodeResponses(ctx context.Context, body []byte) (*generation, *apiError) {
	f, e := parseFields(body)
	if e != nil {
		return nil, e
	}
	g, e := s.parseResponse(f)
	if e != nil {
		return nil, e
	}
	q := g.response
	q.body, q.holder = body, HolderOf(ctx)
	if g.ignored, e = s.ignored(f); e != nil {
		return nil, e
	}
	if g.ignored = append(g.ignored, q.ignored...); s.cfg.Strict && len(q.ignored) > 0 {
		return nil, invalidCode(q.ignored[0], "unsupported_parameter", "'%s' is of a kind that servers run themselves, which this one does not.", q.ignored[0])
	}
	if e := s.mayStore(q); e != nil {
		return nil, e
	}
	items := q.input
	if q.previous != "" {
		before, e := s.history(ctx, q.previous)
		if e != nil {
			return nil, e
		}
		items = append(before, items...)
	}
	if q.talk.Messages, e = s.turnsOfItems(ctx, q.instruct, items); e != nil {
		return nil, e
	}
	g.head = s.newHead("resp_", "response", g.model)
	q.echo.ID, q.echo.CreatedAt, q.echo.Model = g.head.ID, g.head.Created, g.model
	if e := s.converse(tokenizer.WithSearches(ctx), g, q.talk); e != nil {
		return nil, e
	}
	if q.most > 0 { // clients ask for more than small contexts hold
		g.maxTokens = min(g.maxTokens, int(q.most))
	}
	return g, nil
}

// parseResponse reads the body without what is stored elsewhere.
func (s *Server) parseResponse(f *fields) (*generation, *apiError) {
	q := &responseRequest{free: map[string]bool{}, echo: responseObject{Object: "response", Status: "in_progress", Output: []outItem{}, ServiceTier: "default",
		Truncation: "disabled", Parallel: true, Metadata: json.RawMessage("{}"), ToolChoice: json.RawMessage(`"auto"`), Tools: []any{}, Reasoning: json.RawMessage(`{"effort":null,"summary":null}`),
		Text: responseText{Format: json.RawMessage(`{"type":"text"}`)}}}
	words := f.as(responsesWords)
	if e := q.text(f, words); e != nil {
		return nil, e
	}
	g := &generation{params: s.parseParams(words), promptLogprobs: -1, response: q, frames: func() framer { return &responseFramer{after: -1} }}
	f.fail(words.err)
	for _, name := range [...]string{"conversation", "prompt", "context_management"} {
		if v := f.get(name); v != nil && !emptyValue(v) {
			f.fail(invalidCode(name, "unsupported_parameter", "'%s' is not supported.", name))
		}
	}
	for _, name := range [...]string{"service_tier", "stream_options", "client_metadata", "max_tool_calls", "truncation"} {
		f.read[name] = true // they change nothing of an answer
	}
	e := &q.echo
	var x int64
	if f.integer("max_output_tokens", &q.most, 1, 1<<31-1) {
		e.MaxOutputTokens = &q.most
	}
	if f.integer("max_tool_calls", &x, 0, 1<<31-1) {
		e.MaxToolCalls = &x
	}
	f.integer("top_logprobs", &e.TopLogprobs, 0, int64(s.cfg.Limits.TopLogprobs))
	for _, o := range [...]struct {
		name string
		to   **string
		most int
	}{{"instructions", &e.Instructions, len(f.raw["instructions"])}, {"previous_response_id", &e.Previous, 128}, {"prompt_cache_key", &e.CacheKey, 512},
		{"safety_identifier", &e.SafetyID, 512}, {"user", &e.User, 1024}} {
		var v string
		if f.str(o.name, &v, o.most) {
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
	if f.err != nil {
		return nil, f.err
	}
	e.Background, e.Temperature, e.TopP = q.background, g.sampling.Temperature, g.sampling.TopP
	e.PresencePenalty, e.FrequencyPenalty = g.sampling.PresencePenalty, g.sampling.FrequencyPenalty
	if err := s.checkModel(&g.params); err != nil {
		return nil, err
	}
	if err := q.parseTools(f); err != nil {
		return nil, err
	}
	g.tools = q.tools
	var err *apiError
	q.input, err = decodeItems(f.get("input"), s.cfg.Limits)
	return g, err
}

// text reads what the answer is to be: response_format in other words.
func (q *responseRequest) text(f, words *fields) *apiError {
	v := f.get("text")
	if v == nil {
		return nil
	}
	t, e := parseFields(v)
	if e != nil {
		return invalid("text", "'text' must be an object.")
	}
	t.str("verbosity", &q.echo.Text.Verbosity, 32)
	format := t.get("format")
	if format == nil {
		return nil
	}
	words.raw["response_format"], words.spelled["response_format"] = format, "text.format"
	var x struct {
		Type        string          `json:"type"`
		Name        string          `json:"name"`
		Description *string         `json:"description"`
		Schema      json.RawMessage `json:"schema"`
		Strict      bool            `json:"strict"`
	}
	if json.Unmarshal(format, &x) != nil {
		return invalid("text.format", "'text.format' must be an object with a 'type'.")
	}
	q.echo.Text.Format = format
	if x.Type == "json_schema" {
		q.echo.Text.Format = mustJSON(x)
	}
	return nil
}

// include reads what is wanted besides; what concerns tools of servers is not there.
func (q *responseRequest) include(f *fields) {
	v := f.get("include")
	if v == nil {
		return
	}
	var names []string
	if json.Unmarshal(v, &names) != nil {
		f.fail(invalid("include", "'include' must be a list of strings."))
	}
	for _, name := range names {
		q.encrypted = q.encrypted || name == "reasoning.encrypted_content"
		q.logprobs = q.logprobs || name == "message.output_text.logprobs"
	}
}

// reasoning reads how much the model is to think: templates know yes and no.
func (s *Server) reasoning(f *fields, q *responseRequest) {
	v := f.get("reasoning")
	if v == nil {
		return
	}
	var r struct {
		Effort  *string `json:"effort"`
		Summary *string `json:"summary"`
	}
	if json.Unmarshal(v, &r) != nil {
		f.fail(invalid("reasoning", "'reasoning' must be an object with 'effort' and 'summary'."))
		return
	}
	q.echo.Reasoning = mustJSON(r)
	if s.thinks && r.Effort != nil {
		q.talk.think(*r.Effort != "none" && *r.Effort != "minimal")
	}
}

// freeSchema are the arguments of a custom tool.
var freeSchema = json.RawMessage(`{"type":"object","properties":{"input":{"type":"string"}},"required":["input"],"additionalProperties":false}`)

// parseTools reads the tools of Responses. Those that a server would run are left out, and
// named as ignored: a model that may call them need not.
func (q *responseRequest) parseTools(f *fields) *apiError {
	t, e := toolsOf(f.get("tools"), func(t *toolset, at string, raw json.RawMessage) *apiError {
		var x struct {
			Type string `json:"type"`
			tool
			Format struct {
				Syntax     string `json:"syntax"`
				Definition string `json:"definition"`
			} `json:"format"`
		}
		if raw[0] != '{' || json.Unmarshal(raw, &x) != nil {
			return invalid(at, "'%s' must be {\"type\": \"function\", \"name\", \"description\", \"parameters\"}.", at)
		}
		shown := x.tool
		switch x.Type {
		case "function":
			q.echo.Tools = append(q.echo.Tools, struct {
				Type        string          `json:"type"`
				Name        string          `json:"name"`
				Description *string         `json:"description"`
				Parameters  json.RawMessage `json:"parameters"`
				Strict      bool            `json:"strict"`
			}{x.Type, x.Name, orNil(x.Description), x.Parameters, x.Strict})
		case "custom":
			q.echo.Tools = append(q.echo.Tools, raw)
			q.free[x.Name] = true
			shown.Parameters = freeSchema
			if x.Format.Definition != "" {
				shown.Description = strings.TrimSpace(shown.Description + "\nThe input is text of this " + x.Format.Syntax + " grammar:\n" + x.Format.Definition)
			}
		default:
			q.ignored = append(q.ignored, at)
			return nil
		}
		return t.add(at, shown)
	})
	if e != nil {
		return e
	}
	f.boolean("parallel_tool_calls", &q.echo.Parallel)
	if f.err != nil {
		return f.err
	}
	if t != nil {
		t.show()
		t.single = !q.echo.Parallel
	}
	how, name := "", ""
	if v := f.get("tool_choice"); v != nil {
		q.echo.ToolChoice = v
		if json.Unmarshal(v, &how) != nil {
			if how, name, e = t.allowed(v); e != nil {
				return e
			}
			if how == "" { // what a choice among allowed tools is when it does not say
				var said map[string]json.RawMessage
				_ = json.Unmarshal(v, &said) // allowed read it
				said["mode"] = json.RawMessage(`"auto"`)
				q.echo.ToolChoice = mustJSON(said)
			}
		}
	}
	q.tools, e = t.choose(how, name)
	return e
}

// allowed reads a tool_choice that is an object.
func (t *toolset) allowed(v json.RawMessage) (how, name string, e *apiError) {
	type named struct {
		Type string `json:"type"`
		Name string `json:"name"`
	}
	var c struct {
		named
		Mode  string  `json:"mode"`
		Tools []named `json:"tools"`
	}
	_ = json.Unmarshal(v, &c) // what is no such object has no type
	switch c.Type {
	case "function", "custom":
		return "function", c.Name, nil
	case "allowed_tools":
		if t == nil {
			return c.Mode, "", nil
		}
		keep := map[string]bool{}
		for _, x := range c.Tools {
			if _, ok := t.known[x.Name]; !ok && x.Name != "" {
				return "", "", invalid("tool_choice.tools", "'tool_choice' names %.60q, which is not among 'tools'.", x.Name)
			}
			keep[x.Name] = true
		}
		var list []tool
		for _, x := range t.list {
			if keep[x.Name] {
				list = append(list, x)
			} else {
				delete(t.known, x.Name)
			}
		}
		t.list = list
		return c.Mode, "", nil
	}
	return "", "", invalid("tool_choice", "'tool_choice' must be none, auto, required, {\"type\": \"function\", \"name\": ...} or {\"type\": \"allowed_tools\", ...}.")
}
