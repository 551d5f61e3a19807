package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/shoal-llm/shoal/tokenizer"
	"github.com/shoal-llm/shoal/tokenizer/jinja"
)

// decodeChat turns the body of POST /v1/chat/completions into a generation.
func (s *Server) decodeChat(ctx context.Context, body []byte) (*generation, *apiError) {
	f, e := parseFields(body)
	if e != nil {
		return nil, e
	}
	f.chat = true
	g := &generation{params: s.parseParams(f), promptLogprobs: -1}
	s.parseMasks(ctx, f, &g.params)
	var want bool
	var top int64
	f.boolean("logprobs", &want)
	hasTop := f.integer("top_logprobs", &top, 0, int64(s.cfg.Limits.TopLogprobs))
	switch {
	case want:
		g.sampling.Logprobs = int(top)
	case hasTop && top > 0:
		f.fail(invalid("top_logprobs", "'top_logprobs' needs 'logprobs': true."))
	}
	if g.n > s.cfg.Limits.Choices {
		f.fail(invalid("n", "'n' must be at most %d.", s.cfg.Limits.Choices))
	}
	if g.maxTokens == 0 {
		f.fail(invalid("max_tokens", "'max_tokens' must be at least 1."))
	}
	if f.err != nil {
		return nil, f.err
	}
	if e := s.checkModel(&g.params); e != nil {
		return nil, e
	}
	if g.tools, e = s.parseTools(f); e != nil {
		return nil, e
	}
	c, e := s.parseConversation(f)
	if e != nil {
		return nil, e
	}
	if g.ignored, e = s.ignored(f); e != nil {
		return nil, e
	}
	g.continues = c.ContinueFinal
	if e := s.converse(ctx, g, c); e != nil {
		return nil, e
	}
	object := "chat.completion"
	if g.stream {
		object += ".chunk"
	}
	g.head = s.newHead("chatcmpl-", object, g.model)
	g.shape = chatShape{s, g}
	return g, nil
}

// talk is what a chat's prompt is made of, in whichever protocol it came.
type talk struct {
	Conversation
	special bool // BOS and the like around it
	merge   bool // turns that the template refuses may be put together
}

// converse turns a conversation into the prompt of g, and what g's tools and thoughts ask
// for into its grammar.
func (s *Server) converse(ctx context.Context, g *generation, c talk) *apiError {
	ids, tail, e := s.chatPrompt(tokenizer.WithSearches(ctx), c, g.tools)
	if e != nil {
		return e
	}
	if e := s.constrainTools(g, tail); e != nil {
		return e
	}
	ids = g.cut(ids, s.cfg.MaxModelLen)
	g.prompts = []prompt{{ids: ids}}
	return s.fit(ids, &g.params, -1, "messages")
}

// parseConversation reads the messages of a chat and how they are to be rendered.
func (s *Server) parseConversation(f *fields) (c talk, e *apiError) {
	f.boolean("continue_final_message", &c.ContinueFinal)
	c.AddGenerationPrompt = !c.ContinueFinal
	f.boolean("add_generation_prompt", &c.AddGenerationPrompt)
	if c.ContinueFinal && c.AddGenerationPrompt {
		f.fail(invalid("continue_final_message", "'continue_final_message' and 'add_generation_prompt' exclude each other."))
	}
	f.boolean("add_special_tokens", &c.special)
	if v := f.get("chat_template_kwargs"); v != nil {
		if json.Unmarshal(v, &c.Kwargs) != nil {
			f.fail(invalid("chat_template_kwargs", "'chat_template_kwargs' must be an object."))
		}
	}
	var think bool
	if f.boolean("enable_thinking", &think) { // as some clients say it
		c.think(think)
	}
	if f.err != nil {
		return c, f.err
	}
	c.Messages, e = decodeMessages(f.get("messages"), s.cfg.Limits)
	return c, e
}

// think tells the template whether the model is to think.
func (c *Conversation) think(yes bool) {
	if c.Kwargs == nil {
		c.Kwargs = map[string]any{}
	}
	c.Kwargs["enable_thinking"] = yes
}

// chatPrompt renders and encodes a conversation, and returns the end of the text, too.
func (s *Server) chatPrompt(ctx context.Context, c talk, tools *toolset) (ids []int32, tail string, e *apiError) {
	if s.tmpl == nil {
		return nil, "", invalidCode("messages", "no_chat_template", "This model has no chat template; use /v1/completions.")
	}
	s.showTools(&c.Conversation, tools)
	segments, err := s.tmpl.Render(c.Conversation)
	if err != nil && c.merge && !errors.Is(err, jinja.ErrInternal) {
		c.Messages = merged(c.Messages)
		segments, err = s.tmpl.Render(c.Conversation)
	}
	if errors.Is(err, jinja.ErrInternal) {
		return nil, "", &apiError{status: http.StatusInternalServerError, typ: typeServer, code: "chat_template_error", message: err.Error()}
	}
	if err != nil {
		return nil, "", invalidCode("messages", "chat_template_error", "The model's chat template refuses these messages: %v.", err)
	}
	if n := len(segments); n > 0 {
		tail = segments[n-1].Text
	}
	ids, e = s.encode(ctx, segments, c.special, "messages")
	return ids, tail, e
}

// merged has no system messages but at the beginning, and no two turns of one role in a
// row: what templates ask for that know turns alone.
func merged(list []Message) (out []Message) {
	for _, m := range list {
		if m.Role == "system" && len(out) > 0 && (len(out) > 1 || out[0].Role != "system") {
			m.Role = "user"
		}
		if n := len(out) - 1; n >= 0 && out[n].Role == m.Role && m.Role != "tool" && out[n].Calls == nil {
			was := out[n]
			m.Content, m.Thought = strings.TrimPrefix(was.Content+"\n\n"+m.Content, "\n\n"), was.Thought+m.Thought
			m.Empty = m.Empty && m.Content == ""
			out[n] = m
			continue
		}
		out = append(out, m)
	}
	return out
}

func decodeMessages(v json.RawMessage, lim Limits) ([]Message, *apiError) {
	if v == nil {
		return nil, invalidCode("messages", "missing_required_parameter", "'messages' is required.")
	}
	if v[0] != '[' {
		return nil, invalid("messages", "'messages' must be a list of messages.")
	}
	var out []Message
	e := elements("messages", "messages", v, lim.Messages, func(i int, raw json.RawMessage) *apiError {
		m, e := decodeMessage(i, raw, lim)
		out = append(out, m)
		return e
	})
	switch {
	case e != nil:
		return nil, e
	case len(out) == 0:
		return nil, invalid("messages", "'messages' must not be empty.")
	}
	return out, nil
}

func decodeMessage(i int, raw json.RawMessage, lim Limits) (Message, *apiError) {
	at := "messages[" + itoa(i) + "]"
	var m struct {
		Role         json.RawMessage `json:"role"`
		Name         json.RawMessage `json:"name"`
		Content      json.RawMessage `json:"content"`
		ToolCalls    json.RawMessage `json:"tool_calls"`
		ToolCallID   string          `json:"tool_call_id"`
		Reasoning    string          `json:"reasoning_content"`
		FunctionCall json.RawMessage `json:"function_call"`
		Audio        json.RawMessage `json:"audio"`
	}
	if raw[0] != '{' || json.Unmarshal(raw, &m) != nil {
		return Message{}, invalid(at, "'%s' must be an object.", at)
	}
	for _, x := range []struct {
		name string
		v    json.RawMessage
	}{{"function_call", m.FunctionCall}, {"audio", m.Audio}} {
		if !isNull(x.v) && !emptyValue(x.v) {
			return Message{}, invalidCode(at+"."+x.name, "unsupported_parameter", "'%s.%s' is not supported.", at, x.name)
		}
	}
	var out Message
	if json.Unmarshal(m.Role, &out.Role) != nil {
		return out, invalid(at+".role", "'%s.role' must be a string.", at)
	}
	switch out.Role {
	case "system", "user", "assistant":
	case "developer": // OpenAI's newer name; templates know the older one
		out.Role = "system"
	case "tool":
		out.CallID = m.ToolCallID
	case "function":
		return out, invalidCode(at+".role", "unsupported_parameter", "'%s.role' is %q, which came before 'tool': use that.", at, out.Role)
	default:
		return out, invalid(at+".role", "'%s.role' must be system, developer, user, assistant or tool, got %q.", at, out.Role)
	}
	if !isNull(m.Name) && json.Unmarshal(m.Name, &out.Name) != nil {
		return out, invalid(at+".name", "'%s.name' must be a string.", at)
	}
	var e *apiError
	if out.Role == "assistant" {
		out.Thought = m.Reasoning
		if out.Calls, e = decodeCalls(at+".tool_calls", m.ToolCalls, lim); e != nil {
			return out, e
		}
		if out.Empty = out.Calls != nil && isNull(m.Content); out.Empty {
			return out, nil
		}
	} else if !isNull(m.ToolCalls) && !emptyValue(m.ToolCalls) {
		return out, invalid(at+".tool_calls", "'%s.tool_calls' belong to the assistant.", at)
	}
	out.Content, e = decodeContent(at+".content", m.Content, lim)
	return out, e
}

// decodeContent reads a string or a list of text parts, which are joined by
// newlines (vLLM's reading for templates that expect a string).
func decodeContent(at string, v json.RawMessage, lim Limits) (string, *apiError) {
	var text string
	if isNull(v) {
		return "", invalid(at, "'%s' is required: a string or a list of text parts.", at)
	}
	if v[0] == '"' {
		_ = json.Unmarshal(v, &text) // valid JSON that starts with a quote is a string
		return text, nil
	}
	if v[0] != '[' {
		return "", invalid(at, "'%s' must be a string or a list of text parts.", at)
	}
	var parts []string
	e := elements(at, "parts", v, lim.Parts, func(i int, raw json.RawMessage) *apiError {
		here := at + "[" + itoa(i) + "]"
		var p struct {
			Type string  `json:"type"`
			Text *string `json:"text"`
		}
		if json.Unmarshal(raw, &p) != nil {
			return invalid(here, "'%s' must be an object with 'type' and 'text'.", here)
		}
		if p.Type != "text" {
			return invalidCode(here+".type", "unsupported_parameter", "'%s.type' is %q: only text is supported.", here, p.Type)
		}
		if p.Text == nil {
			return invalid(here+".text", "'%s.text' is required.", here)
		}
		parts = append(parts, *p.Text)
		return nil
	})
	return strings.Join(parts, "\n"), e
}

// chatShape writes chat.completion objects.
type chatShape struct {
	s *Server
	g *generation
}

type chatDelta struct {
	Role      string      `json:"role,omitempty"`
	Content   *string     `json:"content,omitempty"`
	Reasoning string      `json:"reasoning_content,omitempty"`
	ToolCalls []callDelta `json:"tool_calls,omitempty"`
}

type chatChunkChoice struct {
	Index        int           `json:"index"`
	Delta        chatDelta     `json:"delta"`
	Logprobs     *chatLogprobs `json:"logprobs"`
	FinishReason *string       `json:"finish_reason"`
	StopReason   any           `json:"stop_reason,omitempty"`
}

func (c chatShape) chunk(d delta) chunkBody {
	out := chatChunkChoice{Index: d.index, FinishReason: orNil(d.finish), StopReason: d.reason}
	if d.first {
		out.Delta.Role = "assistant"
	}
	if d.first && d.thought == "" && len(d.calls) == 0 || d.text != "" {
		out.Delta.Content = &d.text
	}
	out.Delta.Reasoning = d.thought
	for _, c := range d.calls {
		out.Delta.ToolCalls = append(out.Delta.ToolCalls, callDelta{c.index, c.toolCall()})
	}
	if len(d.tokens) > 0 {
		out.Logprobs = c.s.chatLogprobs(c.g, d.tokens)
	}
	return chunkBody{head: c.g.head, Choices: []any{out}}
}

type chatMessage struct {
	Role      string     `json:"role"`
	Content   *string    `json:"content"` // null beside calls
	Reasoning string     `json:"reasoning_content,omitempty"`
	ToolCalls []toolCall `json:"tool_calls,omitempty"`
	Refusal   *string    `json:"refusal"`
}

type chatChoice struct {
	Index        int           `json:"index"`
	Message      chatMessage   `json:"message"`
	Logprobs     *chatLogprobs `json:"logprobs"`
	FinishReason string        `json:"finish_reason"`
	StopReason   any           `json:"stop_reason,omitempty"`
}

type chatCompletion struct {
	head
	Choices []chatChoice `json:"choices"`
	Usage   usage        `json:"usage"`
}

func (c chatShape) whole(choices []delta, u usage) any {
	body := struct {
		head
		Choices []chatChoice `json:"choices"`
		Usage   usage        `json:"usage"`
		Figures *figures     `json:"metrics,omitempty"`
	}{head: c.g.head, Usage: u, Figures: u.figures}
	for _, d := range choices {
		m := chatMessage{Role: "assistant", Content: &d.text, Reasoning: d.thought}
		for _, c := range d.calls {
			m.ToolCalls = append(m.ToolCalls, c.toolCall())
		}
		if len(d.calls) > 0 && d.text == "" {
			m.Content = nil
		}
		body.Choices = append(body.Choices, chatChoice{d.index, m, c.s.chatLogprobs(c.g, d.tokens), d.finish, d.reason})
	}
	return body
}

func orNil(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
