package ollama

import (
	"context"
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/generate"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
	"github.com/shoal-llm/shoal/internal/server/vectors"
	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

type API struct {
	*generate.Service
	peers   []*API // of all models of the server, with this one
	card    ModelCard
	shared  *jsonbody.Table // of OpenAI's names, in Ollama's bounds
	table   *jsonbody.Table // of chats and completions
	model   *jsonbody.Table // of requests about a model
	embeds  *jsonbody.Table // of embeddings
	vectors *vectors.API
}

func New(s *generate.Service, card ModelCard, v *vectors.API) *API {
	l := &s.Config.Limits
	stop := jsonbody.Text("", l.StopBytes)
	a := &API{s, nil, card,
		s.SharedParams().With(jsonbody.Number("temperature", 0, math.MaxFloat32),
			jsonbody.Either("stop", stop, jsonbody.List("", jsonbody.ManyStops, stop))),
		jsonbody.NewTable(jsonbody.Text("model", 512), jsonbody.Bool("stream"),
			jsonbody.Either("think", jsonbody.Bool(""), jsonbody.Text("", 64)),
			jsonbody.Either("format", jsonbody.ObjectOf(""), jsonbody.Text("", 0)), jsonbody.ObjectOf("options"), jsonbody.Bool("raw"),
			jsonbody.Any("keep_alive"), jsonbody.Any("context"), jsonbody.Any("truncate"), jsonbody.Any("shift"),
			jsonbody.List("messages", l.Messages, jsonbody.ObjectOf("")), jsonbody.List("tools", generate.MaxTools, jsonbody.ObjectOf("")),
			jsonbody.Text("prompt", 0), jsonbody.Text("system", 0)),
		jsonbody.NewTable(jsonbody.Text("model", 512), jsonbody.Text("name", 512), jsonbody.Bool("verbose"), jsonbody.Bool("stream")),
		embedParams(s), v}
	a.peers = []*API{a}
	return a
}

// Introduce makes the APIs of the models of one server known to each other. The first answers the routes
// that have no body.
func Introduce(all []*API) {
	for _, a := range all {
		a.peers = all
	}
}

func (s *API) AddRoutes(h *httpserver.Server) error {
	const get, post = http.MethodGet, http.MethodPost
	named := []string{"model"}
	routes := []httpserver.Route{
		{Method: post, Path: "/api/chat", Handler: s.handleOllama,
			Docs: []httpserver.Doc{{About: "Chat in Ollama's format", Params: s.table.Without("prompt", "system"), Required: named}}},
		{Method: post, Path: "/api/generate", Handler: s.handleOllama,
			Docs: []httpserver.Doc{{About: "Ollama's completion", Params: s.table.Without("messages", "tools"), Required: named}}},
		{Method: get, Path: "/api/tags", Brief: true, Handler: s.handleOllamaTags,
			Docs: []httpserver.Doc{{About: "the names of the model, as Ollama has them", Answer: ollamaModels{}}}},
		{Method: get, Path: "/api/ps", Brief: true, Handler: s.handleOllamaRunning,
			Docs: []httpserver.Doc{{About: "the model that is loaded", Answer: ollamaModels{}}}},
		{Method: get, Path: "/api/version", Brief: true, Handler: s.handleOllamaVersion,
			Docs: []httpserver.Doc{{About: "the version of Ollama whose API this is"}}},
		{Method: post, Path: "/api/show", Handler: httpserver.JSONHandler(h, s.showModel),
			Docs: []httpserver.Doc{{About: "context length, capabilities, template and sizes of a model",
				Params: s.model.Without("stream"), Answer: ollamaShown{}}}},
		{Method: post, Path: "/api/pull", Handler: s.handleOllamaPull,
			Docs: []httpserver.Doc{{About: "success for a model that is served; no other can be fetched",
				Params: s.model.Without("verbose"), Answer: ollamaStatus{}}}},
		{Path: "/api/"}, {Path: "/api/*"}, // unknown ones
	}
	routes = append(routes, s.embedRoutes()...)
	for i := range routes {
		routes[i].Format = Error
	}
	return h.HandleAll(routes)
}

func (s *API) handleOllama(w http.ResponseWriter, r *http.Request) {
	shape := ollamaShape{chat: r.URL.Path == "/api/chat"}
	g, ok := httpserver.DecodeBody(s.HTTP, w, r, func(ctx context.Context, body []byte) (*generate.Request, *apierr.Error) {
		shape.began = time.Now()
		return s.decodeOllama(ctx, body, &shape)
	})
	switch {
	case !ok:
	case g == nil: // no prompt: a client requests that the model be loaded, and it is, or unloaded, and it stays
		out := shape.line("", "", nil)
		if out.Done, out.Reason = true, "load"; shape.unload {
			out.Reason = "unload"
		}
		s.HTTP.WriteJSON(w, http.StatusOK, out)
	default:
		s.Generate(w, r, g)
	}
}

// decodeOllama decodes the body of POST /api/chat or /api/generate; nil: it has no prompt.
func (s *API) decodeOllama(ctx context.Context, body []byte, shape *ollamaShape) (*generate.Request, *apierr.Error) {
	f, e := jsonbody.Parse(body, s.table)
	if e != nil {
		return nil, e
	}
	streaming, raw := true, false
	f.Text("model", &shape.model)
	f.Boolean("stream", &streaming)
	f.Boolean("raw", &raw)
	shape.unload = isZeroTime(f.Get("keep_alive"))
	f.Ignore("context", "truncate", "shift") // they change nothing of an answer
	for _, name := range [...]string{"images", "suffix", "template"} {
		if v := f.Unlisted(name); v != nil && !jsonbody.EmptyValue(v) {
			f.Fail(apierr.InvalidCode(name, "unsupported_parameter", "'%s' is not supported.", name))
		}
	}
	if shape.model == "" {
		f.Fail(apierr.InvalidCode("model", "missing_required_parameter", "'model' is required."))
	}
	if f.Err != nil {
		return nil, f.Err
	}
	shape.model = s.ollamaName(shape.model)
	in := &ollamaRequest{f: f, raw: raw || s.Template == nil && !shape.chat, params: jsonbody.NewObject(s.shared)}
	in.params.Set("model", jsonbody.MustJSON(shape.model), "model")
	in.params.Set("stream", jsonbody.MustJSON(streaming), "stream")
	ignored, e := ollamaOptions(f.Get("options"), in.params)
	if e != nil {
		return nil, e
	}
	switch v := f.Get("format"); {
	case v == nil || string(v) == `""`:
	case string(v) == `"json"`:
		in.params.Raw["response_format"] = jsonbody.MustJSON(map[string]any{"type": "json_object"})
	default:
		in.params.Raw["response_format"] = jsonbody.MustJSON(map[string]any{"type": "json_schema",
			"json_schema": map[string]any{"name": "format", "schema": v}})
	}
	var g *generate.Request
	if shape.chat {
		g, e = s.decodeMessages(ctx, in)
	} else {
		g, e = s.decodePrompt(ctx, in)
	}
	if g == nil && e == nil {
		p := generate.Params{Model: shape.model}
		e = s.CheckModel(&p)
	}
	if g == nil || e != nil {
		return nil, e
	}
	g.Ignored = append(g.Ignored, s.Ignored(f)...)
	g.Ignored = append(g.Ignored, ignored...)
	if f.Err != nil {
		return nil, f.Err
	}
	g.NewEncoder = func(r *generate.Run, out *httpserver.Stream) generate.Encoder {
		return &encoder{ollamaShape: *shape, r: r, out: httpserver.NewNDJSON(out)}
	}
	return g, nil
}

// ollamaRequest is a body whose options were read.
type ollamaRequest struct {
	f      *jsonbody.Object // the body
	params *jsonbody.Object // its parameters, under OpenAI's names
	raw    bool             // the prompt goes to the model without a template
}

// decodeMessages decodes the messages of a request. It returns nil if there are none.
func (s *API) decodeMessages(ctx context.Context, in *ollamaRequest) (*generate.Request, *apierr.Error) {
	list, left, e := ollamaMessages(in.f.Get("messages"), s.Config.Limits)
	if list == nil || e != nil {
		return nil, e
	}
	if v := in.f.Get("tools"); v != nil {
		in.params.Raw["tools"] = v
	}
	return s.newChat(ctx, in, list, left)
}

// newChat makes the request of a chat from its messages.
func (s *API) newChat(ctx context.Context, in *ollamaRequest, list []engine.Message, left []string) (*generate.Request, *apierr.Error) {
	p := in.params
	p.Table = s.shared.With(generate.ToolParams()...)
	g := s.NewGeneration(ctx, p)
	p.Fail(s.CheckModel(&g.Params))
	tools, e := s.ParseTools(p)
	if p.Fail(e); p.Err != nil {
		return nil, p.Err
	}
	c := generate.Chat{Left: left}
	c.Messages, c.AddGenerationPrompt = list, true
	if s.think(&c.Conversation, in.f); in.f.Err != nil {
		return nil, in.f.Err
	}
	g.Tools, g.Ignored = tools, left
	g.Head = s.NewHead("chatcmpl-", "chat.completion", g.Model)
	return g, s.Converse(ctx, g, c)
}

// think applies the member think: true, false, or a level, which is the reasoning effort.
func (s *API) think(c *engine.Conversation, f *jsonbody.Object) {
	var yes bool
	var level string
	if v := f.Get("think"); v != nil && v[0] == '"' {
		f.Text("think", &level)
		s.Effort(c, level)
	} else if f.Boolean("think", &yes) && s.Thinks {
		c.Think(yes)
	}
}

// decodePrompt decodes the prompt of a request, a chat of one message unless it is raw; nil: there
// is none.
func (s *API) decodePrompt(ctx context.Context, in *ollamaRequest) (*generate.Request, *apierr.Error) {
	f, p := in.f, in.params
	var text, system string
	f.Text("prompt", &text)
	f.Text("system", &system)
	if text == "" || f.Err != nil {
		return nil, f.Err
	}
	if !in.raw {
		list := []engine.Message{{Role: "user", Content: text}}
		if system != "" {
			list = append([]engine.Message{{Role: "system", Content: system}}, list...)
		}
		return s.newChat(ctx, in, list, nil)
	}
	if !s.Thinks {
		f.Ignore("think") // it changes nothing of an answer
	}
	if p.Raw["max_tokens"] == nil {
		p.Raw["max_tokens"] = json.RawMessage("-1")
	}
	g := s.NewGeneration(ctx, p)
	g.Continues = true
	if p.Fail(s.CheckModel(&g.Params)); p.Err != nil {
		return nil, p.Err
	}
	one, e := s.EncodePrompt(tokenizer.WithSearches(ctx), system+text, true)
	if e != nil {
		return nil, e
	}
	g.Head = s.NewHead("cmpl-", "text_completion", g.Model)
	return g, s.SetPrompts(g, []generate.Prompt{one})
}

// Error returns an error in Ollama's form.
func Error(e *apierr.Error) any { return map[string]string{"error": e.Message} }

type ollamaCall struct {
	Function struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	} `json:"function"`
}

type ollamaMessage struct {
	Role     string       `json:"role"`
	Content  string       `json:"content"`
	Thinking string       `json:"thinking,omitempty"`
	Calls    []ollamaCall `json:"tool_calls,omitempty"`
}

// ollamaLine is one object of an answer; durations are in nanoseconds.
type ollamaLine struct {
	Model    string         `json:"model"`
	Created  time.Time      `json:"created_at"`
	Message  *ollamaMessage `json:"message,omitempty"`
	Response *string        `json:"response,omitempty"`
	Thinking string         `json:"thinking,omitempty"`
	Done     bool           `json:"done"`
	Reason   string         `json:"done_reason,omitempty"`
	*ollamaTimes
}

type ollamaTimes struct {
	Total       time.Duration `json:"total_duration"`
	Load        time.Duration `json:"load_duration"`
	PromptCount int           `json:"prompt_eval_count"`
	PromptTime  time.Duration `json:"prompt_eval_duration"`
	Count       int           `json:"eval_count"`
	Time        time.Duration `json:"eval_duration"`
}

// ollamaShape writes the objects of one answer.
type ollamaShape struct {
	model  string
	chat   bool
	unload bool // keep_alive is 0
	began  time.Time
}

// isZeroTime reports whether a keep_alive is no time: a number of seconds, or a text such as "5m".
func isZeroTime(v json.RawMessage) bool {
	if text := jsonbody.StringOf(v); text != "" {
		d, err := time.ParseDuration(text)
		return err == nil && d == 0
	}
	var seconds float64
	return v != nil && jsonbody.Unmarshal(v, &seconds) == nil && seconds == 0
}

func (o ollamaShape) line(text, thought string, calls []ollamaCall) *ollamaLine {
	l := &ollamaLine{Model: o.model, Created: time.Now().UTC()}
	if o.chat {
		l.Message = &ollamaMessage{Role: "assistant", Content: text, Thinking: thought, Calls: calls}
	} else {
		l.Response, l.Thinking = &text, thought
	}
	return l
}

// encoder makes one answer, as the lines of a stream or as one body.
type encoder struct {
	ollamaShape
	r             *generate.Run
	out           httpserver.NDJSON
	text, thought strings.Builder
	calls         []ollamaCall
	first         time.Time // when something was there to show
	last          generate.Delta
}

func (o *encoder) Delta(d generate.Delta) {
	if o.first.IsZero() {
		o.first = time.Now()
	}
	o.last = d
	o.text.WriteString(d.Text)
	o.thought.WriteString(d.Thought)
	for _, c := range d.Calls {
		if c.Name != "" {
			o.calls = append(o.calls, ollamaCall{})
			o.calls[len(o.calls)-1].Function.Name = c.Name
		}
		if n := len(o.calls); n > 0 {
			f := &o.calls[n-1].Function
			f.Arguments = append(f.Arguments, c.Arguments...)
		}
	}
	if d.Text != "" || d.Thought != "" {
		o.out.Line(o.line(d.Text, d.Thought, nil))
	}
}

// KeepAlive sends a delta without text: Ollama's clients append it to their text.
func (o *encoder) KeepAlive() { o.out.Line(o.line("", "", nil)) }

func (o *encoder) End() {
	o.calls = slices.DeleteFunc(o.calls, func(c ollamaCall) bool {
		args := c.Function.Arguments
		cut := !json.Valid(args)
		if text := string(args); cut && text != "" { // clients want an object, and run every call
			o.text.WriteString(text)
			o.out.Line(o.line(text, "", nil))
		}
		return cut
	})
	if len(o.calls) > 0 {
		o.out.Line(o.line("", "", o.calls))
	}
	o.out.Line(o.ends(o.line("", "", nil)))
}

func (o *encoder) Body() any {
	return o.ends(o.line(o.text.String(), o.thought.String(), o.calls))
}

func (o *encoder) Fail(e *apierr.Error) { o.out.Line(Error(e)) }

// ends completes the last object. A stop string ends a sequence before the engine has its timings. Then
// the times are those of the shown text.
func (o *encoder) ends(l *ollamaLine) *ollamaLine {
	now, u := time.Now(), o.r.Usage()
	t := &ollamaTimes{Total: now.Sub(o.began), PromptCount: u.PromptTokens, Count: u.CompletionTokens,
		PromptTime: o.first.Sub(o.began), Time: now.Sub(o.first)}
	if x := o.last.Timings; x != nil {
		t.PromptTime, t.Time = x.Prefill, x.Decode
	}
	l.Done, l.Reason, l.ollamaTimes = true, "stop", t
	if o.last.Finish == engine.FinishLength {
		l.Reason = "length"
	}
	return l
}
