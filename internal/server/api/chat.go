package api

import (
	"context"
)

// decodeChat turns the body of POST /v1/chat/completions into a generation.
func (s *openAI) decodeChat(ctx context.Context, body []byte) (*generation, *apiError) {
	f, e := parseFields(body, s.chat)
	if e != nil {
		return nil, e
	}
	return s.chatOf(ctx, f)
}

// chatOf turns the members of a chat into a generation.
func (s *openAI) chatOf(ctx context.Context, f *fields) (*generation, *apiError) {
	g := s.newGeneration(ctx, f)
	var want bool
	var top int64
	f.boolean("logprobs", &want)
	hasTop := f.integer("top_logprobs", &top)
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
func (s *openAI) chatChunk(g *generation, d delta) chatChunkChoice {
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
func (s *openAI) chatBody(g *generation, choices []delta, u usage) any {
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
