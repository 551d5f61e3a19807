package api

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/shoal-llm/shoal/internal/text/jinja"
	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

// talk is what a chat's prompt is made of, in whichever protocol it came.
type talk struct {
	Conversation
	special bool     // BOS and the like around it
	merge   bool     // turns that the template refuses may be put together
	left    []string // places of what was left out of it
}

// converse turns a conversation into the prompt of g, and what g's tools and thoughts ask
// for into its grammar.
func (s *Service) converse(ctx context.Context, g *generation, c talk) *apiError {
	if e := s.checkUncalled(g.tools); e != nil {
		return e
	}
	g.tools, g.rendered = g.tools.callable(), true
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
func (s *Service) parseConversation(f *fields) (c talk) {
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
	f.str("reasoning_effort", &effort)
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
		effort = cmp.Or(effort, r.Effort)
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
func (s *Service) effort(c *Conversation, effort string) {
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
func (s *Service) chatPrompt(ctx context.Context, c talk, tools *toolset) (ids []int32, turn string, e *apiError) {
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
