package api

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/shoal-llm/shoal/internal/text/jinja"
	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

// decodeChat turns the body of POST /v1/chat/completions into a generation.
func (s *Server) decodeChat(ctx context.Context, body []byte) (*generation, *apiError) {
	f, e := parseFields(body)
	if e != nil {
		return nil, e
	}
	return s.chatOf(ctx, f)
}

// chatOf turns the members of a chat into a generation.
func (s *Server) chatOf(ctx context.Context, f *fields) (*generation, *apiError) {
	f.chat = true
	g := &generation{params: s.parseParams(f), promptLogprobs: -1}
	s.parseMasks(ctx, f, &g.params)
	f.fail(g.checkMasks())
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
	f.fail(s.checkModel(&g.params))
	tools, e := s.parseTools(f)
	f.fail(e)
	c := s.parseConversation(f)
	ignored := s.ignored(f)
	if f.err != nil {
		return nil, f.err
	}
	g.tools, g.ignored = tools, append(ignored, c.left...)
	g.continues = c.ContinueFinal
	if e := s.converse(ctx, g, c); e != nil {
		return nil, e
	}
	object := "chat.completion"
	if g.stream {
		object += ".chunk"
	}
	g.head = s.newHead("chatcmpl-", object, g.model)
	g.newEncoder = func(r *run, out *Stream) encoder {
		return newOpenAIEncoder(r, out, func(d delta) any { return s.chatChunk(g, d) }, func(choices []delta, u usage) any { return s.chatBody(g, choices, u) })
	}
	return g, nil
}

// talk is what a chat's prompt is made of, in whichever protocol it came.
type talk struct {
	Conversation
	special bool     // BOS and the like around it
	merge   bool     // turns that the template refuses may be put together
	left    []string // places of what was left out of it
}

// converse turns a conversation into the prompt of g, and what g's tools and thoughts ask
// for into its grammar.
func (s *Server) converse(ctx context.Context, g *generation, c talk) *apiError {
	if e := s.checkUncalled(g.tools); e != nil {
		return e
	}
	g.tools = g.tools.callable()
	ids, turn, e := s.chatPrompt(tokenizer.WithSearches(ctx), c, g.tools)
	if e != nil {
		return e
	}
	if e := s.constrainTools(g, turn); e != nil {
		return e
	}
	ids = g.cut(ids, s.cfg.MaxModelLen)
	g.prompts = []prompt{{ids: ids}}
	return s.fit(ids, &g.params, -1, "messages")
}

// parseConversation reads the messages of a chat and how to render them. Errors are left in f.
func (s *Server) parseConversation(f *fields) (c talk) {
	f.boolean("continue_final_message", &c.ContinueFinal)
	c.AddGenerationPrompt = !c.ContinueFinal
	f.boolean("add_generation_prompt", &c.AddGenerationPrompt)
	if c.ContinueFinal && c.AddGenerationPrompt {
		f.fail(invalid("continue_final_message", "'continue_final_message' and 'add_generation_prompt' exclude each other."))
	}
	f.boolean("add_special_tokens", &c.special)
	if v := f.get("chat_template_kwargs"); v != nil {
		if unmarshal(v, &c.Kwargs) != nil {
			f.fail(invalid("chat_template_kwargs", "'chat_template_kwargs' must be an object."))
		}
	}
	var think bool
	if f.boolean("enable_thinking", &think) { // as some clients say it
		c.think(think)
	}
	var effort string
	f.str("reasoning_effort", &effort, 64)
	if v := f.get("reasoning"); v != nil { // OpenRouter's form, and that of Responses
		var r struct {
			Effort  string `json:"effort"`
			Enabled *bool  `json:"enabled"`
		}
		if unmarshal(v, &r) != nil {
			f.fail(invalid("reasoning", "'reasoning' must be an object with 'effort'."))
		}
		if r.Enabled != nil && r.Effort == "" {
			r.Effort = map[bool]string{true: "medium", false: "none"}[*r.Enabled]
		}
		or(&effort, r.Effort)
	}
	s.effort(&c.Conversation, effort)
	if f.err != nil {
		return c
	}
	r := turnReader{lim: s.cfg.Limits}
	c.Messages, c.left = r.messages(f.get("messages"), c.ContinueFinal), r.left
	f.fail(r.err)
	return c
}

// effort tells the template how much the model is to think, unless the request says it in the
// template's own words: most templates know only whether to think.
func (s *Server) effort(c *Conversation, effort string) {
	if effort == "" || !s.thinks {
		return
	}
	if _, said := c.Kwargs["enable_thinking"]; !said {
		c.think(effort != "none" && effort != "minimal")
	}
	if _, said := c.Kwargs["reasoning_effort"]; !said {
		c.Kwargs["reasoning_effort"] = effort
	}
}

// think tells the template whether the model is to think.
func (c *Conversation) think(yes bool) {
	if c.Kwargs == nil {
		c.Kwargs = map[string]any{}
	}
	c.Kwargs["enable_thinking"] = yes
}

// chatPrompt renders and encodes a conversation. turn is the end of the text, in which the
// answer goes on.
func (s *Server) chatPrompt(ctx context.Context, c talk, tools *toolset) (ids []int32, turn string, e *apiError) {
	if s.tmpl == nil {
		return nil, "", invalidCode("messages", "no_chat_template", "This model has no chat template; use /v1/completions.")
	}
	s.showTools(&c.Conversation, tools)
	segments, turn, err := s.render(c.Conversation)
	if err != nil && c.merge && !errors.Is(err, jinja.ErrInternal) {
		c.Messages = merged(c.Messages)
		segments, turn, err = s.render(c.Conversation)
	}
	if errors.Is(err, jinja.ErrInternal) {
		return nil, "", &apiError{status: http.StatusInternalServerError, typ: typeServer, code: "chat_template_error", message: err.Error()}
	}
	if err != nil {
		return nil, "", invalidCode("messages", "chat_template_error", "The model's chat template refuses these messages: %v.", err)
	}
	ids, e = s.encode(ctx, segments, c.special, "messages")
	return ids, turn, e
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

type chatDelta struct {
	Role      string      `json:"role,omitempty"`
	Content   *string     `json:"content,omitempty"`
	Reasoning string      `json:"reasoning_content,omitempty"`
	ToolCalls []CallDelta `json:"tool_calls,omitempty"`
}

type chatChunkChoice struct {
	Index        int           `json:"index"`
	Delta        chatDelta     `json:"delta"`
	Logprobs     *chatLogprobs `json:"logprobs"`
	FinishReason *string       `json:"finish_reason"`
	StopReason   any           `json:"stop_reason,omitempty"`
}

// chatChunk is a choice of a chat.completion.chunk.
func (s *Server) chatChunk(g *generation, d delta) chatChunkChoice {
	out := chatChunkChoice{Index: d.index, FinishReason: orNil(d.finish), StopReason: d.reason}
	if d.first {
		out.Delta.Role = "assistant"
	}
	if d.first && d.thought == "" && len(d.calls) == 0 || d.text != "" {
		out.Delta.Content = &d.text
	}
	out.Delta.Reasoning = d.thought
	for _, c := range d.calls {
		out.Delta.ToolCalls = append(out.Delta.ToolCalls, CallDelta{c.index, c.toolCall()})
	}
	if len(d.tokens) > 0 {
		out.Logprobs = s.chatLogprobs(g, d.tokens)
	}
	return out
}

type chatMessage struct {
	Role      string     `json:"role"`
	Content   *string    `json:"content"` // null beside calls
	Reasoning string     `json:"reasoning_content,omitempty"`
	ToolCalls []ToolCall `json:"tool_calls,omitempty"`
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

// chatBody is a chat.completion.
func (s *Server) chatBody(g *generation, choices []delta, u usage) any {
	body := struct {
		head
		Choices []chatChoice `json:"choices"`
		Usage   usage        `json:"usage"`
		Figures *figures     `json:"metrics,omitempty"`
	}{head: g.head, Usage: u, Figures: u.figures}
	for _, d := range choices {
		m := chatMessage{Role: "assistant", Content: &d.text, Reasoning: d.thought}
		for _, c := range d.calls {
			m.ToolCalls = append(m.ToolCalls, c.toolCall())
		}
		if len(d.calls) > 0 && d.text == "" {
			m.Content = nil
		}
		body.Choices = append(body.Choices, chatChoice{d.index, m, s.chatLogprobs(g, d.tokens), d.finish, d.reason})
	}
	return body
}

func orNil(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
