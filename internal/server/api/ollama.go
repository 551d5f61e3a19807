package api

import (
	"context"
	"encoding/json"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

// Ollama's API, as far as its clients need it to chat: a request is put into the words of a
// chat, or of a completion when it is raw, and takes the way of one from there; answers and
// streams, a JSON object a line, are put into Ollama's words.

type ollamaAPI struct {
	*Service
	card   ModelCard
	shared *Table // of OpenAI's names, in Ollama's bounds
	table  *Table // of chats and completions
	model  *Table // of requests about a model
}

func newOllama(s *Service, card ModelCard) *ollamaAPI {
	l := &s.cfg.Limits
	stop := textParam("", l.StopBytes)
	return &ollamaAPI{s, card,
		s.sharedParams().With(numberParam("temperature", 0, math.MaxFloat32), eitherParam("stop", stop, listParam("", manyStops, stop))),
		NewTable(textParam("model", 512), boolParam("stream"), anyParam("think"), eitherParam("format", objectParam(""), textParam("", 0)), objectParam("options"), boolParam("raw"),
			anyParam("keep_alive"), anyParam("context"), anyParam("truncate"), anyParam("shift"),
			listParam("messages", l.Messages, objectParam("")), listParam("tools", maxTools, objectParam("")), textParam("prompt", 0), textParam("system", 0)),
		NewTable(textParam("model", 512), textParam("name", 512), boolParam("verbose"), boolParam("stream"))}
}

func (s *ollamaAPI) addRoutes(h *HTTP) error {
	const get, post = http.MethodGet, http.MethodPost
	named := []string{"model"}
	routes := []Route{
		{Method: post, Path: "/api/chat", Handler: s.handleOllama, Docs: []Doc{{About: "Ollama's chat", Params: s.table.Without("prompt", "system"), Required: named}}},
		{Method: post, Path: "/api/generate", Handler: s.handleOllama, Docs: []Doc{{About: "Ollama's completion", Params: s.table.Without("messages", "tools"), Required: named}}},
		{Method: get, Path: "/api/tags", Brief: true, Handler: s.handleOllamaTags, Docs: []Doc{{About: "the names of the model, as Ollama has them", Answer: ollamaModels{}}}},
		{Method: get, Path: "/api/ps", Brief: true, Handler: s.handleOllamaRunning, Docs: []Doc{{About: "the model that is loaded", Answer: ollamaModels{}}}},
		{Method: get, Path: "/api/version", Brief: true, Handler: s.handleOllamaVersion, Docs: []Doc{{About: "the version of Ollama whose API this is"}}},
		{Method: post, Path: "/api/show", Handler: jsonHandler(h, s.showModel),
			Docs: []Doc{{About: "context length, capabilities, template and sizes of a model", Params: s.model.Without("stream"), Answer: ollamaShown{}}}},
		{Method: post, Path: "/api/pull", Handler: s.handleOllamaPull,
			Docs: []Doc{{About: "success for a model that is served; no other can be fetched", Params: s.model.Without("verbose"), Answer: ollamaStatus{}}}},
		{Path: "/api/"}, {Path: "/api/*"}, // unknown ones
	}
	for i := range routes {
		routes[i].Format = ollamaError
	}
	return h.HandleAll(routes)
}

func (s *ollamaAPI) handleOllama(w http.ResponseWriter, r *http.Request) {
	shape := ollamaShape{chat: r.URL.Path == "/api/chat"}
	g, ok := decodeBody(s.http, w, r, func(ctx context.Context, body []byte) (*generation, *apiError) {
		shape.began = time.Now()
		return s.decodeOllama(ctx, body, &shape)
	})
	switch {
	case !ok:
	case g == nil: // nothing to answer: a client asks for the model to be loaded, and it is
		out := shape.line("", "", nil)
		out.Done, out.Reason = true, "load"
		s.http.writeJSON(w, http.StatusOK, out)
	default:
		s.generate(w, r, g)
	}
}

// decodeOllama turns the body of POST /api/chat or /api/generate into a generation; nil: it
// asks for nothing.
func (s *ollamaAPI) decodeOllama(ctx context.Context, body []byte, shape *ollamaShape) (*generation, *apiError) {
	f, e := parseFields(body, s.table)
	if e != nil {
		return nil, e
	}
	streaming, raw := true, false
	f.str("model", &shape.model)
	f.boolean("stream", &streaming)
	f.boolean("raw", &raw)
	f.ignore("keep_alive", "context", "truncate", "shift") // they change nothing of an answer
	for _, name := range [...]string{"images", "suffix", "template"} {
		if v := f.unlisted(name); v != nil && !emptyValue(v) {
			f.fail(invalidCode(name, "unsupported_parameter", "'%s' is not supported.", name))
		}
	}
	if shape.model == "" {
		f.fail(invalidCode("model", "missing_required_parameter", "'model' is required."))
	}
	if f.err != nil {
		return nil, f.err
	}
	shape.model = s.ollamaName(shape.model)
	in := &ollamaRequest{f: f, raw: raw || s.tmpl == nil && !shape.chat, params: newFields(s.shared)}
	in.params.set("model", mustJSON(shape.model), "model")
	in.params.set("stream", mustJSON(streaming), "stream")
	ignored, e := ollamaOptions(f.get("options"), in.params)
	if e != nil {
		return nil, e
	}
	switch v := f.get("format"); {
	case v == nil || string(v) == `""`:
	case string(v) == `"json"`:
		in.params.raw["response_format"] = mustJSON(map[string]any{"type": "json_object"})
	default:
		in.params.raw["response_format"] = mustJSON(map[string]any{"type": "json_schema", "json_schema": map[string]any{"name": "format", "schema": v}})
	}
	var g *generation
	if shape.chat {
		g, e = s.decodeMessages(ctx, in)
	} else {
		g, e = s.decodePrompt(ctx, in)
	}
	if g == nil || e != nil {
		return nil, e
	}
	g.ignored = append(g.ignored, s.ignored(f)...)
	g.ignored = append(g.ignored, ignored...)
	if f.err != nil {
		return nil, f.err
	}
	g.newEncoder = func(r *run, out *Stream) encoder {
		return &ollamaEncoder{ollamaShape: *shape, r: r, out: newNDJSON(out)}
	}
	return g, nil
}

// ollamaRequest is a body of which the options were read.
type ollamaRequest struct {
	f      *fields // the body
	params *fields // its parameters, under OpenAI's names
	raw    bool    // the prompt goes to the model as it is
}

// decodeMessages answers the messages of a request; nil: there are none.
func (s *ollamaAPI) decodeMessages(ctx context.Context, in *ollamaRequest) (*generation, *apiError) {
	list, left, e := ollamaMessages(in.f.get("messages"), s.cfg.Limits)
	if list == nil || e != nil {
		return nil, e
	}
	if v := in.f.get("tools"); v != nil {
		in.params.raw["tools"] = v
	}
	return s.newChat(ctx, in, list, left)
}

// newChat answers messages.
func (s *ollamaAPI) newChat(ctx context.Context, in *ollamaRequest, list []Message, left []string) (*generation, *apiError) {
	p := in.params
	p.table = s.shared.With(toolParams()...)
	g := s.newGeneration(ctx, p)
	p.fail(s.checkModel(&g.params))
	tools, e := s.parseTools(p)
	if p.fail(e); p.err != nil {
		return nil, p.err
	}
	c := talk{left: left}
	c.Messages, c.AddGenerationPrompt = list, true
	if v := in.f.get("think"); v != nil && s.thinks {
		c.think(string(v) != "false")
	}
	g.tools, g.ignored = tools, left
	g.head = s.newHead("chatcmpl-", "chat.completion", g.model)
	return g, s.converse(ctx, g, c)
}

// decodePrompt answers the prompt of a request, which is a chat of one message unless it is
// raw; nil: there is none.
func (s *ollamaAPI) decodePrompt(ctx context.Context, in *ollamaRequest) (*generation, *apiError) {
	f, p := in.f, in.params
	var text, system string
	f.str("prompt", &text)
	f.str("system", &system)
	if text == "" || f.err != nil {
		return nil, f.err
	}
	if !in.raw {
		list := []Message{{Role: "user", Content: text}}
		if system != "" {
			list = append([]Message{{Role: "system", Content: system}}, list...)
		}
		return s.newChat(ctx, in, list, nil)
	}
	if !s.thinks {
		f.ignore("think") // it changes nothing of an answer
	}
	if p.raw["max_tokens"] == nil {
		p.raw["max_tokens"] = json.RawMessage("-1")
	}
	g := s.newGeneration(ctx, p)
	g.continues = true
	if p.fail(s.checkModel(&g.params)); p.err != nil {
		return nil, p.err
	}
	one, e := s.encodePrompt(tokenizer.WithSearches(ctx), system+text, true)
	if e != nil {
		return nil, e
	}
	g.head = s.newHead("cmpl-", "text_completion", g.model)
	return g, s.setPrompts(g, []prompt{one})
}

// ollamaError is an error in Ollama's words.
func ollamaError(e *apiError) any { return map[string]string{"error": e.message} }

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
	model string
	chat  bool
	began time.Time
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

// ollamaEncoder makes one answer, as the lines of a stream or as one body.
type ollamaEncoder struct {
	ollamaShape
	r             *run
	out           ndjson
	text, thought strings.Builder
	calls         []ollamaCall
	first         time.Time // when something was there to show
	last          delta
}

func (o *ollamaEncoder) delta(d delta) {
	if o.first.IsZero() {
		o.first = time.Now()
	}
	o.last = d
	o.text.WriteString(d.text)
	o.thought.WriteString(d.thought)
	for _, c := range d.calls {
		if c.name != "" {
			o.calls = append(o.calls, ollamaCall{})
			o.calls[len(o.calls)-1].Function.Name = c.name
		}
		if n := len(o.calls); n > 0 {
			f := &o.calls[n-1].Function
			f.Arguments = append(f.Arguments, c.arguments...)
		}
	}
	if d.text != "" || d.thought != "" {
		o.out.line(o.line(d.text, d.thought, nil))
	}
}

// keepAlive sends a delta without text: Ollama's clients add it to what they have.
func (o *ollamaEncoder) keepAlive() { o.out.line(o.line("", "", nil)) }

func (o *ollamaEncoder) end() {
	for i := range o.calls {
		if f := &o.calls[i].Function; len(f.Arguments) == 0 {
			f.Arguments = json.RawMessage("{}")
		} else if !json.Valid(f.Arguments) { // of a call that was cut off
			f.Arguments = mustJSON(string(f.Arguments))
		}
	}
	if len(o.calls) > 0 {
		o.out.line(o.line("", "", o.calls))
	}
	o.out.line(o.ends(o.line("", "", nil)))
}

func (o *ollamaEncoder) body() any {
	return o.ends(o.line(o.text.String(), o.thought.String(), o.calls))
}

func (o *ollamaEncoder) fail(e *apiError) { o.out.line(ollamaError(e)) }

// ends completes the last object. A stop string ends a sequence before the engine has its
// timings: then they are those of what was shown.
func (o *ollamaEncoder) ends(l *ollamaLine) *ollamaLine {
	now, u := time.Now(), o.r.usage()
	t := &ollamaTimes{Total: now.Sub(o.began), PromptCount: u.PromptTokens, Count: u.CompletionTokens, PromptTime: o.first.Sub(o.began), Time: now.Sub(o.first)}
	if x := o.last.timings; x != nil {
		t.PromptTime, t.Time = x.Prefill, x.Decode
	}
	l.Done, l.Reason, l.ollamaTimes = true, "stop", t
	if o.last.finish == FinishLength {
		l.Reason = "length"
	}
	return l
}
