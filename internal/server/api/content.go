package api

import (
	"cmp"
	"encoding/json"
	"strconv"
	"strings"
)

// turnReader reads the turns of a conversation, in any protocol. It refuses content that is not
// text only in the newest message of the user. Elsewhere it leaves such content out and names it:
// a client sends its history with every request, and could not continue otherwise.
type turnReader struct {
	lim  Limits
	now  bool     // what is read is the newest message of the user
	left []string // places of what was left out

	thoughts *[]string // of the assistant's message that is read; nil: it is another's
	legacy   string    // id of the newest function_call

	err *apiError // the first one; what is read after it does not count
}

// fail notes the first error.
func (c *turnReader) fail(e *apiError) {
	if c.err == nil {
		c.err = e
	}
}

// leave names what is left out. The names go into a header, so their number is bounded.
func (c *turnReader) leave(at string) {
	if len(c.left) < maxNamed {
		c.left = append(c.left, at)
	}
}

// newest is the index of the newest message of the user, -1 if there is none or it was answered.
// continues: a last message of the assistant is the beginning of the answer that is asked for.
func newest(roles []string, continues bool) int {
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

// rolesOf are the roles of a list of messages, "" where there is none.
func rolesOf(list []json.RawMessage) []string {
	out := make([]string, len(list))
	for i, raw := range list {
		var m struct {
			Role string `json:"role"`
		}
		_ = unmarshal(raw, &m) // turnReader refuses a message that does not decode
		out[i] = m.Role
	}
	return out
}

// messageList reads a list whose elements are decoded one by one.
func messageList(v json.RawMessage, lim Limits) (list []json.RawMessage, e *apiError) {
	if v == nil {
		return nil, invalidCode("messages", "missing_required_parameter", "'messages' is required.")
	}
	if v[0] != '[' {
		return nil, invalid("messages", "'messages' must be a list of messages.")
	}
	e = elements("messages", "messages", v, lim.Messages, func(_ int, raw json.RawMessage) *apiError {
		list = append(list, raw)
		return nil
	})
	if e == nil && len(list) == 0 {
		e = invalid("messages", "'messages' must not be empty.")
	}
	return list, e
}

// text reads content: a string, or a list of parts whose texts are joined by newlines (vLLM's
// reading for templates that expect a string). Null and absent are empty.
func (c *turnReader) text(at string, v json.RawMessage) string {
	if isNull(v) {
		return ""
	}
	switch v[0] {
	case '"':
		return stringOf(v)
	case '{':
		text, _ := c.part(at, v)
		return text
	case '[':
	default:
		c.fail(invalid(at, "'%s' must be a string or a list of text parts.", at))
		return ""
	}
	var texts []string
	c.fail(elements(at, "parts", v, c.lim.Parts, func(i int, raw json.RawMessage) *apiError {
		if text, ok := c.part(at+"["+strconv.Itoa(i)+"]", raw); ok {
			texts = append(texts, text)
		}
		return c.err
	}))
	return strings.Join(texts, "\n")
}

// part reads a part of content, or a block; false: it was left out.
func (c *turnReader) part(at string, raw json.RawMessage) (text string, ok bool) {
	var p map[string]json.RawMessage
	if raw[0] != '{' || unmarshal(raw, &p) != nil {
		c.fail(invalid(at, "'%s' must be an object with 'type' and 'text'.", at))
		return "", false
	}
	kind := stringOf(p["type"])
	switch kind {
	case "text", "input_text", "output_text", "summary_text", "reasoning_text", "":
		v := p["text"]
		switch {
		case kind == "" && isNull(v):
		case isNull(v) && c.now:
			c.fail(invalid(at+".text", "'%s.text' is required.", at))
			return "", false
		case !isNull(v) && v[0] != '"':
			c.fail(invalid(at+".text", "'%s.text' must be a string.", at))
			return "", false
		default:
			return stringOf(v), true
		}
	case "refusal":
		return stringOf(p["refusal"]), true
	case "thinking", "reasoning":
		if c.thoughts != nil {
			inner := turnReader{lim: c.lim}
			*c.thoughts = append(*c.thoughts, cmp.Or(inner.text(at+".thinking", p["thinking"]), stringOf(p["text"])))
			c.fail(inner.err)
			return "", false
		}
	case "document":
		if text, ok := c.document(at, p); ok {
			return text, true
		}
	case "search_result":
		return joinLines(stringOf(p["title"]), stringOf(p["source"]), c.text(at+".content", p["content"])), true
	case "tool_reference":
		return stringOf(p["tool_name"]), true
	case "compaction": // what a client made of turns before
		if text := c.text(at+".content", p["content"]); text != "" {
			return text, true
		}
	}
	what := namedKind(kind)
	if c.now {
		c.fail(invalidCode(at+".type", "unsupported_parameter", "'%s.type' is %.40q: only text is supported. Send the message without %s.", at, kind, cmp.Or(what, "it")))
		return "", false
	}
	c.leave(at)
	if what == "" {
		return "", false
	}
	return leftOut(what), true
}

// leftOut tells the model what it cannot see.
func leftOut(what string) string {
	return "[" + strings.ToUpper(what[:1]) + what[1:] + " was left out: only text can be read here.]"
}

// namedKind says what a kind of content is; "": that is not known.
func namedKind(kind string) string {
	for _, k := range [...]struct{ part, what string }{{"image", "an image"}, {"screenshot", "an image"}, {"audio", "a recording"}, {"video", "a video"}, {"file", "a file"}, {"document", "a document"}} {
		if strings.Contains(kind, k.part) {
			return k.what
		}
	}
	return ""
}

// document is the text of one of Anthropic's documents; false: it is none.
func (c *turnReader) document(at string, p map[string]json.RawMessage) (text string, ok bool) {
	var source struct {
		Type    string          `json:"type"`
		Data    string          `json:"data"`
		Content json.RawMessage `json:"content"`
	}
	_ = unmarshal(p["source"], &source) // what is no such object has no type
	switch source.Type {
	case "text":
		text = source.Data
	case "content":
		text = c.text(at+".source.content", source.Content)
	default:
		return "", false
	}
	return joinLines(stringOf(p["title"]), stringOf(p["context"]), text), true
}

// joinLines joins what is not empty.
func joinLines(texts ...string) string {
	var out []string
	for _, t := range texts {
		if t != "" {
			out = append(out, t)
		}
	}
	return strings.Join(out, "\n")
}
