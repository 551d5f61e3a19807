package api

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

// Anthropic's Messages API. A request is put into the words of a chat and takes the way
// of one from there; answers, streams and errors are put into Anthropic's words.

type anthropicAPI struct {
	*Service
	shared *Table // of OpenAI's names
	table  *Table // of a request
}

func newAnthropic(s *Service) *anthropicAPI {
	l := &s.cfg.Limits
	stops := listParam("", manyStops, textParam("", l.StopBytes))
	shared := s.sharedParams().With(eitherParam("stop", stops))
	table := shared.Renamed(messagesWords).With(stops.renamed("stop_sequences"), shared.of("max_tokens").renamed("max_tokens"),
		listParam("messages", l.Messages, objectParam("")), eitherParam("system", textParam("", 0), listParam("", l.Parts, objectParam(""))),
		listParam("tools", maxTools, objectParam("")), objectParam("tool_choice"), objectParam("thinking"),
		objectParam("output_config"), anyParam("metadata"), anyParam("service_tier"))
	return &anthropicAPI{s, shared, table}
}

func (s *anthropicAPI) addRoutes(h *HTTP) error {
	const post = http.MethodPost
	return h.HandleAll([]Route{
		{Method: post, Path: "/v1/messages", Format: messageError, Handler: s.generateHandler(s.decodeMessagesBody),
			Docs: []Doc{{About: "Anthropic's Messages", Params: s.table, Required: []string{"messages", "max_tokens"}, Answer: message{}, Events: Schema{}}}},
		{Method: post, Path: "/v1/messages/count_tokens", Format: messageError, Handler: jsonHandler(h, s.countTokens),
			Docs: []Doc{{About: "tokens of a message's prompt", Params: s.table.Pick("model", "messages", "system", "tools", "tool_choice", "thinking"), Required: []string{"messages"}, Answer: messageTokens{}}}},
		{Path: "/v1/messages/*", Format: messageError}, // unknown ones
	})
}

type messageTokens struct {
	Tokens int `json:"input_tokens"`
}

// countTokens is what a request would read.
func (s *anthropicAPI) countTokens(ctx context.Context, body []byte) (*messageTokens, *apiError) {
	f, e := parseFields(body, s.table)
	if e != nil {
		return nil, e
	}
	p := params{}
	f.str("model", &p.model)
	f.fail(s.checkModel(&p))
	c := s.messagesTalk(f)
	tools, _ := messagesTools(f)
	if f.err != nil {
		return nil, f.err
	}
	ids, _, e := s.chatPrompt(tokenizer.WithSearches(ctx), c, tools.callable())
	return &messageTokens{len(ids)}, e
}

// messagesWords are the parameters that Messages has, in the words of a chat.
var messagesWords = map[string]string{"model": "model", "stream": "stream", "temperature": "temperature", "top_p": "top_p", "top_k": "top_k",
	"stop_sequences": "stop", "output_format": "response_format", "kv_policy": "kv_policy", "seed": "seed", "min_p": "min_p", "cache_salt": "cache_salt"}

// decodeMessagesBody turns the body of POST /v1/messages into a generation.
func (s *anthropicAPI) decodeMessagesBody(ctx context.Context, body []byte) (*generation, *apiError) {
	f, e := parseFields(body, s.table)
	if e != nil {
		return nil, e
	}
	most := 0
	if !f.most("max_tokens", &most) && f.err == nil {
		f.fail(invalidCode("max_tokens", "missing_required_parameter", "'max_tokens' is required."))
	} else if most == 0 {
		f.fail(invalid("max_tokens", "'max_tokens' must be at least 1, or -1 for as many as there is room for."))
	}
	words := f.as(messagesWords, s.shared)
	if o := f.object("output_config"); o != nil {
		if format := o.get("format"); format != nil {
			words.set("response_format", format, "output_config.format")
		}
	}
	g := &generation{params: s.parseParams(words), promptLogprobs: -1, stopsInAnswer: true, newEncoder: func(r *run, out *Stream) encoder { return &messageEncoder{r: r, out: newSSE(out)} }}
	f.fail(words.err)
	f.fail(s.checkModel(&g.params))
	c := s.messagesTalk(f)
	tools, servers := messagesTools(f)
	g.tools = tools
	f.ignore("metadata", "service_tier") // they change nothing of an answer
	g.ignored = append(s.ignored(f), append(servers, c.left...)...)
	if s.checkServerTools(f, servers); f.err != nil {
		return nil, f.err
	}
	g.maxTokens = most
	if e := s.converse(ctx, g, c); e != nil {
		return nil, e
	}
	g.head = s.newHead("msg_", "message", g.model)
	return g, nil
}

// messagesTalk reads the conversation of Messages. Errors are left in f.
func (s *anthropicAPI) messagesTalk(f *fields) (c talk) {
	if f.err != nil {
		return c
	}
	c.AddGenerationPrompt, c.merge = true, true
	r := messageReader{turnReader{lim: s.cfg.Limits}}
	if system := r.system(f.get("system")); system != "" {
		c.Messages = append(c.Messages, Message{Role: "system", Content: system})
	}
	list, e := messageList(f.get("messages"), s.cfg.Limits)
	r.fail(e)
	last := newest(rolesOf(list), true)
	for i, raw := range list {
		if r.err == nil {
			c.Messages = append(c.Messages, r.turnsOf("messages["+strconv.Itoa(i)+"]", raw, i == last)...)
		}
	}
	f.fail(r.err)
	c.left = r.left
	var thinking struct {
		Type string `json:"type"`
	}
	if v := f.get("thinking"); v != nil && unmarshal(v, &thinking) != nil {
		f.fail(invalid("thinking", "'thinking' must be {\"type\": \"enabled\", \"budget_tokens\": N} or {\"type\": \"disabled\"}."))
	}
	if s.thinks {
		c.think(thinking.Type == "enabled" || thinking.Type == "adaptive")
	}
	return c
}

// messageReader reads the turns of Messages.
type messageReader struct{ turnReader }

// system joins the blocks of a system prompt. Blocks of headers that a client puts
// there (x-anthropic-billing-header, with a value that changes every time) are not for the
// model, and would part every prompt from the one before it.
func (c *messageReader) system(v json.RawMessage) string {
	if v == nil || v[0] != '[' {
		return c.text("system", v)
	}
	var texts []string
	c.fail(elements("system", "blocks", v, c.lim.Parts, func(i int, raw json.RawMessage) *apiError {
		if text, ok := c.part("system["+strconv.Itoa(i)+"]", raw); ok && !strings.HasPrefix(text, "x-anthropic-") {
			texts = append(texts, text)
		}
		return c.err
	}))
	return strings.Join(texts, "\n")
}

// turnsOf are the turns of a chat that one message is: results of tools are their own. now says
// that the message is the newest one of the user.
func (c *messageReader) turnsOf(at string, raw json.RawMessage, now bool) []Message {
	c.now = now
	var m struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	}
	if raw[0] != '{' || unmarshal(raw, &m) != nil {
		c.fail(invalid(at, "'%s' must be an object with 'role' and 'content'.", at))
		return nil
	}
	if m.Role != "user" && m.Role != "assistant" && m.Role != "system" {
		c.fail(invalid(at+".role", "'%s.role' must be user or assistant, got %.40q.", at, m.Role))
		return nil
	}
	if isNull(m.Content) || m.Content[0] != '[' {
		return []Message{{Role: m.Role, Content: c.text(at+".content", m.Content)}}
	}
	var turns []Message
	var texts, thoughts []string
	var calls []ToolCall
	c.fail(elements(at+".content", "blocks", m.Content, c.lim.Parts, func(i int, raw json.RawMessage) *apiError {
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
		if err := unmarshal(raw, &b); err != nil && knownBlocks[b.Type] { // others may have members of any form
			return invalid(here, "'%s' must be a content block, an object with a 'type'.", here)
		}
		switch {
		case b.Type == "thinking" && m.Role == "assistant":
			thoughts = append(thoughts, b.Thinking)
		case b.Type == "redacted_thinking":
		case b.Type == "tool_use" && m.Role == "assistant" && b.Name != "":
			args := "{}"
			if !isNull(b.Input) {
				args = compactJSON(b.Input)
			}
			calls = append(calls, madeCall{name: b.Name, arguments: []byte(args), id: b.ID}.toolCall())
		case b.Type == "tool_result" && m.Role == "user":
			c.now = false // a tool wrote it, not the user
			text := c.text(here+".content", b.Content)
			if c.now = now; b.Failed {
				text = "Error: " + text
			}
			turns = append(turns, Message{Role: "tool", CallID: b.Use, Content: text})
		default:
			if text, ok := c.part(here, raw); ok {
				texts = append(texts, text)
			}
		}
		return c.err
	}))
	if len(texts) == 0 && len(calls) == 0 && len(turns) > 0 {
		return turns
	}
	turn := Message{Role: m.Role, Content: strings.Join(texts, "\n"), Thought: strings.Join(thoughts, "\n")}
	if len(calls) > 0 {
		turn.Calls, turn.Empty = mustJSON(calls), len(texts) == 0
	}
	return append(turns, turn)
}

// knownBlocks are the blocks whose members are read by their names.
var knownBlocks = map[string]bool{"thinking": true, "tool_use": true, "tool_result": true}

// messagesTools reads the tools of Messages (errors are left in f), and returns the places of those that a server runs:
// the model may call a tool and need not, so they are left out.
func messagesTools(f *fields) (t *toolset, servers []string) {
	if f.err != nil {
		return nil, nil
	}
	t, e := toolsOf(f.get("tools"), func(t *toolset, at string, raw json.RawMessage) *apiError {
		var x struct {
			Type string `json:"type"`
			tool
			Schema json.RawMessage `json:"input_schema"`
		}
		err := unmarshal(raw, &x)
		if raw[0] == '{' && x.Type != "" && x.Type != "custom" { // whose members may be of any form
			servers = append(servers, at)
			return nil
		}
		if raw[0] != '{' || err != nil || x.Name == "" {
			return invalid(at, "'%s' must be {\"name\", \"description\", \"input_schema\"}.", at)
		}
		x.Parameters = x.Schema
		return t.add(at, x.tool)
	})
	if f.fail(e); e != nil {
		return nil, nil
	}
	if t != nil {
		t.show()
	}
	choice := f.get("tool_choice")
	if choice == nil {
		t, e = t.choose("", "")
		f.fail(e)
		return t, servers
	}
	var c struct {
		Type   string `json:"type"`
		Name   string `json:"name"`
		Single bool   `json:"disable_parallel_tool_use"`
	}
	how, known := "", false
	if choice[0] == '{' && unmarshal(choice, &c) == nil {
		how, known = map[string]string{"auto": "auto", "none": "none", "any": "required", "tool": "function"}[c.Type]
	}
	if !known {
		f.fail(invalid("tool_choice", "'tool_choice' must be an object whose 'type' is auto, any, tool or none."))
		return nil, nil
	}
	if t != nil {
		t.single = c.Single
	}
	t, e = t.choose(how, c.Name)
	f.fail(e)
	return t, servers
}
