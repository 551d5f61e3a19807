package api

import (
	"cmp"
	"encoding/json"
	"strconv"
)

// messages reads the messages of a chat.
func (c *turnReader) messages(v json.RawMessage, continues bool) []Message {
	list, e := messageList(v, c.lim)
	c.fail(e)
	last := newest(rolesOf(list), continues)
	out := make([]Message, 0, len(list))
	for i, raw := range list {
		c.now = i == last
		if out = append(out, c.message(i, raw)); c.err != nil {
			return nil
		}
	}
	return out
}

func (c *turnReader) message(i int, raw json.RawMessage) Message {
	at := "messages[" + strconv.Itoa(i) + "]"
	msg, e := parseFields(raw, nil)
	if e != nil {
		c.fail(invalid(at, "'%s' must be an object.", at))
		return Message{}
	}
	str := func(name string) (text string) {
		if v := msg.get(name); v != nil && unmarshal(v, &text) != nil {
			c.fail(invalid(at+"."+name, "'%s.%s' must be a string.", at, name))
		}
		return text
	}
	out := Message{Role: str("role"), Name: str("name")}
	if c.err != nil {
		return out
	}
	role := c.checkRole(at, out.Role)
	switch {
	case out.Role == "function":
		out.CallID = c.legacy
	case role == "tool":
		out.CallID = str("tool_call_id")
	}
	out.Role = role
	content, calls := msg.get("content"), msg.get("tool_calls")
	if out.Role == "assistant" {
		out.Calls, e = decodeCalls(at+".tool_calls", calls, c.lim)
		c.fail(e)
		if v := msg.get("function_call"); out.Calls == nil && v != nil {
			out.Calls = c.legacyCall(at, i, v)
		}
		c.thoughts = &[]string{}
	} else if calls != nil && !emptyValue(calls) {
		c.fail(callsOfOthers(at))
	}
	out.Content = c.text(at+".content", content)
	if out.Role == "assistant" {
		out.Content = joinLines(out.Content, str("refusal"))
		out.Thought = c.thought(at, msg)
		out.Empty = out.Calls != nil && content == nil && out.Content == ""
		c.thoughts = nil
	}
	for _, name := range msg.unread() {
		if !emptyValue(msg.raw[name]) {
			c.leave(at + "." + name)
		}
	}
	return out
}

// checkRole is the role under which a template knows a message.
func (c *turnReader) checkRole(at, role string) string {
	switch role {
	case "system", "user", "assistant", "tool":
		return role
	case "developer": // OpenAI's newer name; templates know the older one
		return "system"
	case "function": // what came before tools
		if c.legacy == "" {
			c.fail(invalidCode(at+".role", "unsupported_parameter", "'%s.role' is %q, and no message before it has a 'function_call'. Use 'tool'.", at, role))
		}
		return "tool"
	}
	c.fail(invalid(at+".role", "'%s.role' must be system, developer, user, assistant or tool, got %.40q.", at, role))
	return role
}

func callsOfOthers(at string) *apiError {
	return invalid(at+".tool_calls", "'%s.tool_calls' belong to the assistant.", at)
}

// thought is what the assistant thought before its answer, under any of the names in use.
func (c *turnReader) thought(at string, msg *fields) string {
	found := ""
	for _, name := range [...]string{"reasoning_content", "reasoning", "thinking"} {
		v := msg.get(name)
		if text := stringOf(v); text != "" {
			found = cmp.Or(found, text)
		} else if v != nil && !emptyValue(v) {
			c.leave(at + "." + name)
		}
	}
	var details []struct {
		Text    string `json:"text"`
		Summary string `json:"summary"`
	}
	_ = unmarshal(msg.get("reasoning_details"), &details) // of any other form: nothing
	if found == "" {
		var texts []string
		for _, d := range details {
			texts = append(texts, cmp.Or(d.Text, d.Summary))
		}
		found = joinLines(append(*c.thoughts, texts...)...)
	}
	return found
}

// legacyCall is a function_call as a call of today.
func (c *turnReader) legacyCall(at string, i int, v json.RawMessage) json.RawMessage {
	var call struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	}
	if unmarshal(v, &call) != nil || call.Name == "" {
		c.leave(at + ".function_call")
		return nil
	}
	c.legacy = "call_" + strconv.Itoa(i)
	return mustJSON([]ToolCall{madeCall{name: call.Name, arguments: []byte(cmp.Or(call.Arguments, "{}")), id: c.legacy}.toolCall()})
}
