package generate

import (
	"cmp"
	"encoding/json"
	"strconv"

	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
	"github.com/shoal-llm/shoal/internal/server/turns"
)

// chatReader reads the messages of OpenAI's chats.
type chatReader struct {
	turns.Reader
	legacy string // id of the newest function_call
}

// messages reads the messages of a chat.
func (c *chatReader) messages(v json.RawMessage, continues bool) []engine.Message {
	list, e := turns.List(v, c.Limits)
	c.Fail(e)
	last := turns.NewestOfUser(turns.Roles(list), continues)
	out := make([]engine.Message, 0, len(list))
	for i, raw := range list {
		c.Newest = i == last
		if out = append(out, c.message(i, raw)); c.Err != nil {
			return nil
		}
	}
	return out
}

func (c *chatReader) message(i int, raw json.RawMessage) engine.Message {
	at := "messages[" + strconv.Itoa(i) + "]"
	msg, e := jsonbody.Parse(raw, nil)
	if e != nil {
		c.Fail(apierr.Invalid(at, "'%s' must be an object.", at))
		return engine.Message{}
	}
	str := func(name string) (text string) {
		if v := msg.Get(name); v != nil && jsonbody.Unmarshal(v, &text) != nil {
			c.Fail(apierr.Invalid(at+"."+name, "'%s.%s' must be a string.", at, name))
		}
		return text
	}
	out := engine.Message{Role: str("role"), Name: str("name")}
	if c.Err != nil {
		return out
	}
	role := c.role(at, out.Role)
	switch {
	case out.Role == "function":
		out.CallID = c.legacy
	case role == "tool":
		out.CallID = str("tool_call_id")
	}
	out.Role = role
	content, calls := msg.Get("content"), msg.Get("tool_calls")
	if out.Role == "assistant" {
		out.Calls, e = decodeCalls(at+".tool_calls", calls, c.Limits)
		c.Fail(e)
		if v := msg.Get("function_call"); out.Calls == nil && v != nil {
			out.Calls = c.legacyCall(at, i, v)
		}
		c.Thoughts = &[]string{}
	} else if calls != nil && !jsonbody.EmptyValue(calls) {
		c.Fail(CallsOfOthers(at))
	}
	out.Content = c.Text(at+".content", content)
	if out.Role == "assistant" {
		out.Content = turns.JoinLines(out.Content, str("refusal"))
		out.Thought = c.thought(at, msg)
		out.Empty = out.Calls != nil && content == nil && out.Content == ""
		c.Thoughts = nil
	}
	for _, name := range msg.Unread() {
		if !jsonbody.EmptyValue(msg.Raw[name]) {
			c.Omit(at + "." + name)
		}
	}
	return out
}

// role returns the role of a message in a template.
func (c *chatReader) role(at, role string) string {
	if role != "function" { // OpenAI's older form of tools
		return c.CheckRole(at, role)
	}
	if c.legacy == "" {
		c.Fail(apierr.InvalidCode(at+".role", "unsupported_parameter",
			"'%s.role' is %q, and no message before it has a 'function_call'. Use 'tool'.", at, role))
	}
	return "tool"
}

func CallsOfOthers(at string) *apierr.Error {
	return apierr.Invalid(at+".tool_calls", "'%s.tool_calls' belong to the assistant.", at)
}

// thought returns the assistant's thought before its answer, under any of the names in use.
func (c *chatReader) thought(at string, msg *jsonbody.Object) string {
	found := ""
	for _, name := range [...]string{"reasoning_content", "reasoning", "thinking"} {
		v := msg.Get(name)
		if text := jsonbody.StringOf(v); text != "" {
			found = cmp.Or(found, text)
		} else if v != nil && !jsonbody.EmptyValue(v) {
			c.Omit(at + "." + name)
		}
	}
	var details []struct {
		Text    string `json:"text"`
		Summary string `json:"summary"`
	}
	_ = jsonbody.Unmarshal(msg.Get("reasoning_details"), &details) // of any other form: nothing
	if found == "" {
		var texts []string
		for _, d := range details {
			texts = append(texts, cmp.Or(d.Text, d.Summary))
		}
		found = turns.JoinLines(append(*c.Thoughts, texts...)...)
	}
	return found
}

// legacyCall converts a function_call to a tool call.
func (c *chatReader) legacyCall(at string, i int, v json.RawMessage) json.RawMessage {
	var call struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	}
	if jsonbody.Unmarshal(v, &call) != nil || call.Name == "" {
		c.Omit(at + ".function_call")
		return nil
	}
	c.legacy = "call_" + strconv.Itoa(i)
	return jsonbody.MustJSON([]ToolCall{Call{Name: call.Name, Arguments: []byte(cmp.Or(call.Arguments, "{}")), Id: c.legacy}.ToolCall()})
}
