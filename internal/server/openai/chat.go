package openai

import (
	"context"

	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/generate"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
)

// decodeChat decodes the body of POST /v1/chat/completions.
func (s *API) decodeChat(ctx context.Context, body []byte) (*generate.Request, *apierr.Error) {
	f, e := jsonbody.Parse(body, s.chat)
	if e != nil {
		return nil, e
	}
	return s.chatOf(ctx, f)
}

// chatOf decodes the members of a chat.
func (s *API) chatOf(ctx context.Context, f *jsonbody.Object) (*generate.Request, *apierr.Error) {
	g := s.NewGeneration(ctx, f)
	var want bool
	var top int64
	f.Boolean("logprobs", &want)
	hasTop := f.Integer("top_logprobs", &top)
	switch {
	case want:
		g.Sampling.Logprobs = int(top)
	case hasTop && top > 0:
		f.Fail(apierr.Invalid("top_logprobs", "'top_logprobs' needs 'logprobs': true."))
	}
	if g.N > s.Config.Limits.Choices {
		f.Fail(apierr.Invalid("n", "'n' must be at most %d.", s.Config.Limits.Choices))
	}
	if g.MaxTokens == 0 {
		f.Fail(apierr.Invalid("max_tokens", "'max_tokens' must be at least 1."))
	}
	f.Fail(s.CheckModel(&g.Params))
	tools, e := s.chatTools(f)
	f.Fail(e)
	c := s.ParseConversation(f)
	ignored := s.Ignored(f)
	if f.Err != nil {
		return nil, f.Err
	}
	g.Tools, g.Ignored = tools, append(ignored, c.Left...)
	g.Continues = c.ContinueFinal
	if e := s.Converse(ctx, g, c); e != nil {
		return nil, e
	}
	object := "chat.completion"
	if g.Stream {
		object += ".chunk"
	}
	g.Head = s.NewHead("chatcmpl-", object, g.Model)
	g.NewEncoder = func(r *generate.Run, out *httpserver.Stream) generate.Encoder {
		return newEncoder(r, out, func(d generate.Delta) any {
			return s.chatChunk(g, d)
		}, func(choices []generate.Delta, u generate.Usage) any { return s.chatBody(g, choices, u) })
	}
	return g, nil
}

// chatTools reads the tools of a chat. A choice among allowed tools leaves the others in the prompt.
func (s *API) chatTools(f *jsonbody.Object) (*generate.Toolset, *apierr.Error) {
	type function struct {
		Function struct {
			Name string `json:"name"`
		} `json:"function"`
	}
	var choice struct {
		Type    string `json:"type"`
		Allowed *struct {
			Mode  string     `json:"mode"`
			Tools []function `json:"tools"`
		} `json:"allowed_tools"`
	}
	v := f.Get("tool_choice")
	if v == nil {
		return s.ParseTools(f)
	}
	err := jsonbody.Unmarshal(v, &choice)
	if choice.Type != "allowed_tools" {
		return s.ParseTools(f)
	}
	c := choice.Allowed
	if err != nil || c == nil || c.Mode != "auto" && c.Mode != "required" {
		return nil, apierr.Invalid("tool_choice", "'tool_choice' must be {\"type\": \"allowed_tools\", \"allowed_tools\": "+
			"{\"mode\": \"auto\" or \"required\", \"tools\": [...]}}.")
	}
	f.Raw["tool_choice"] = jsonbody.MustJSON(c.Mode)
	t, e := s.ParseTools(f)
	if t == nil || e != nil {
		return t, e
	}
	names := make([]string, len(c.Tools))
	for i, x := range c.Tools {
		names[i] = x.Function.Name
	}
	if e := t.Restrict(names); e != nil {
		return nil, e
	}
	return t.Choose(c.Mode, "")
}

type chatDelta struct {
	Role      string               `json:"role,omitempty"`
	Content   *string              `json:"content,omitempty"`
	Reasoning string               `json:"reasoning_content,omitempty"`
	ToolCalls []generate.CallDelta `json:"tool_calls,omitempty"`
}

type chatChunkChoice struct {
	Index        int           `json:"index"`
	Delta        chatDelta     `json:"delta"`
	Logprobs     *chatLogprobs `json:"logprobs"`
	FinishReason *string       `json:"finish_reason"`
	StopReason   any           `json:"stop_reason,omitempty"`
}

// chatChunk returns a choice of a chat.completion.chunk.
func (s *API) chatChunk(g *generate.Request, d generate.Delta) chatChunkChoice {
	out := chatChunkChoice{Index: d.Index, FinishReason: jsonbody.OrNil(d.Finish), StopReason: d.Reason}
	if d.First {
		out.Delta.Role = "assistant"
	}
	if d.First && d.Thought == "" && len(d.Calls) == 0 || d.Text != "" {
		out.Delta.Content = &d.Text
	}
	out.Delta.Reasoning = d.Thought
	for _, c := range d.Calls {
		out.Delta.ToolCalls = append(out.Delta.ToolCalls, generate.CallDelta{Index: c.Index, ToolCall: c.ToolCall()})
	}
	if len(d.Tokens) > 0 {
		out.Logprobs = s.chatLogprobs(g, d.Tokens)
	}
	return out
}

type chatMessage struct {
	Role      string              `json:"role"`
	Content   *string             `json:"content"` // null in a message that only calls
	Reasoning string              `json:"reasoning_content,omitempty"`
	ToolCalls []generate.ToolCall `json:"tool_calls,omitempty"`
	Refusal   *string             `json:"refusal"`
}

type chatChoice struct {
	Index        int           `json:"index"`
	Message      chatMessage   `json:"message"`
	Logprobs     *chatLogprobs `json:"logprobs"`
	FinishReason string        `json:"finish_reason"`
	StopReason   any           `json:"stop_reason,omitempty"`
}

type chatCompletion struct {
	generate.Head
	Choices []chatChoice   `json:"choices"`
	Usage   generate.Usage `json:"usage"`
}

// chatBody returns a chat.completion.
func (s *API) chatBody(g *generate.Request, choices []generate.Delta, u generate.Usage) any {
	body := struct {
		chatCompletion
		Figures *generate.Figures `json:"metrics,omitempty"`
	}{chatCompletion{Head: g.Head, Usage: u}, u.Figures}
	for _, d := range choices {
		m := chatMessage{Role: "assistant", Content: &d.Text, Reasoning: d.Thought}
		for _, c := range d.Calls {
			m.ToolCalls = append(m.ToolCalls, c.ToolCall())
		}
		if len(d.Calls) > 0 && d.Text == "" {
			m.Content = nil
		}
		body.Choices = append(body.Choices, chatChoice{d.Index, m, s.chatLogprobs(g, d.Tokens), d.Finish, d.Reason})
	}
	return body
}
