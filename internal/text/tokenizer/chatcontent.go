package tokenizer

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/shoal-llm/shoal/internal/text/jinja"
	"github.com/shoal-llm/shoal/internal/text/jinja/python"
)

// of returns a message's content in a form that the template supports.
func (c chatContent) of(m *Message) (python.Value, error) {
	if m.Parts == nil {
		if c == chatList {
			return python.NewList(chatTextPart(m.Content)), nil
		}
		return python.Literal(m.Content), nil
	}
	if string(m.Parts) == "null" {
		return nil, nil
	}
	texts, err := chatTexts(m.Parts)
	if err != nil {
		return nil, err
	}
	if c == chatString {
		return python.Literal(strings.Join(texts, "\n")), nil
	}
	list := python.NewList()
	for _, t := range texts {
		list = list.With(chatTextPart(t))
	}
	return list, nil
}

func chatTextPart(text string) *python.Dict {
	d := python.NewDict()
	d.Set("type", python.Trusted("text"))
	d.Set("text", python.Literal(text))
	return d
}

func chatTexts(parts json.RawMessage) ([]string, error) {
	var list []struct {
		Type string
		Text *string
	}
	if err := json.Unmarshal(parts, &list); err != nil {
		return nil, fmt.Errorf("%w: content must be a string or a list of parts: %w", ErrChatInput, err)
	}
	texts := make([]string, len(list))
	for i, p := range list {
		if p.Type != "text" || p.Text == nil {
			return nil, fmt.Errorf("%w: content[%d] has type %q: only {\"type\": \"text\", \"text\": ...} is supported", ErrChatInput, i, p.Type)
		}
		texts[i] = *p.Text
	}
	return texts, nil
}

// probeContent determines by rendering which forms a template supports. A form is supported if the
// whole text appears. A list is supported if it prints like a string.
func (c *ChatTemplate) probeContent(v *chatVariant) chatContent {
	const probe = "Probe of content"
	try := func(content python.Value) string {
		m := python.NewDict()
		m.Set("role", python.Trusted("user"))
		m.Set("content", content)
		vars, err := c.variables(v, nil, RenderOptions{})
		if err != nil {
			return ""
		}
		vars.Set("messages", python.NewList(m))
		text, err := v.parsed.Render(vars, jinja.Options{Limits: python.Limits{Steps: 100_000}})
		if err != nil || !strings.Contains(text.String(), probe) {
			return ""
		}
		return text.String()
	}
	asString := try(python.Literal(probe))
	asList := try(python.NewList(chatTextPart(probe)))
	switch {
	case asString != "" && asList == asString:
		return chatEither
	case asString == "" && asList != "":
		return chatList
	}
	return chatString
}

// chatCutAfter cuts the output after the last message's text, so that the model continues it, like
// continue_final_message of transformers.
func chatCutAfter(text python.Str, last Message) (cut python.Str, at int, err error) {
	content := last.Content
	if last.Parts != nil {
		texts, err := chatTexts(last.Parts)
		if err != nil || len(texts) == 0 {
			return text, 0, fmt.Errorf("%w: continue_final_message needs a last message with text", ErrChatInput)
		}
		content = texts[len(texts)-1]
	}
	s, trimmed := text.String(), strings.TrimSpace(content)
	at = lastOfRequest(text, trimmed)
	if at < 0 {
		return text, 0, fmt.Errorf("%w: continue_final_message: this chat template does not print the last message unchanged", ErrChatInput)
	}
	end := at + len(trimmed)
	if whole := strings.TrimLeftFunc(content, unicode.IsSpace); strings.HasPrefix(s[at:], whole) {
		end = at + len(whole)
	}
	return text.Prefix(end), at, nil
}

// lastOfRequest returns where a part last occurs in the text of the request, else in the whole text: the marks that
// a template writes after a message may contain it, too.
func lastOfRequest(text python.Str, part string) int {
	s := text.String()
	for _, sp := range slices.Backward(text.Spans()) {
		if at := strings.LastIndex(s[sp.Lo:sp.Hi], part); at >= 0 && part != "" {
			return sp.Lo + at
		}
	}
	return strings.LastIndex(s, part)
}
