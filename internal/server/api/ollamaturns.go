package api

import (
	"encoding/json"
	"slices"
)

// ollamaMessages are the turns in OpenAI's words, and the places of what was left out; nil: there
// are none.
func ollamaMessages(v json.RawMessage, lim Limits) (list []any, left []string, e *apiError) {
	if v == nil || emptyValue(v) {
		return nil, nil, nil
	}
	turns, e := messageList(v, lim)
	if e != nil {
		return nil, nil, e
	}
	last := newest(rolesOf(turns), false)
	r := turnReader{lim: lim}
	var open openCalls
	for i, raw := range turns {
		at := "messages[" + itoa(i) + "]"
		var m struct {
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
		if raw[0] != '{' || unmarshal(raw, &m) != nil {
			return nil, nil, invalid(at, "'%s' must be an object with 'role' and 'content'.", at)
		}
		if !isNull(m.Images) && !emptyValue(m.Images) {
			if i == last {
				return nil, nil, invalidCode(at+".images", "unsupported_parameter", "'%s.images' is not supported: only text is. Send the message without images.", at)
			}
			r.leave(at + ".images")
			m.Content = mustJSON(joinLines(r.text(at+".content", m.Content), leftOut("an image")))
		}
		if isNull(m.Content) {
			m.Content = json.RawMessage(`""`)
		}
		turn := map[string]any{"role": m.Role, "content": m.Content}
		if m.Thinking != "" {
			turn["reasoning_content"] = m.Thinking
		}
		if m.ToolName != "" {
			turn["name"] = m.ToolName
		}
		if m.Role == "tool" {
			turn["tool_call_id"] = open.answered(m.CallID, m.ToolName)
		}
		var calls []any
		for k, c := range m.Calls {
			args := "{}"
			switch v := c.Function.Arguments; {
			case isNull(v):
			case v[0] == '"': // as OpenAI's clients write them
				_ = unmarshal(v, &args) // a valid string decodes
			default:
				args = compactJSON(v)
			}
			id := orDefault(c.ID, "call-"+itoa(i)+"-"+itoa(k))
			open = append(open, openCall{id, c.Function.Name})
			calls = append(calls, map[string]any{"id": id, "type": "function", "function": map[string]any{"name": c.Function.Name, "arguments": args}})
		}
		if calls != nil {
			turn["tool_calls"] = calls
		}
		list = append(list, turn)
	}
	return list, r.left, r.err
}

type openCall struct{ id, name string }

// openCalls are calls without a result, in order. Most clients of Ollama send no ids, and some
// templates refuse a result without the id of its call.
type openCalls []openCall

// answered takes out the call that a result is of: that of its id, else the first one of its
// name, else the first one.
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
