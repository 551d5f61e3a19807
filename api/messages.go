package api

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"

	"shoal/tokenizer"
)

// Anthropic's Messages API. A request is put into the words of a chat and takes the way
// of one from there; answers, streams and errors are put into Anthropic's words.

func (s *Server) handleMessages(w http.ResponseWriter, r *http.Request) {
	body, e := s.readBody(w, r)
	if e != nil {
		s.writeError(w, e, false)
		return
	}
	g, e := s.decodeMessagesBody(r.Context(), body)
	if e != nil {
		s.writeError(w, e, false)
		return
	}
	s.generate(w, r, g)
}

func (s *Server) handleCountTokens(w http.ResponseWriter, r *http.Request) {
	body, e := s.readBody(w, r)
	if e != nil {
		s.writeError(w, e, false)
		return
	}
	n, e := s.countTokens(r.Context(), body)
	if e != nil {
		s.writeError(w, e, false)
		return
	}
	s.writeJSON(w, http.StatusOK, map[string]int{"input_tokens": n})
}

func (s *Server) countTokens(ctx context.Context, body []byte) (int, *apiError) {
	f, e := parseFields(body)
	if e != nil {
		return 0, e
	}
	chat, e := s.asChat(f)
	if e != nil {
		return 0, e
	}
	if f, e = parseFields(mustJSON(chat)); e != nil {
		return 0, e
	}
	p := params{}
	f.str("model", &p.model, 512)
	if e := s.checkModel(&p); e != nil {
		return 0, e
	}
	tools, e := s.parseTools(f)
	if e != nil {
		return 0, e
	}
	ids, _, e := s.chatPrompt(tokenizer.WithSearches(ctx), f, tools)
	return len(ids), e
}

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
	if f.err != nil {
		return nil, f.err
	}
	chat, e := s.asChat(f)
	if e != nil {
		return nil, e
	}
	g, e := s.decodeChat(ctx, mustJSON(chat))
	if e != nil {
		return nil, e
	}
	g.maxTokens = min(g.maxTokens, int(most)) // clients ask for more than small contexts hold
	if g.ignored, e = s.ignored(f); e != nil {
		return nil, e
	}
	g.head = s.newHead("msg_", "message", g.model)
	g.shape, g.framer = messageShape{g}, &messageFramer{}
	return g, nil
}

// asChat is a request in the words of a chat.
func (s *Server) asChat(f *fields) (map[string]any, *apiError) {
	chat := map[string]any{}
	for from, to := range map[string]string{"model": "model", "stream": "stream", "temperature": "temperature", "top_p": "top_p", "top_k": "top_k",
		"stop_sequences": "stop", "kv_policy": "kv_policy", "seed": "seed", "min_p": "min_p", "cache_salt": "cache_salt"} {
		if v := f.get(from); v != nil {
			chat[to] = v
		}
	}
	f.read["metadata"], f.read["service_tier"], f.read["max_tokens"] = true, true, true // they change nothing of an answer
	for _, name := range [...]string{"mcp_servers", "container", "context_management"} {
		if v := f.get(name); v != nil && !emptyValue(v) {
			return nil, invalidCode(name, "unsupported_parameter", "'%s' is not supported.", name)
		}
	}
	var list []any
	system, e := systemText(f.get("system"), s.cfg.Limits)
	if e != nil {
		return nil, e
	}
	if system != "" {
		list = append(list, map[string]any{"role": "system", "content": system})
	}
	v := f.get("messages")
	if v == nil || v[0] != '[' {
		return nil, invalid("messages", "'messages' is required: a list of messages.")
	}
	tooMany, e := elements(v, s.cfg.Limits.Messages, func(i int, raw json.RawMessage) *apiError {
		turns, e := turnsOf("messages["+itoa(i)+"]", raw, s.cfg.Limits)
		list = append(list, turns...)
		return e
	})
	switch {
	case tooMany:
		return nil, invalid("messages", "'messages' holds more than %d messages.", s.cfg.Limits.Messages)
	case e != nil:
		return nil, e
	}
	chat["messages"] = list
	var thinking struct {
		Type string `json:"type"`
	}
	if v := f.get("thinking"); v != nil && json.Unmarshal(v, &thinking) != nil {
		return nil, invalid("thinking", "'thinking' must be {\"type\": \"enabled\", \"budget_tokens\": N} or {\"type\": \"disabled\"}.")
	}
	if s.thinks {
		chat["enable_thinking"] = thinking.Type == "enabled" || thinking.Type == "adaptive"
	}
	if v := f.get("output_format"); v != nil {
		var format struct {
			Type   string          `json:"type"`
			Schema json.RawMessage `json:"schema"`
		}
		if json.Unmarshal(v, &format) != nil || format.Type != "json_schema" || isNull(format.Schema) {
			return nil, invalid("output_format", "'output_format' must be {\"type\": \"json_schema\", \"schema\": ...}.")
		}
		chat["response_format"] = v
	}
	return chat, s.asTools(f, chat)
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
	tooMany, e := elements(v, lim.Parts, func(i int, raw json.RawMessage) *apiError {
		text, e := decodeContent("system", json.RawMessage("["+string(raw)+"]"), lim)
		if e == nil && !strings.HasPrefix(text, "x-anthropic-") {
			texts = append(texts, text)
		}
		return e
	})
	if tooMany {
		return "", invalid("system", "'system' holds more than %d blocks.", lim.Parts)
	}
	return strings.Join(texts, "\n"), e
}

// turnsOf are the turns of a chat that one message is: results of tools are their own.
func turnsOf(at string, raw json.RawMessage, lim Limits) ([]any, *apiError) {
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
		return []any{map[string]any{"role": m.Role, "content": text}}, e
	}
	var turns []any
	var texts, thoughts []string
	var calls []map[string]any
	tooMany, e := elements(m.Content, lim.Parts, func(i int, raw json.RawMessage) *apiError {
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
			calls = append(calls, map[string]any{"id": b.ID, "type": "function", "function": map[string]any{"name": b.Name, "arguments": args}})
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
			turns = append(turns, map[string]any{"role": "tool", "tool_call_id": b.Use, "content": text})
		default:
			return invalidCode(here+".type", "unsupported_parameter", "'%s.type' is %.40q, which is not supported there.", here, b.Type)
		}
		return nil
	})
	if tooMany {
		return nil, invalid(at+".content", "'%s.content' holds more than %d blocks.", at, lim.Parts)
	}
	if e != nil {
		return nil, e
	}
	if len(texts) == 0 && len(calls) == 0 && len(turns) > 0 {
		return turns, nil
	}
	turn := map[string]any{"role": m.Role, "content": strings.Join(texts, "\n")}
	if len(calls) > 0 {
		turn["tool_calls"] = calls
		if len(texts) == 0 {
			turn["content"] = nil
		}
	}
	if len(thoughts) > 0 {
		turn["reasoning_content"] = strings.Join(thoughts, "\n")
	}
	return append(turns, turn), nil
}

func (s *Server) asTools(f *fields, chat map[string]any) *apiError {
	v, choice := f.get("tools"), f.get("tool_choice")
	if v != nil && !emptyValue(v) {
		var tools []any
		if v[0] != '[' {
			return invalid("tools", "'tools' must be a list.")
		}
		tooMany, e := elements(v, maxTools, func(i int, raw json.RawMessage) *apiError {
			var t struct {
				Type        string          `json:"type"`
				Name        string          `json:"name"`
				Description string          `json:"description"`
				Schema      json.RawMessage `json:"input_schema"`
				Strict      bool            `json:"strict"`
			}
			at := "tools[" + itoa(i) + "]"
			if raw[0] != '{' || json.Unmarshal(raw, &t) != nil || t.Name == "" {
				return invalid(at, "'%s' must be {\"name\", \"description\", \"input_schema\"}.", at)
			}
			if t.Type != "" && t.Type != "custom" {
				return invalidCode(at+".type", "unsupported_parameter", "'%s.type' is %.40q: tools that a server runs are not supported.", at, t.Type)
			}
			fn := map[string]any{"name": t.Name}
			if t.Description != "" {
				fn["description"] = t.Description
			}
			if !isNull(t.Schema) {
				fn["parameters"] = t.Schema
			}
			if t.Strict {
				fn["strict"] = true
			}
			tools = append(tools, map[string]any{"type": "function", "function": fn})
			return nil
		})
		if tooMany {
			return invalid("tools", "'tools' holds more than %d functions.", maxTools)
		}
		if e != nil {
			return e
		}
		chat["tools"] = tools
	}
	if choice == nil {
		return nil
	}
	var c struct {
		Type   string `json:"type"`
		Name   string `json:"name"`
		Single bool   `json:"disable_parallel_tool_use"`
	}
	if choice[0] != '{' || json.Unmarshal(choice, &c) != nil {
		return invalid("tool_choice", "'tool_choice' must be an object with a 'type'.")
	}
	switch c.Type {
	case "auto", "none":
		chat["tool_choice"] = c.Type
	case "any":
		chat["tool_choice"] = "required"
	case "tool":
		chat["tool_choice"] = map[string]any{"type": "function", "function": map[string]any{"name": c.Name}}
	default:
		return invalid("tool_choice.type", "'tool_choice.type' must be auto, any, tool or none, got %.40q.", c.Type)
	}
	if c.Single {
		chat["parallel_tool_calls"] = false
	}
	return nil
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

// block is a content block.
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

// messageShape writes message objects.
type messageShape struct{ g *generation }

func (m messageShape) message(u usage) message {
	return message{ID: m.g.head.ID, Type: "message", Role: "assistant", Model: m.g.head.Model, Content: []block{}, Usage: asMessageUsage(u)}
}

// chunk is not called: messageFramer writes the stream.
func (m messageShape) chunk(delta) chunkBody { return chunkBody{} }

func (m messageShape) whole(choices []delta, u usage) any {
	out, d := m.message(u), choices[0]
	none := ""
	if d.thought != "" {
		out.Content = append(out.Content, block{Type: "thinking", Thinking: &d.thought, Signature: &none})
	}
	if d.text != "" || d.thought == "" && len(d.calls) == 0 {
		out.Content = append(out.Content, block{Type: "text", Text: &d.text})
	}
	for _, c := range d.calls {
		input := json.RawMessage(c.Arguments)
		out.Content = append(out.Content, block{Type: "tool_use", ID: c.id, Name: c.Name, Input: &input})
	}
	out.StopReason, out.StopSequence = stopReason(d)
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

// messageFramer writes the events of one stream.
type messageFramer struct {
	begun bool
	open  string // type of the block that is open
	index int    // of it, or of the next
	last  delta
}

func (m *messageFramer) delta(out *sse, r *run, d delta) error {
	if !m.begun {
		m.begun = true
		u := r.usage()
		u.CompletionTokens = 0
		if err := out.named("message_start", map[string]any{"type": "message_start", "message": messageShape{r.generation}.message(u)}); err != nil {
			return err
		}
	}
	none := ""
	if d.thought != "" {
		if err := m.piece(out, block{Type: "thinking", Thinking: &none, Signature: &none}, map[string]any{"type": "thinking_delta", "thinking": d.thought}); err != nil {
			return err
		}
	}
	if d.text != "" {
		if err := m.piece(out, block{Type: "text", Text: &none}, map[string]any{"type": "text_delta", "text": d.text}); err != nil {
			return err
		}
	}
	for _, c := range d.calls {
		if err := m.close(out); err != nil {
			return err
		}
		input := json.RawMessage("{}")
		if err := m.piece(out, block{Type: "tool_use", ID: c.id, Name: c.Name, Input: &input}, map[string]any{"type": "input_json_delta", "partial_json": c.Arguments}); err != nil {
			return err
		}
		if err := m.close(out); err != nil {
			return err
		}
	}
	if d.finish != "" {
		m.last = d
	}
	return nil
}

// piece adds to the block that is open, or opens one.
func (m *messageFramer) piece(out *sse, b block, d map[string]any) error {
	if m.open != b.Type {
		if err := m.close(out); err != nil {
			return err
		}
		m.open = b.Type
		if err := out.named("content_block_start", map[string]any{"type": "content_block_start", "index": m.index, "content_block": b}); err != nil {
			return err
		}
	}
	return out.named("content_block_delta", map[string]any{"type": "content_block_delta", "index": m.index, "delta": d})
}

func (m *messageFramer) close(out *sse) error {
	if m.open == "" {
		return nil
	}
	if m.open == "thinking" {
		if err := out.named("content_block_delta", map[string]any{"type": "content_block_delta", "index": m.index, "delta": map[string]any{"type": "signature_delta", "signature": ""}}); err != nil {
			return err
		}
	}
	m.open = ""
	m.index++
	return out.named("content_block_stop", map[string]any{"type": "content_block_stop", "index": m.index - 1})
}

func (m *messageFramer) end(out *sse, r *run) error {
	if err := m.close(out); err != nil {
		return err
	}
	reason, sequence := stopReason(m.last)
	if err := out.named("message_delta", map[string]any{"type": "message_delta", "delta": map[string]any{"stop_reason": reason, "stop_sequence": sequence}, "usage": asMessageUsage(r.usage())}); err != nil {
		return err
	}
	return out.named("message_stop", map[string]any{"type": "message_stop"})
}

func (m *messageFramer) failed(out *sse, e *apiError) error {
	return out.named("error", messageError(e))
}
