// Package turns reads the turns of a conversation in any protocol: roles, and content as text.
package turns

import (
	"cmp"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
)

// Reader reads the turns of a conversation, in any protocol. It refuses content that is not
// text only in the newest message of the user. Elsewhere it leaves such content out and names it:
// a client sends its history with every request, and could not continue otherwise.
type Reader struct {
	Limits  jsonbody.Limits
	Newest  bool     // the message is the newest one of the user
	Omitted []string // places of omitted content

	Thoughts *[]string // of the assistant's message that is read; nil: the message has another role

	Err *apierr.Error // the first error; content after it is ignored
}

// Fail records the first error.
func (c *Reader) Fail(e *apierr.Error) {
	if c.Err == nil {
		c.Err = e
	}
}

// Omit records a place that was left out. The places go into a header, so their number is bounded.
func (c *Reader) Omit(at string) {
	if len(c.Omitted) < jsonbody.MaxNamed {
		c.Omitted = append(c.Omitted, at)
	}
}

// NewestOfUser returns the index of the newest message of the user, or -1 if there is none or it was answered.
// continues: a last message of the assistant is the beginning of the answer that is asked for.
func NewestOfUser(roles []string, continues bool) int {
	if n := len(roles) - 1; continues && n >= 0 && roles[n] == "assistant" {
		roles = roles[:n]
	}
	for i := len(roles) - 1; i >= 0; i-- {
		switch roles[i] {
		case "user":
			return i
		case "system", "developer":
		default:
			return -1
		}
	}
	return -1
}

// Roles returns the roles of a list of messages, or "" if there is none.
func Roles(list []json.RawMessage) []string {
	out := make([]string, len(list))
	for i, raw := range list {
		var m struct {
			Role string `json:"role"`
		}
		_ = jsonbody.Unmarshal(raw, &m) // Reader refuses a message that does not decode
		out[i] = m.Role
	}
	return out
}

// List reads a list whose elements are decoded one by one.
func List(v json.RawMessage, lim jsonbody.Limits) (list []json.RawMessage, e *apierr.Error) {
	if v == nil {
		return nil, apierr.InvalidCode("messages", "missing_required_parameter", "'messages' is required.")
	}
	if v[0] != '[' {
		return nil, apierr.Invalid("messages", "'messages' must be a list of messages.")
	}
	e = jsonbody.Elements("messages", "messages", v, lim.Messages, func(_ int, raw json.RawMessage) *apierr.Error {
		list = append(list, raw)
		return nil
	})
	if e == nil && len(list) == 0 {
		e = apierr.Invalid("messages", "'messages' must not be empty.")
	}
	return list, e
}

// CheckRole returns the role of a message in a template.
func (c *Reader) CheckRole(at, role string) string {
	switch role {
	case "system", "user", "assistant", "tool":
		return role
	case "developer": // OpenAI's newer name; templates have the older one
		return "system"
	}
	c.Fail(apierr.Invalid(at+".role", "'%s.role' must be system, developer, user, assistant or tool, got %.40q.", at, role))
	return role
}

// Text reads content: a string, or a list of parts whose texts are joined by newlines (vLLM's
// reading for templates that expect a string). Null and absent are empty.
func (c *Reader) Text(at string, v json.RawMessage) string {
	if jsonbody.IsNull(v) {
		return ""
	}
	switch v[0] {
	case '"':
		return jsonbody.StringOf(v)
	case '{':
		text, _ := c.Part(at, v)
		return text
	case '[':
	default:
		c.Fail(apierr.Invalid(at, "'%s' must be a string or a list of text parts.", at))
		return ""
	}
	var texts []string
	c.Fail(jsonbody.Elements(at, "parts", v, c.Limits.Parts, func(i int, raw json.RawMessage) *apierr.Error {
		if text, ok := c.Part(at+"["+strconv.Itoa(i)+"]", raw); ok {
			texts = append(texts, text)
		}
		return c.Err
	}))
	return strings.Join(texts, "\n")
}

// Part reads a part of content, or a block; false: it was left out.
func (c *Reader) Part(at string, raw json.RawMessage) (text string, ok bool) {
	var p map[string]json.RawMessage
	if raw[0] != '{' || jsonbody.Unmarshal(raw, &p) != nil {
		c.Fail(apierr.Invalid(at, "'%s' must be an object with 'type' and 'text'.", at))
		return "", false
	}
	kind := jsonbody.StringOf(p["type"])
	switch kind {
	case "text", "input_text", "output_text", "summary_text", "reasoning_text", "":
		v := p["text"]
		switch {
		case kind == "" && jsonbody.IsNull(v):
		case jsonbody.IsNull(v) && c.Newest:
			c.Fail(apierr.Invalid(at+".text", "'%s.text' is required.", at))
			return "", false
		case !jsonbody.IsNull(v) && v[0] != '"':
			c.Fail(apierr.Invalid(at+".text", "'%s.text' must be a string.", at))
			return "", false
		default:
			return jsonbody.StringOf(v), true
		}
	case "refusal":
		return jsonbody.StringOf(p["refusal"]), true
	case "thinking", "reasoning":
		if c.Thoughts != nil {
			inner := Reader{Limits: c.Limits}
			*c.Thoughts = append(*c.Thoughts, cmp.Or(inner.Text(at+".thinking", p["thinking"]), jsonbody.StringOf(p["text"])))
			c.Fail(inner.Err)
			return "", false
		}
	case "document":
		if text, ok := c.document(at, p); ok {
			return text, true
		}
	case "search_result":
		return JoinLines(jsonbody.StringOf(p["title"]), jsonbody.StringOf(p["source"]), c.Text(at+".content", p["content"])), true
	case "tool_reference":
		return jsonbody.StringOf(p["tool_name"]), true
	case "compaction": // a client's summary of earlier turns
		if text := c.Text(at+".content", p["content"]); text != "" {
			return text, true
		}
	}
	what := namedKind(kind)
	if c.Newest {
		c.Fail(apierr.InvalidCode(at+".type", "unsupported_parameter", "'%s.type' is %.40q: only text is supported. Send the message without %s.",
			at, kind, cmp.Or(what, "it")))
		return "", false
	}
	c.Omit(at)
	if what == "" {
		return "", false
	}
	return OmittedContent(what), true
}

// OmittedContent returns the text in place of content that the model cannot read.
func OmittedContent(what string) string {
	return "[" + strings.ToUpper(what[:1]) + what[1:] + " was left out: only text can be read here.]"
}

// namedKind names a kind of content in English; "": it is unknown.
func namedKind(kind string) string {
	for _, k := range [...]struct{ part, what string }{{"image", "an image"}, {"screenshot", "an image"}, {"audio", "a recording"},
		{"video", "a video"}, {"file", "a file"}, {"document", "a document"}} {
		if strings.Contains(kind, k.part) {
			return k.what
		}
	}
	return ""
}

// document returns the text of one of Anthropic's documents, or false for another type of content.
func (c *Reader) document(at string, p map[string]json.RawMessage) (text string, ok bool) {
	var source struct {
		Type    string          `json:"type"`
		Data    string          `json:"data"`
		Content json.RawMessage `json:"content"`
	}
	_ = jsonbody.Unmarshal(p["source"], &source) // another value has no type
	switch source.Type {
	case "text":
		text = source.Data
	case "content":
		text = c.Text(at+".source.content", source.Content)
	default:
		return "", false
	}
	return JoinLines(jsonbody.StringOf(p["title"]), jsonbody.StringOf(p["context"]), text), true
}

// JoinLines joins the parts that are not empty.
func JoinLines(texts ...string) string {
	var out []string
	for _, t := range texts {
		if t != "" {
			out = append(out, t)
		}
	}
	return strings.Join(out, "\n")
}
