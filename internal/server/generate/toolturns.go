package generate

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
	"github.com/shoal-llm/shoal/internal/text/toolcall"
)

// showTools passes the tools to the template. For a template without tools, it describes tools, calls
// and results in plain text.
func (s *Service) showTools(c *engine.Conversation, t *Toolset) {
	family := s.dialect(t).family
	for i := range c.Messages {
		c.Messages[i].Calls = repairedCalls(c.Messages[i].Calls)
	}
	if family == toolcall.Mistral {
		for i := range c.Messages {
			m := &c.Messages[i]
			m.CallID, m.Calls = nineLetters(m.CallID), callsOfNine(m.Calls)
		}
	}
	if family != toolcall.None {
		if t != nil {
			c.Tools = t.raw
		}
		return
	}
	for i := range c.Messages {
		m := &c.Messages[i]
		switch {
		case m.Role == "tool":
			*m = engine.Message{Role: "user", Content: "Result of the call: " + m.Content}
		case m.Calls != nil:
			*m = engine.Message{Role: m.Role, Name: m.Name, Content: strings.TrimSpace(m.Content + "\n" + plainCalls(m.Calls))}
		}
	}
	if t == nil {
		return
	}
	text := "You can call these functions:\n" + jsonbody.CompactJSON(t.raw) +
		"\nTo call one, answer with nothing but JSON: {\"name\": NAME, \"parameters\": {...}}. For several, give a list."
	if len(c.Messages) > 0 && c.Messages[0].Role == "system" {
		c.Messages[0].Content += "\n\n" + text
		return
	}
	c.Messages = append([]engine.Message{{Role: "system", Content: text}}, c.Messages...)
}

type sentCall struct {
	ID       string `json:"id,omitempty"`
	Type     string `json:"type,omitempty"`
	Function struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	} `json:"function"`
}

func sentCalls(raw json.RawMessage) (list []sentCall) {
	_ = jsonbody.Unmarshal(raw, &list) // decodeCalls has read it before
	return list
}

// repairedCalls have arguments that are objects of JSON, which templates iterate over: a model
// may have been cut off in a call that the history shows. Arguments that are missing or blank
// are the template's to read. Calls that need no repair stay as they came.
func repairedCalls(raw json.RawMessage) json.RawMessage {
	if raw == nil {
		return nil
	}
	var calls []map[string]json.RawMessage
	_ = jsonbody.Unmarshal(raw, &calls) // decodeCalls has read it before
	broken := false
	for _, call := range calls {
		var function map[string]json.RawMessage
		_ = jsonbody.Unmarshal(call["function"], &function)
		args := function["arguments"]
		if jsonbody.IsNull(args) || args[0] == '{' {
			continue
		}
		text := string(args)
		if args[0] == '"' {
			text = jsonbody.StringOf(args)
		}
		if whole := toolcall.Repair(text); strings.TrimSpace(text) != "" && whole != text {
			broken = true
			function["arguments"] = jsonbody.MustJSON(whole)
			call["function"] = jsonbody.MustJSON(function)
		}
	}
	if broken {
		return jsonbody.MustJSON(calls)
	}
	return raw
}

// plainCalls writes calls in the form that the system message asks the model for.
func plainCalls(raw json.RawMessage) string {
	var out []string
	for _, c := range sentCalls(raw) {
		args := strings.TrimSpace(schemaText(c.Function.Arguments))
		if args == "" || args == "null" {
			args = "{}"
		}
		out = append(out, `{"name": `+string(jsonbody.MustJSON(c.Function.Name))+`, "parameters": `+args+`}`)
	}
	if len(out) == 1 {
		return out[0]
	}
	return "[" + strings.Join(out, ", ") + "]"
}

// callsOfNine gives calls ids of nine letters, as Mistral's templates ask.
func callsOfNine(raw json.RawMessage) json.RawMessage {
	if raw == nil {
		return nil
	}
	list := sentCalls(raw)
	for i := range list {
		list[i].ID = nineLetters(list[i].ID)
	}
	return jsonbody.MustJSON(list)
}

func nineLetters(id string) string {
	if id == "" || len(id) == 9 {
		return id
	}
	return hashed(id, 9)
}

func hashed(text string, n int) string {
	h := sha256.Sum256([]byte(text))
	return strings.ToLower(base32.StdEncoding.EncodeToString(h[:]))[:n]
}

// decodeCalls checks the tool_calls of an assistant's message; nil: none.
func decodeCalls(at string, v json.RawMessage, lim jsonbody.Limits) (json.RawMessage, *apierr.Error) {
	if jsonbody.IsNull(v) || jsonbody.EmptyValue(v) {
		return nil, nil
	}
	if v[0] != '[' {
		return nil, apierr.Invalid(at, "'%s' must be a list.", at)
	}
	return v, jsonbody.Elements(at, "calls", v, lim.Parts, func(i int, raw json.RawMessage) *apierr.Error {
		here := at + "[" + strconv.Itoa(i) + "]"
		var c sentCall
		if raw[0] != '{' || jsonbody.Unmarshal(raw, &c) != nil || c.Function.Name == "" {
			return NotACall(here)
		}
		return nil
	})
}

func NotACall(at string) *apierr.Error {
	return apierr.Invalid(at, "'%s' must be {\"id\", \"type\": \"function\", \"function\": {\"name\", \"arguments\"}}.", at)
}
