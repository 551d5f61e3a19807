package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/internal/options"
	"github.com/shoal-llm/shoal/internal/text/jinja"
	"github.com/shoal-llm/shoal/internal/text/jinja/python"
)

// Message is one turn, decoded from OpenAI's JSON. Other members that a template may use
// (tool_calls, name, reasoning_content) are kept in Extra in their order.
type Message struct {
	Role    string
	Content string
	Parts   json.RawMessage // replaces Content: a list of content parts, or null
	Extra   json.RawMessage // a JSON object, or nil
}

type RenderOptions struct {
	AddGenerationPrompt bool            // end with the start of the assistant's turn
	ContinueFinal       bool            // leave the last message open, for the model to continue
	Tools               json.RawMessage // JSON list as in OpenAI's API, or nil
	Extra               map[string]any  // chat_template_kwargs: additional variables
	Now                 time.Time       // for strftime_now; zero: the current time
	Limits              python.Limits   // zero: jinja's defaults
}

// UnmarshalJSON extracts role and content and keeps the other members in order.
func (m *Message) UnmarshalJSON(data []byte) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return fmt.Errorf("%w: a message must be an object", ErrChatInput)
	}
	*m = Message{Parts: json.RawMessage("null")}
	var extra bytes.Buffer
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return fmt.Errorf("%w: %w", ErrChatInput, err)
		}
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return fmt.Errorf("%w: %w", ErrChatInput, err)
		}
		switch key := t.(string); key {
		case "role":
			if err := json.Unmarshal(raw, &m.Role); err != nil {
				return fmt.Errorf("%w: role must be a string", ErrChatInput)
			}
		case "content":
			m.Parts = nil
			if json.Unmarshal(raw, &m.Content) != nil || string(raw) == "null" {
				m.Parts = raw
			}
		default:
			name, err := json.Marshal(key)
			if err != nil {
				return fmt.Errorf("%w: %w", ErrChatInput, err)
			}
			if extra.Len() > 0 {
				extra.WriteByte(',')
			}
			fmt.Fprintf(&extra, "%s:%s", name, raw)
		}
	}
	if extra.Len() > 0 {
		m.Extra = json.RawMessage("{" + extra.String() + "}")
	}
	return nil
}

// Render renders the messages. Errors: ErrChatInput, python.ErrRaised (the template refuses the
// messages, a client error), python.ErrLimit, python.ErrRuntime.
func (c *ChatTemplate) Render(messages []Message, o RenderOptions) (Rendered, error) {
	prompt, _, err := c.RenderTurn(messages, o)
	return prompt, err
}

// RenderTurn is Render and also returns the end of the prompt, which the answer continues: the
// template's text after the last text of the request. With ContinueFinal it is the text up to and
// including that of the last message.
func (c *ChatTemplate) RenderTurn(messages []Message, o RenderOptions) (prompt Rendered, turn string, err error) {
	if o.ContinueFinal && (o.AddGenerationPrompt || len(messages) == 0) {
		return nil, "", fmt.Errorf("%w: continue_final_message needs a message and excludes add_generation_prompt", ErrChatInput)
	}
	v := c.plain
	if len(o.Tools) > 0 {
		v = c.tools
	}
	if v == nil {
		return nil, "", fmt.Errorf("%w: of the model's chat templates (%q) none is \"default\"; send tools, for \"tool_use\", or start the "+
			"server with "+options.Name("chat-template"), ErrChatInput, slices.Sorted(maps.Keys(c.source)))
	}
	vars, err := c.variables(v, messages, o)
	if err != nil {
		return nil, "", err
	}
	if o.Now.IsZero() {
		o.Now = time.Now()
	}
	text, err := v.parsed.Render(vars, jinja.Options{Limits: o.Limits, Now: o.Now})
	if err != nil {
		return nil, "", fmt.Errorf("tokenizer: chat template: %w", err)
	}
	at := len(text.String())
	if o.ContinueFinal {
		if text, at, err = chatCutAfter(text, messages[len(messages)-1]); err != nil {
			return nil, "", err
		}
	}
	start := 0
	for _, sp := range text.Spans() {
		if sp.Hi <= at {
			start = sp.Hi
		}
	}
	return c.controls.segments(text), text.String()[start:], nil
}

func (c *ChatTemplate) variables(v *chatVariant, messages []Message, o RenderOptions) (*python.Dict, error) {
	vars := python.NewDict()
	for name, token := range c.special.Strings() {
		vars.Set(name, token)
	}
	list := python.NewList()
	for i := range messages {
		m, err := v.message(&messages[i])
		if err != nil {
			return nil, fmt.Errorf("messages[%d]: %w", i, err)
		}
		list = list.With(m)
	}
	vars.Set("messages", list)
	vars.Set("tools", nil)
	vars.Set("documents", nil)
	if len(o.Tools) > 0 {
		tools, err := python.DecodeJSON(o.Tools, true)
		if l, ok := tools.(*python.List); err == nil && ok && l.Len() > 0 {
			vars.Set("tools", l)
		} else if err != nil || (!ok && tools != nil) {
			return nil, fmt.Errorf("%w: tools must be a JSON list (%v)", ErrChatInput, err)
		}
	}
	vars.Set("add_generation_prompt", o.AddGenerationPrompt)
	for name, x := range o.Extra {
		if _, taken := vars.Get(name); taken {
			return nil, fmt.Errorf("%w: chat_template_kwargs must not set %q", ErrChatInput, name)
		}
		raw, err := json.Marshal(x)
		if err != nil {
			return nil, fmt.Errorf("%w: chat_template_kwargs: %q: %w", ErrChatInput, name, err)
		}
		v, err := python.DecodeJSON(raw, true)
		if err != nil {
			return nil, fmt.Errorf("%w: chat_template_kwargs: %q: %w", ErrChatInput, name, err)
		}
		vars.Set(name, v)
	}
	return vars, nil
}

func (v *chatVariant) message(m *Message) (*python.Dict, error) {
	if m.Role == "" {
		return nil, fmt.Errorf("%w: role is missing", ErrChatInput)
	}
	d := python.NewDict()
	d.Set("role", python.Literal(m.Role))
	content, err := v.content.of(m)
	if err != nil {
		return nil, err
	}
	d.Set("content", content)
	if len(m.Extra) == 0 {
		return d, nil
	}
	more, err := python.DecodeJSON(m.Extra, true)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrChatInput, err)
	}
	extra, ok := more.(*python.Dict)
	if !ok {
		return nil, fmt.Errorf("%w: the further fields of a message must be an object", ErrChatInput)
	}
	for name, x := range extra.Strings() {
		if name == "role" || name == "content" {
			return nil, fmt.Errorf("%w: %s is given twice", ErrChatInput, name)
		}
		if name == "tool_calls" {
			x = chatArguments(x)
		}
		d.Set(name, x)
	}
	return d, nil
}

// chatArguments decodes the arguments of tool calls. OpenAI's API sends them as a JSON string, but
// templates expect an object.
func chatArguments(calls python.Value) python.Value {
	list, ok := calls.(*python.List)
	if !ok {
		return calls
	}
	for i := range list.Len() {
		call, _ := list.At(i).(*python.Dict)
		if call == nil {
			continue
		}
		fn, _ := call.Get("function")
		f, _ := fn.(*python.Dict)
		if f == nil {
			continue
		}
		a, _ := f.Get("arguments")
		s, ok := a.(python.Str)
		if a == nil { // missing or null
			f.Set("arguments", python.NewDict())
		}
		if !ok {
			continue
		}
		if strings.TrimSpace(s.String()) == "" {
			f.Set("arguments", python.NewDict())
		} else if v, err := python.DecodeJSON([]byte(s.String()), true); err == nil {
			if d, ok := v.(*python.Dict); ok {
				f.Set("arguments", d)
			}
		}
	}
	return calls
}
