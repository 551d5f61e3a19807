package ollama

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"

	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/generate"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
	"github.com/shoal-llm/shoal/internal/server/turns"
)

type ollamaTurn struct {
	Role     string          `json:"role"`
	Content  json.RawMessage `json:"content"`
	Thinking string          `json:"thinking"`
	Images   json.RawMessage `json:"images"`
	ToolName string          `json:"tool_name"`
	CallID   string          `json:"tool_call_id"`
	Calls    []struct {
		ID       string `json:"id"`
		Function struct {
			Name      string          `json:"name"`
			Arguments json.RawMessage `json:"arguments"`
		} `json:"function"`
	} `json:"tool_calls"`
}

// ollamaMessages returns the messages of a chat, and the places of omitted content; nil: there
// are none.
func ollamaMessages(v json.RawMessage, lim jsonbody.Limits) ([]engine.Message, []string, *apierr.Error) {
	if v == nil || jsonbody.EmptyValue(v) {
		return nil, nil, nil
	}
	all, e := turns.List(v, lim)
	if e != nil {
		return nil, nil, e
	}
	last := turns.NewestOfUser(turns.Roles(all), false)
	r := ollamaReader{Reader: turns.Reader{Limits: lim}}
	var list []engine.Message
	for i, raw := range all {
		r.Newest = i == last
		if list = append(list, r.message(i, raw)); r.Err != nil {
			return nil, nil, r.Err
		}
	}
	return list, r.Omitted, nil
}

type ollamaReader struct {
	turns.Reader
	open openCalls
}

func (r *ollamaReader) message(i int, raw json.RawMessage) engine.Message {
	at := "messages[" + strconv.Itoa(i) + "]"
	var m ollamaTurn
	if raw[0] != '{' || jsonbody.Unmarshal(raw, &m) != nil {
		r.Fail(apierr.Invalid(at, "'%s' must be an object with 'role' and 'content'.", at))
		return engine.Message{}
	}
	images := !jsonbody.IsNull(m.Images) && !jsonbody.EmptyValue(m.Images)
	if images && r.Newest {
		r.Fail(apierr.InvalidCode(at+".images", "unsupported_parameter",
			"'%s.images' is not supported: only text is. Send the message without images.", at))
	}
	out := engine.Message{Role: r.CheckRole(at, m.Role), Name: m.ToolName}
	switch {
	case out.Role == "tool":
		out.CallID = r.open.answered(m.CallID, m.ToolName)
	case out.Role == "assistant":
		out.Calls = r.calls(at, i, &m)
		r.Thoughts = &[]string{}
	case len(m.Calls) > 0:
		r.Fail(generate.CallsOfOthers(at))
	}
	out.Content = r.Text(at+".content", m.Content)
	if images {
		r.Omit(at + ".images")
		out.Content = turns.JoinLines(out.Content, turns.OmittedContent("an image"))
	}
	if out.Role == "assistant" {
		out.Thought = cmp.Or(m.Thinking, turns.JoinLines(*r.Thoughts...))
		r.Thoughts = nil
	}
	return out
}

// calls returns the calls of a message in OpenAI's form, which templates use.
func (r *ollamaReader) calls(at string, i int, m *ollamaTurn) json.RawMessage {
	var calls []any
	for k, c := range m.Calls {
		if c.Function.Name == "" {
			r.Fail(generate.NotACall(at + ".tool_calls[" + strconv.Itoa(k) + "]"))
		}
		args := "{}"
		switch v := c.Function.Arguments; {
		case jsonbody.IsNull(v):
		case v[0] == '"': // as OpenAI's clients write them
			_ = jsonbody.Unmarshal(v, &args) // a valid string decodes
		default:
			args = jsonbody.CompactJSON(v)
		}
		id := cmp.Or(c.ID, "call-"+strconv.Itoa(i)+"-"+strconv.Itoa(k))
		r.open = append(r.open, openCall{id, c.Function.Name})
		calls = append(calls,
			map[string]any{"id": id, "type": "function", "function": map[string]any{"name": c.Function.Name, "arguments": args}})
	}
	if calls == nil {
		return nil
	}
	return jsonbody.MustJSON(calls)
}

type openCall struct{ id, name string }

// openCalls are calls without a result, in order. Most clients of Ollama send no ids, and some
// templates refuse a result without the id of its call.
type openCalls []openCall

// answered removes the call that a result belongs to, by id, else the first of its name, else the
// first, and returns its id.
func (o *openCalls) answered(id, name string) string {
	at := slices.IndexFunc(*o, func(c openCall) bool { return id != "" && c.id == id || id == "" && c.name == name })
	if at < 0 {
		at = 0
	}
	if len(*o) == 0 || id != "" && (*o)[at].id != id {
		return id
	}
	id = (*o)[at].id
	*o = slices.Delete(*o, at, at+1)
	return id
}
