package api

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/shoal-llm/shoal/tokenizer"
)

// Anthropic's Messages API. A request is put into the words of a chat and takes the way
// of one from there; answers, streams and errors are put into Anthropic's words.

// countTokens is what a request would read.
func (s *Server) countTokens(ctx context.Context, body []byte) (map[string]int, *apiError) {
	f, e := parseFields(body)
	if e != nil {
		return nil, e
	}
	p := params{}
	if f.str("model", &p.model, 512); f.err != nil {
		return nil, f.err
	}
	if e := s.checkModel(&p); e != nil {
		return nil, e
	}
	c, e := s.messagesTalk(f)
	if e != nil {
		return nil, e
	}
	tools, e := messagesTools(f)
	if e != nil {
		return nil, e
	}
	ids, _, e := s.chatPrompt(tokenizer.WithSearches(ctx), c, tools)
	return map[string]int{"input_tokens": len(ids)}, e
}

// messagesWords are the parameters that Messages has, in the words of a chat.
var messagesWords = map[string]string{"model": "model", "stream": "stream", "temperature": "temperature", "top_p": "top_p", "top_k": "top_k",
	"stop_sequences": "stop", "output_format": "response_format", "kv_policy": "kv_policy", "seed": "seed", "min_p": "min_p", "cache_salt": "cache_salt"}

// decodeMessagesBody turns the body of POST /v1/messages into a generation.
func (s *Server) decodeMessagesBody(ctx context.Context, body []byte) (*generation, *apiError) {
	f, e := parseFields(body)
	if e != nil {
		return nil, e
	}
	var most int64
	if !f.integer("max_tokens", &most, 1, 1<<31-1) && f.err == nil {
		return nil, invalidCode("max_tokens", "missing_required_parameter", "'max_tokens' is required.")
	}
	words := f.as(messagesWords)
	if v := f.get("output_config"); v != nil {
		o, e := parseFields(v)
		if e != nil {
			return nil, invalid("output_config", "'output_config' must be an object.")
		}
		if format := o.get("format"); format != nil {
			words.raw["response_format"], words.spelled["response_format"] = format, "output_config.format"
		}
	}
	g := &generation{params: s.parseParams(words), promptLogprobs: -1, frames: func() framer { return &messageFramer{} }}
	if f.fail(words.err); f.err != nil {
		return nil, f.err
	}
	if e := s.checkModel(&g.params); e != nil {
		return nil, e
	}
	c, e := s.messagesTalk(f)
	if e != nil {
		return nil, e
	}
	if g.tools, e = messagesTools(f); e != nil {
		return nil, e
	}
	f.read["metadata"], f.read["service_tier"] = true, true // they change nothing of an answer
	if g.ignored, e = s.ignored(f); e != nil {
		return nil, e
	}
	if e := s.converse(ctx, g, c); e != nil {
		return nil, e
	}
	g.maxTokens = min(g.maxTokens, int(most)) // clients ask for more than small contexts hold
	g.head = s.newHead("msg_", "message", g.model)
	return g, nil
}

// messagesTalk reads the conversation of Messages.
func (s *Server) messagesTalk(f *fields) (c talk, e *apiError) {
	for _, name := range [...]string{"mcp_servers", "container", "context_management"} {
		if v := f.get(name); v != nil && !emptyValue(v) {
			return c, invalidCode(name, "unsupported_parameter", "'%s' is not supported.", name)
		}
	}
	c.AddGenerationPrompt, c.merge = true, true
	system, e := systemText(f.get("system"), s.cfg.Limits)
	if e != nil {
		return c, e
	}
	if system != "" {
		c.Messages = append(c.Messages, Message{Role: "system", Content: system})
	}
	v := f.get("messages")
	if v == nil || v[0] != '[' {
		return c, invalid("messages", "'messages' is required: a list of messages.")
	}
	e = elements("messages", "messages", v, s.cfg.Limits.Messages, func(i int, raw json.RawMessage) *apiError {
		turns, e := turnsOf("messages["+itoa(i)+"]", raw, s.cfg.Limits)
		c.Messages = append(c.Messages, turns...)
		return e
	})
	switch {
	case e != nil:
		return c, e
	case len(c.Messages) == 0:
		return c, invalid("messages", "'messages' must not be empty.")
	}
	var thinking struct {
		Type string `json:"type"`
	}
	if v := f.get("thinking"); v != nil && json.Unmarshal(v, &thinking) != nil {
		return c, invalid("thinking", "'thinking' must be {\"type\": \"enabled\", \"budget_tokens\": N} or {\"type\": \"disabled\"}.")
	}
	if s.thinks {
		c.think(thinking.Type == "enabled" || thinking.Type == "adaptive")
	}
	return c, nil
}

// systemText joins the blocks of a system prompt. Blocks of headers that a client puts
// there (x-anthropic-billing-header, with a value that changes every time) are not for the
// model, and would part every prompt from the one before it.
func systemText(v json.RawMessage, lim Limits) (string, *apiError) {
	if v == nil {
		return "", nil
	}
	if v[0] == '"' {
		return decodeContent("system", v, lim)
	}
	if v[0] != '[' {
		return "", invalid("system", "'system' must be a string or a list of text blocks.")
	}
	var texts []string
	e := elements("system", "blocks", v, lim.Parts, func(_ int, raw json.RawMessage) *apiError {
		text, e := decodeContent("system", json.RawMessage("["+string(raw)+"]"), lim)
		if e == nil && !strings.HasPrefix(text, "x-anthropic-") {
			texts = append(texts, text)
		}
		return e
	})
	return strings.Join(texts, "\n"), e
}

// turnsOf are the turns of a chat that one message is: results of tools are their own.
func turnsOf(at string, raw json.RawMessage, lim Limits) ([]Message, *apiError) {
	var m struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	}
	if raw[0] != '{' || json.Unmarshal(raw, &m) != nil {
		return nil, invalid(at, "'%s' must be an object with 'role' and 'content'.", at)
	}
	if m.Role != "user" && m.Role != "assistant" && m.Role != "system" {
		return nil, invalid(at+".role", "'%s.role' must be user or assistant, got %.40q.", at, m.Role)
	}
	if isNull(m.Content) || m.Content[0] != '[' {
		text, e := decodeContent(at+".content", m.Content, lim)
		return []Message{{Role: m.Role, Content: text}}, e
	}
	var turns []Message
	var texts, thoughts []string
	var calls []toolCall
	e := elements(at+".content", "blocks", m.Content, lim.Parts, func(i int, raw json.RawMessage) *apiError {
		here := at + ".content[" + itoa(i) + "]"
		var b struct {
			Type     string          `json:"type"`
			Text     *string         `json:"text"`
			Thinking string          `json:"thinking"`
			ID       string          `json:"id"`
			Name     string          `json:"name"`
			Input    json.RawMessage `json:"input"`
			Use      string          `json:"tool_use_id"`
			Content  json.RawMessage `json:"content"`
			Failed   bool            `json:"is_error"`
		}
		if raw[0] != '{' || json.Unmarshal(raw, &b) != nil {
			return invalid(here, "'%s' must be a content block, an object with a 'type'.", here)
		}
		switch {
		case b.Type == "text" && b.Text != nil:
			texts = append(texts, *b.Text)
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
			text := ""
			if !isNull(b.Content) {
				var e *apiError
				if text, e = decodeContent(here+".content", b.Content, lim); e != nil {
					return e
				}
			}
			if b.Failed {
				text = "Error: " + text
			}
			turns = append(turns, Message{Role: "tool", CallID: b.Use, Content: text})
		default:
			return invalidCode(here+".type", "unsupported_parameter", "'%s.type' is %.40q, which is not supported there.", here, b.Type)
		}
		return nil
	})
	if e != nil {
		return nil, e
	}
	if len(texts) == 0 && len(calls) == 0 && len(turns) > 0 {
		return turns, nil
	}
	turn := Message{Role: m.Role, Content: strings.Join(texts, "\n"), Thought: strings.Join(thoughts, "\n")}
	if len(calls) > 0 {
		turn.Calls, turn.Empty = mustJSON(calls), len(texts) == 0
	}
	return append(turns, turn), nil
}

// messagesTools reads the tools of Messages.
func messagesTools(f *fields) (*toolset, *apiError) {
	t, e := toolsOf(f.get("tools"), func(t *toolset, at string, raw json.RawMessage) *apiError {
		var x struct {
			Type string `json:"type"`
			tool
			Schema json.RawMessage `json:"input_schema"`
		}
		if raw[0] != '{' || json.Unmarshal(raw, &x) != nil || x.Name == "" {
			return invalid(at, "'%s' must be {\"name\", \"description\", \"input_schema\"}.", at)
		}
		if x.Type != "" && x.Type != "custom" {
			return invalidCode(at+".type", "unsupported_parameter", "'%s.type' is %.40q: tools that a server runs are not supported.", at, x.Type)
		}
		x.Parameters = x.Schema
		return t.add(at, x.tool)
	})
	if e != nil {
		return nil, e
	}
	if t != nil {
		t.show()
	}
	choice := f.get("tool_choice")
	if choice == nil {
		return t.choose("", "")
	}
	var c struct {
		Type   string `json:"type"`
		Name   string `json:"name"`
		Single bool   `json:"disable_parallel_tool_use"`
	}
	how, known := "", false
	if choice[0] == '{' && json.Unmarshal(choice, &c) == nil {
		how, known = map[string]string{"auto": "auto", "none": "none", "any": "required", "tool": "function"}[c.Type]
	}
	if !known {
		return nil, invalid("tool_choice", "'tool_choice' must be an object whose 'type' is auto, any, tool or none.")
	}
	if t != nil {
		t.single = c.Single
	}
	return t.choose(how, c.Name)
}

// messageError is an error in Anthropic's words.
func messageError(e *apiError) any {
	typ := map[int]string{http.StatusUnauthorized: typeAuth, http.StatusForbidden: typePermission, http.StatusNotFound: "not_found_error",
		http.StatusRequestEntityTooLarge: "request_too_large", http.StatusTooManyRequests: typeRateLimit, http.StatusServiceUnavailable: "overloaded_error"}[e.status]
	switch {
	case typ != "":
	case e.status >= 500:
		typ = "api_error"
	default:
		typ = typeInvalid
	}
	return map[string]any{"type": "error", "error": map[string]string{"type": typ, "message": e.message}}
}

type block struct {
	Type      string           `json:"type"`
	Text      *string          `json:"text,omitempty"`
	Thinking  *string          `json:"thinking,omitempty"`
	Signature *string          `json:"signature,omitempty"`
	ID        string           `json:"id,omitempty"`
	Name      string           `json:"name,omitempty"`
	Input     *json.RawMessage `json:"input,omitempty"`
}

type messageUsage struct {
	Input    int `json:"input_tokens"`
	Creation int `json:"cache_creation_input_tokens"`
	Read     int `json:"cache_read_input_tokens"`
	Output   int `json:"output_tokens"`
}

func asMessageUsage(u usage) messageUsage {
	out := messageUsage{Input: u.PromptTokens, Output: u.CompletionTokens}
	if u.Details != nil {
		out.Read = u.Details.Cached
		out.Input -= out.Read
	}
	return out
}

type message struct {
	ID           string       `json:"id"`
	Type         string       `json:"type"`
	Role         string       `json:"role"`
	Model        string       `json:"model"`
	Content      []block      `json:"content"`
	StopReason   *string      `json:"stop_reason"`
	StopSequence *string      `json:"stop_sequence"`
	Usage        messageUsage `json:"usage"`
}

// messageFramer makes one message: the events of its stream, and the whole of it.
type messageFramer struct {
	begun  bool
	blocks []block
	open   bool // the last of them
	text   []byte
	last   delta
}

func (m *messageFramer) message(r *run, content []block) message {
	return message{ID: r.head.ID, Type: "message", Role: "assistant", Model: r.head.Model, Content: content, Usage: asMessageUsage(r.usage())}
}

func (m *messageFramer) whole(r *run) any {
	out := m.message(r, m.blocks)
	if len(m.blocks) == 0 {
		out.Content = []block{{Type: "text", Text: new(string)}}
	}
	out.StopReason, out.StopSequence = stopReason(m.last)
	return out
}

func stopReason(d delta) (reason, sequence *string) {
	why := "end_turn"
	switch d.finish {
	case FinishLength:
		why = "max_tokens"
	case finishCalls:
		why = "tool_use"
	default:
		if s, ok := d.reason.(string); ok {
			why, sequence = "stop_sequence", &s
		}
	}
	return &why, sequence
}

func (m *messageFramer) delta(out *sse, r *run, d delta) {
	if !m.begun {
		m.begun = true
		msg := m.message(r, []block{})
		msg.Usage.Output = 0
		out.named("message_start", map[string]any{"type": "message_start", "message": msg})
	}
	if d.thought != "" {
		m.piece(out, block{Type: "thinking", Thinking: new(string), Signature: new(string)}, d.thought, map[string]string{"type": "thinking_delta", "thinking": d.thought})
	}
	if d.text != "" {
		m.piece(out, block{Type: "text", Text: new(string)}, d.text, map[string]string{"type": "text_delta", "text": d.text})
	}
	for _, c := range d.calls {
		b, args := block{Type: "tool_use"}, string(c.arguments)
		if c.name != "" {
			m.close(out)
			input := json.RawMessage("{}")
			b.ID, b.Name, b.Input = c.id, c.name, &input
		}
		m.piece(out, b, args, map[string]string{"type": "input_json_delta", "partial_json": args})
	}
	if d.finish != "" {
		m.last = d
	}
}

// piece adds to the block that is open, or opens one.
func (m *messageFramer) piece(out *sse, b block, text string, d map[string]string) {
	n := len(m.blocks) - 1
	if !m.open || m.blocks[n].Type != b.Type {
		m.close(out)
		m.open, m.blocks, m.text = true, append(m.blocks, b), nil
		n++
		out.named("content_block_start", map[string]any{"type": "content_block_start", "index": n, "content_block": b})
	}
	m.text = append(m.text, text...)
	if text != "" {
		out.named("content_block_delta", map[string]any{"type": "content_block_delta", "index": n, "delta": d})
	}
}

// close ends the block that is open.
func (m *messageFramer) close(out *sse) {
	if !m.open {
		return
	}
	m.open = false
	n := len(m.blocks) - 1
	b, text := &m.blocks[n], string(m.text)
	switch b.Type {
	case "thinking":
		b.Thinking = &text
		out.named("content_block_delta", map[string]any{"type": "content_block_delta", "index": n, "delta": map[string]string{"type": "signature_delta", "signature": ""}})
	case "text":
		b.Text = &text
	default:
		if input := json.RawMessage(text); json.Valid(input) {
			b.Input = &input
		} else { // cut off: no input is better than a part of one
			*b = block{Type: "text", Text: &text}
		}
	}
	out.named("content_block_stop", map[string]any{"type": "content_block_stop", "index": n})
}

func (m *messageFramer) end(out *sse, r *run) {
	m.close(out)
	reason, sequence := stopReason(m.last)
	out.named("message_delta", map[string]any{"type": "message_delta", "delta": map[string]any{"stop_reason": reason, "stop_sequence": sequence}, "usage": asMessageUsage(r.usage())})
	out.named("message_stop", map[string]any{"type": "message_stop"})
}

func (m *messageFramer) failed(out *sse, _ *run, e *apiError) {
	out.named("error", messageError(e))
}
