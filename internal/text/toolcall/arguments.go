package toolcall

import (
	"encoding/json"
	"strings"
)

// one parses the call in a JSON object. Member names must match exactly.
func (p *Parser) one(raw []byte) (Call, bool) {
	var m map[string]json.RawMessage
	if json.Unmarshal(raw, &m) != nil {
		return Call{}, false
	}
	var name string
	if m["name"] == nil {
		m["name"] = m["tool_name"]
	}
	if json.Unmarshal(m["name"], &name) != nil || name == "" { // {"function": "f", ...}, or as in OpenAI's API
		f := m["function"]
		if len(f) > 0 && f[0] == '{' {
			return p.one(f)
		}
		if json.Unmarshal(f, &name) != nil {
			return Call{}, false
		}
	}
	args, ok := m["arguments"]
	if !ok {
		args = m["parameters"]
	}
	text, ok := object(string(args))
	return Call{name, text}, ok && p.known(name)
}

// Repair converts the arguments of an earlier call to a JSON object. An object stays unchanged. An
// invalid one is repaired as in an answer. Anything else becomes {}.
func Repair(arguments string) string {
	if strings.HasPrefix(strings.TrimLeft(arguments, blanks), "{") && json.Valid([]byte(arguments)) {
		return arguments
	}
	if out, _ := object(arguments); json.Valid([]byte(out)) {
		return out
	}
	return "{}"
}

// object converts the value of "arguments" to a JSON object: the object itself, one inside a
// string, or an empty one for a missing, null or empty value.
func object(value string) (string, bool) {
	switch value = strings.TrimSpace(value); value {
	case "", "null", "None", `""`, "[]":
		return "{}", true
	}
	var text string
	if value[0] == '"' && json.Unmarshal([]byte(value), &text) == nil {
		if text == "" || text[0] == '"' {
			return "{}", strings.TrimSpace(text) == ""
		}
		return object(text)
	}
	if value[0] != '{' {
		return "", false
	}
	var w writer
	out, n, _ := w.take(value, true)
	return out + w.end(), n == len(value)
}
