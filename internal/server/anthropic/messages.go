package anthropic

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/generate"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
	"github.com/shoal-llm/shoal/internal/server/turns"
	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

type API struct {
	*generate.Service
	shared *jsonbody.Table // of OpenAI's names
	table  *jsonbody.Table // of a request
}

func New(s *generate.Service) *API {
	l := &s.Config.Limits
	stops := jsonbody.List("", jsonbody.ManyStops, jsonbody.Text("", l.StopBytes))
	shared := s.SharedParams().With(jsonbody.Either("stop", stops))
	table := shared.Renamed(messagesWords).With(stops.Renamed("stop_sequences"), shared.Of("max_tokens").Renamed("max_tokens"),
		jsonbody.List("messages", l.Messages, jsonbody.ObjectOf("")),
		jsonbody.Either("system", jsonbody.Text("", 0), jsonbody.List("", l.Parts, jsonbody.ObjectOf(""))),
		jsonbody.List("tools", generate.MaxTools, jsonbody.ObjectOf("")), jsonbody.ObjectOf("tool_choice"), jsonbody.ObjectOf("thinking"),
		jsonbody.ObjectOf("output_config"), jsonbody.Any("metadata"), jsonbody.Any("service_tier"))
	return &API{s, shared, table}
}

func (s *API) AddRoutes(h *httpserver.Server) error {
	const post = http.MethodPost
	return h.HandleAll([]httpserver.Route{
		{Method: post, Path: "/v1/messages", Format: Error, Handler: s.GenerateHandler(s.decodeMessagesBody),
			Docs: []httpserver.Doc{{About: "Anthropic's Messages", Params: s.table, Required: []string{"messages", "max_tokens"},
				Answer: message{}, Events: jsonbody.Schema{}}}},
		{Method: post, Path: "/v1/messages/count_tokens", Format: Error, Handler: httpserver.JSONHandler(h, s.countTokens),
			Docs: []httpserver.Doc{{About: "tokens of a message's prompt", Params: s.table.Pick("model", "messages", "system", "tools",
				"tool_choice", "thinking", "output_config"), Required: []string{"messages"}, Answer: messageTokens{}}}},
		{Path: "/v1/messages/*", Format: Error}, // unknown ones
	})
}

type messageTokens struct {
	Tokens int `json:"input_tokens"`
}

// countTokens counts the prompt tokens of a request.
func (s *API) countTokens(ctx context.Context, body []byte) (*messageTokens, *apierr.Error) {
	f, e := jsonbody.Parse(body, s.table)
	if e != nil {
		return nil, e
	}
	p := generate.Params{}
	f.Text("model", &p.Model)
	f.Fail(s.CheckModel(&p))
	c := s.messagesTalk(f)
	tools, _ := messagesTools(f)
	if f.Err != nil {
		return nil, f.Err
	}
	ids, _, e := s.ChatPrompt(tokenizer.WithSearches(ctx), c, tools.Callable())
	return &messageTokens{len(ids)}, e
}

// messagesWords maps parameters of Messages to those of a chat.
var messagesWords = map[string]string{"model": "model", "stream": "stream", "temperature": "temperature",
	"top_p": "top_p", "top_k": "top_k",
	"stop_sequences": "stop", "output_format": "response_format", "kv_policy": "kv_policy", "seed": "seed",
	"min_p": "min_p", "cache_salt": "cache_salt"}

// decodeMessagesBody decodes the body of POST /v1/messages.
func (s *API) decodeMessagesBody(ctx context.Context, body []byte) (*generate.Request, *apierr.Error) {
	f, e := jsonbody.Parse(body, s.table)
	if e != nil {
		return nil, e
	}
	most := 0
	if !f.TokenLimit("max_tokens", &most) && f.Err == nil {
		f.Fail(apierr.InvalidCode("max_tokens", "missing_required_parameter", "'max_tokens' is required."))
	} else if most == 0 {
		f.Fail(apierr.Invalid("max_tokens", "'max_tokens' must be at least 1, or -1 for as many as there is room for."))
	}
	words := f.As(messagesWords, s.shared)
	config := f.Object("output_config")
	if config != nil {
		if format := config.Get("format"); format != nil {
			words.Set("response_format", format, "output_config.format")
		}
		config.Ignore("effort") // messagesTalk reads it
	}
	g := &generate.Request{Params: s.ParseParams(words), PromptLogprobs: -1, StopsInAnswer: true,
		NewEncoder: func(r *generate.Run, out *httpserver.Stream) generate.Encoder {
			return &encoder{r: r, out: httpserver.NewSSE(out)}
		}}
	f.Fail(words.Err)
	f.Fail(s.CheckModel(&g.Params))
	c := s.messagesTalk(f)
	tools, servers := messagesTools(f)
	g.Tools = tools
	f.Ignore("metadata", "service_tier") // they change nothing of an answer
	g.Ignored = append(s.Ignored(f), append(servers, c.Left...)...)
	if config != nil {
		for _, name := range s.Ignored(config) {
			g.Ignored = append(g.Ignored, "output_config."+name)
		}
		f.FailWithin("output_config", config)
	}
	if s.CheckServerTools(f, servers); f.Err != nil {
		return nil, f.Err
	}
	g.MaxTokens, g.Continues = most, c.ContinueFinal
	if e := s.Converse(ctx, g, c); e != nil {
		return nil, e
	}
	g.Head = s.NewHead("msg_", "message", g.Model)
	return g, nil
}

// messagesTalk reads the conversation of Messages. Errors are left in f.
func (s *API) messagesTalk(f *jsonbody.Object) (c generate.Chat) {
	if f.Err != nil {
		return c
	}
	c.AddGenerationPrompt, c.Merge = true, true
	c.Offered = "output_config.effort" // Claude Code sends one that not all templates know
	r := messageReader{turns.Reader{Limits: s.Config.Limits}}
	if system := r.system(f.Get("system")); system != "" {
		c.Messages = append(c.Messages, engine.Message{Role: "system", Content: system})
	}
	list, e := turns.List(f.Get("messages"), s.Config.Limits)
	r.Fail(e)
	last := turns.NewestOfUser(turns.Roles(list), true)
	for i, raw := range list {
		if r.Err == nil {
			c.Messages = append(c.Messages, r.turnsOf("messages["+strconv.Itoa(i)+"]", raw, i == last)...)
		}
	}
	f.Fail(r.Err)
	c.Left = r.Omitted
	if n := len(c.Messages) - 1; n >= 0 && c.Messages[n].Role == "assistant" {
		c.ContinueFinal = c.Messages[n].Calls == nil && strings.TrimSpace(c.Messages[n].Content) != ""
		c.AddGenerationPrompt = !c.ContinueFinal
	}
	var thinking struct {
		Type string `json:"type"`
	}
	if v := f.Get("thinking"); v != nil && jsonbody.Unmarshal(v, &thinking) != nil {
		f.Fail(apierr.Invalid("thinking", "'thinking' must be {\"type\": \"enabled\", \"budget_tokens\": N} or {\"type\": \"disabled\"}."))
	}
	if s.Thinks {
		c.Think(thinking.Type == "enabled" || thinking.Type == "adaptive")
	}
	if o := f.Object("output_config"); o != nil {
		var effort string
		if v := o.Get("effort"); v != nil && jsonbody.Unmarshal(v, &effort) != nil {
			f.Fail(apierr.Invalid("output_config.effort", "'output_config.effort' must be a string."))
		}
		s.Effort(&c.Conversation, effort)
	}
	return c
}

// messageReader reads the turns of Messages.
type messageReader struct{ turns.Reader }

// system joins the blocks of a system prompt. It drops header blocks that some clients add
// (x-anthropic-billing-header, with a new value each time): they are not for the model, and would
// defeat the prefix cache.
func (c *messageReader) system(v json.RawMessage) string {
	if v == nil || v[0] != '[' {
		return c.Text("system", v)
	}
	var texts []string
	c.Fail(jsonbody.Elements("system", "blocks", v, c.Limits.Parts, func(i int, raw json.RawMessage) *apierr.Error {
		if text, ok := c.Part("system["+strconv.Itoa(i)+"]", raw); ok && !strings.HasPrefix(text, "x-anthropic-") {
			texts = append(texts, text)
		}
		return c.Err
	}))
	return strings.Join(texts, "\n")
}

// turnsOf returns the turns of one message: each result of a tool is a turn of its own. now: the
// message is the newest one of the user.
func (c *messageReader) turnsOf(at string, raw json.RawMessage, now bool) []engine.Message {
	c.Newest = now
	var m struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	}
	if raw[0] != '{' || jsonbody.Unmarshal(raw, &m) != nil {
		c.Fail(apierr.Invalid(at, "'%s' must be an object with 'role' and 'content'.", at))
		return nil
	}
	if m.Role != "user" && m.Role != "assistant" && m.Role != "system" {
		c.Fail(apierr.Invalid(at+".role", "'%s.role' must be user or assistant, got %.40q.", at, m.Role))
		return nil
	}
	if jsonbody.IsNull(m.Content) || m.Content[0] != '[' {
		return []engine.Message{{Role: m.Role, Content: c.Text(at+".content", m.Content)}}
	}
	var turns []engine.Message
	var texts, thoughts []string
	var calls []generate.ToolCall
	c.Fail(jsonbody.Elements(at+".content", "blocks", m.Content, c.Limits.Parts, func(i int, raw json.RawMessage) *apierr.Error {
		here := at + ".content[" + strconv.Itoa(i) + "]"
		var b struct {
			Type     string          `json:"type"`
			Thinking string          `json:"thinking"`
			ID       string          `json:"id"`
			Name     string          `json:"name"`
			Input    json.RawMessage `json:"input"`
			Use      string          `json:"tool_use_id"`
			Content  json.RawMessage `json:"content"`
			Failed   bool            `json:"is_error"`
		}
		if err := jsonbody.Unmarshal(raw, &b); err != nil && knownBlocks[b.Type] { // others may have members of any form
			return apierr.Invalid(here, "'%s' must be a content block, an object with a 'type'.", here)
		}
		switch {
		case b.Type == "thinking" && m.Role == "assistant":
			thoughts = append(thoughts, b.Thinking)
		case b.Type == "redacted_thinking":
		case b.Type == "tool_use" && m.Role == "assistant" && b.Name != "":
			args := "{}"
			if !jsonbody.IsNull(b.Input) {
				args = jsonbody.CompactJSON(b.Input)
			}
			calls = append(calls, generate.Call{Name: b.Name, Arguments: []byte(args), Id: b.ID}.ToolCall())
		case b.Type == "tool_result" && m.Role == "user":
			c.Newest = false // a tool wrote it, not the user
			text := c.Text(here+".content", b.Content)
			if c.Newest = now; b.Failed {
				text = "Error: " + text
			}
			turns = append(turns, engine.Message{Role: "tool", CallID: b.Use, Content: text})
		default:
			if text, ok := c.Part(here, raw); ok {
				texts = append(texts, text)
			}
		}
		return c.Err
	}))
	if len(texts) == 0 && len(calls) == 0 && len(turns) > 0 {
		return turns
	}
	turn := engine.Message{Role: m.Role, Content: strings.Join(texts, "\n"), Thought: strings.Join(thoughts, "\n")}
	if len(calls) > 0 {
		turn.Calls, turn.Empty = jsonbody.MustJSON(calls), len(texts) == 0
	}
	return append(turns, turn)
}

// knownBlocks are the blocks whose members are read by their names.
var knownBlocks = map[string]bool{"thinking": true, "tool_use": true, "tool_result": true}

// messagesTools reads the tools of Messages; errors are left in f. It leaves out tools that a
// server runs, and returns their places: the model need not call them.
func messagesTools(f *jsonbody.Object) (t *generate.Toolset, servers []string) {
	if f.Err != nil {
		return nil, nil
	}
	t, e := generate.ToolsOf(f.Get("tools"), func(t *generate.Toolset, at string, raw json.RawMessage) *apierr.Error {
		var x struct {
			Type string `json:"type"`
			generate.Tool
			Schema json.RawMessage `json:"input_schema"`
		}
		err := jsonbody.Unmarshal(raw, &x)
		if raw[0] == '{' && x.Type != "" && x.Type != "custom" { // whose members may be of any form
			servers = append(servers, at)
			return nil
		}
		if raw[0] != '{' || err != nil || x.Name == "" {
			return apierr.Invalid(at, "'%s' must be {\"name\", \"description\", \"input_schema\"}.", at)
		}
		x.Parameters = x.Schema
		return t.Add(at, x.Tool)
	})
	if f.Fail(e); e != nil {
		return nil, nil
	}
	if t != nil {
		t.Render()
	}
	choice := f.Get("tool_choice")
	if choice == nil {
		t, e = t.Choose("", "")
		f.Fail(e)
		return t, servers
	}
	var c struct {
		Type   string `json:"type"`
		Name   string `json:"name"`
		Single bool   `json:"disable_parallel_tool_use"`
	}
	how, known := "", false
	if choice[0] == '{' && jsonbody.Unmarshal(choice, &c) == nil {
		how, known = map[string]string{"auto": "auto", "none": "none", "any": "required", "tool": "function"}[c.Type]
	}
	if !known {
		f.Fail(apierr.Invalid("tool_choice", "'tool_choice' must be an object whose 'type' is auto, any, tool or none."))
		return nil, nil
	}
	if t != nil {
		t.Single = c.Single
	}
	t, e = t.Choose(how, c.Name)
	f.Fail(e)
	return t, servers
}
