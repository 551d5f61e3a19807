package generate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
	"github.com/shoal-llm/shoal/internal/server/turns"
	"github.com/shoal-llm/shoal/internal/text/jinja/python"
	"github.com/shoal-llm/shoal/internal/text/tokenizer"
	"github.com/shoal-llm/shoal/internal/text/toolcall"
)

// Chat is the conversation of a request of any protocol, and how to render it.
type Chat struct {
	engine.Conversation
	special bool     // BOS and the like around it
	Merge   bool     // turns that the template refuses may be put together
	Offered string   // the parameter of an effort that is left out if the template refuses it
	Left    []string // places of omitted content
}

// Converse makes the prompt of g from a conversation, and its grammar from tools and thoughts.
func (s *Service) Converse(ctx context.Context, g *Request, c Chat) *apierr.Error {
	if e := s.checkUncalled(g.Tools); e != nil {
		return e
	}
	g.Tools, g.rendered = g.Tools.Callable(), true
	if e := s.openChat(ctx, g, &c); e != nil {
		return e
	}
	_, offered := c.Kwargs["reasoning_effort"]
	ids, turn, e := s.chatTurn(tokenizer.WithSearches(ctx), g, c)
	if e != nil {
		return e
	}
	if _, taken := c.Kwargs["reasoning_effort"]; offered && !taken {
		g.Ignored = append(g.Ignored, c.Offered)
	}
	if e := s.constrainTools(g, turn); e != nil {
		return e
	}
	header, e := s.header(ctx, g, turn)
	if e != nil {
		return e
	}
	if g.turn != nil {
		return s.SetTurn(g, append(ids, header...), -1, "messages")
	}
	ids = s.truncate(g, append(ids, header...), -1)
	g.Prompts = []Prompt{{Ids: ids}}
	return s.Fit(ids, &g.Params, -1, "messages")
}

// header returns the header of the message that a grammar forces upon a model with channels. turn is the end
// of the prompt.
func (s *Service) header(ctx context.Context, g *Request, turn string) ([]int32, *apierr.Error) {
	if g.callHead != "" {
		return s.Encode(ctx, []engine.Segment{{Text: g.callHead}}, false, "messages")
	}
	if g.Sampling.Grammar == nil || s.dialect(g.Tools).family != toolcall.Harmony || !strings.HasSuffix(turn, toolcall.HarmonyTurn) {
		return nil, nil
	}
	text := toolcall.HarmonyText
	if strings.HasPrefix(g.Sampling.Grammar.Kind, "json") {
		text = toolcall.HarmonyJSON
	}
	return s.Encode(ctx, []engine.Segment{{Text: text}}, false, "messages")
}

// ParseConversation reads the messages of a chat and how to render them. Errors are left in f.
func (s *Service) ParseConversation(f *jsonbody.Object) (c Chat) {
	f.Boolean("continue_final_message", &c.ContinueFinal)
	c.AddGenerationPrompt = !c.ContinueFinal
	f.Boolean("add_generation_prompt", &c.AddGenerationPrompt)
	if c.ContinueFinal && c.AddGenerationPrompt {
		f.Fail(apierr.Invalid("continue_final_message", "'continue_final_message' and 'add_generation_prompt' exclude each other."))
	}
	f.Boolean("add_special_tokens", &c.special)
	if v := f.Get("chat_template_kwargs"); v != nil {
		c.Kwargs = variables(f, "chat_template_kwargs", v)
	}
	var think bool
	if f.Boolean("enable_thinking", &think) { // the form of some clients
		c.Think(think)
	}
	var effort string
	f.Text("reasoning_effort", &effort)
	if v := f.Get("reasoning"); v != nil { // OpenRouter's form, and that of Responses
		var r struct {
			Effort  string `json:"effort"`
			Enabled *bool  `json:"enabled"`
		}
		if jsonbody.Unmarshal(v, &r) != nil {
			f.Fail(apierr.Invalid("reasoning", "'reasoning' must be an object with 'effort'."))
		}
		if r.Enabled != nil && r.Effort == "" {
			r.Effort = map[bool]string{true: "medium", false: "none"}[*r.Enabled]
		}
		effort = cmp.Or(effort, r.Effort)
	}
	s.Effort(&c.Conversation, effort)
	if f.Err != nil {
		return c
	}
	r := chatReader{Reader: turns.Reader{Limits: s.Config.Limits}}
	c.Messages, c.Left = r.messages(f.Get("messages"), c.ContinueFinal), r.Omitted
	f.Fail(r.Err)
	return c
}

// variables reads variables of a template. Numbers keep their form, and objects the order of their members, on which
// the prompt may depend. An error is left in f.
func variables(f *jsonbody.Object, name string, v json.RawMessage) map[string]any {
	var raw map[string]json.RawMessage
	if jsonbody.Unmarshal(v, &raw) != nil {
		f.Fail(apierr.Invalid(name, "'%s' must be an object.", name))
		return nil
	}
	out := make(map[string]any, len(raw))
	for key, v := range raw {
		var x any = v
		if v[0] != '{' && v[0] != '[' && !jsonbody.IsNumber(v) {
			x = nil
			_ = jsonbody.Unmarshal(v, &x) // a string, a truth value or null
		}
		out[key] = x
	}
	return out
}

// Effort passes the reasoning effort to the template, unless the request sets the template's own
// variables. Most templates only have a variable that enables thoughts.
func (s *Service) Effort(c *engine.Conversation, effort string) {
	if effort == "" || !s.Thinks {
		return
	}
	if _, given := c.Kwargs["enable_thinking"]; !given {
		c.Think(effort != "none" && effort != "minimal")
	}
	if _, given := c.Kwargs["reasoning_effort"]; !given {
		c.Kwargs["reasoning_effort"] = effort
	}
}

// ChatPrompt renders and encodes a conversation. turn is the end of the text, in which the
// answer continues.
func (s *Service) ChatPrompt(ctx context.Context, c Chat, tools *Toolset) (ids []int32, turn string, e *apierr.Error) {
	if s.Template == nil {
		return nil, "", apierr.InvalidCode("messages", "no_chat_template", "This model has no chat template; use /v1/completions.")
	}
	s.showTools(&c.Conversation, tools)
	segments, turn, err := s.renderMerged(c)
	if _, set := c.Kwargs["reasoning_effort"]; err != nil && set && c.Offered != "" && !errors.Is(err, python.ErrInternal) {
		delete(c.Kwargs, "reasoning_effort")
		segments, turn, err = s.renderMerged(c)
	}
	if err != nil {
		return nil, "", s.templateProblem(err)
	}
	ids, e = s.Encode(ctx, segments, c.special, "messages")
	return ids, turn, e
}

// renderMerged renders a conversation. It puts turns together that the template refuses, if c permits it.
func (s *Service) renderMerged(c Chat) (segments []engine.Segment, turn string, err error) {
	segments, turn, err = s.render(c.Conversation)
	if err != nil && c.Merge && !errors.Is(err, python.ErrInternal) {
		c.Messages = merged(c.Messages)
		segments, turn, err = s.render(c.Conversation)
	}
	return segments, turn, err
}

// templateProblem returns the client's error for an error of the chat template.
func (s *Service) templateProblem(err error) *apierr.Error {
	if errors.Is(err, python.ErrInternal) {
		return &apierr.Error{Status: http.StatusInternalServerError, Type: apierr.TypeServer, Code: "chat_template_error", Message: err.Error()}
	}
	return apierr.InvalidCode("messages", "chat_template_error", "The model's chat template refuses these messages: %v.", err)
}

// merged joins turns of one role, and allows a system message only at the beginning: some
// templates demand that.
func merged(list []engine.Message) (out []engine.Message) {
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
