package api

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"strings"
)

// inItem is an item that a client sends, or that an earlier response holds.
type inItem struct {
	Type      string          `json:"type"`
	ID        string          `json:"id"`
	Role      string          `json:"role"`
	Content   json.RawMessage `json:"content"`
	CallID    string          `json:"call_id"`
	Name      string          `json:"name"`
	Arguments string          `json:"arguments"`
	Input     string          `json:"input"`
	Output    json.RawMessage `json:"output"`
	Encrypted string          `json:"encrypted_content"`
	Summary   []itemPart      `json:"summary"`

	at  string // where it stands in the request
	raw json.RawMessage
}

// itemPart is a part of the content of an item.
type itemPart struct {
	Type        string `json:"type"`
	Text        string `json:"text"`
	Refusal     string `json:"refusal,omitempty"`
	Annotations *[]any `json:"annotations,omitempty"`
	Logprobs    any    `json:"logprobs,omitempty"`
}

// outItem is an item that was generated.
type outItem struct {
	ID        string      `json:"id"`
	Type      string      `json:"type"`
	Status    string      `json:"status"`
	Role      string      `json:"role,omitempty"`
	Summary   *[]itemPart `json:"summary,omitempty"`
	Content   *[]itemPart `json:"content,omitempty"`
	Encrypted string      `json:"encrypted_content,omitempty"`
	CallID    string      `json:"call_id,omitempty"`
	Name      string      `json:"name,omitempty"`
	Arguments *string     `json:"arguments,omitempty"`
	Input     *string     `json:"input,omitempty"`
}

// decodeItems reads the input of a request: a string is what the user says.
func decodeItems(v json.RawMessage, lim Limits) []inItem {
	if v == nil {
		return nil
	}
	if v[0] == '"' {
		return []inItem{{Type: "message", Role: "user", Content: v, at: "input", raw: mustJSON(map[string]any{"type": "message", "role": "user", "content": v})}}
	}
	if v[0] != '[' {
		panic(refusal(invalid("input", "'input' must be a string or a list of items.")))
	}
	var out []inItem
	elements("input", "items", v, lim.Messages, func(i int, raw json.RawMessage) {
		x := inItem{at: "input[" + itoa(i) + "]", raw: raw}
		if raw[0] != '{' || unmarshal(raw, &x) != nil {
			panic(refusal(invalid(x.at, "'%s' must be an item, an object with a 'type'.", x.at)))
		}
		if x.Type == "" {
			if x.Type = "message"; x.Role == "" && x.ID != "" {
				x.Type = "item_reference"
			}
		}
		out = append(out, x)
	})
	return out
}

// turnsOfItems are the turns of a chat that items make: what one answer of the model holds
// is one turn.
func (s *Server) turnsOfItems(ctx context.Context, instructions string, items []inItem) []Message {
	t := itemTurns{lim: s.cfg.Limits}
	if instructions != "" {
		t.out = append(t.out, Message{Role: "system", Content: instructions})
	}
	for _, x := range items {
		if x.Type == "item_reference" {
			found := given(s.reference(ctx, x))
			x = found
		}
		t.add(x)
	}
	t.flush()
	if len(t.out) == 0 {
		panic(refusal(invalidCode("input", "missing_required_parameter", "'input' is required: a string or a list of items.")))
	}
	return t.out
}

type itemTurns struct {
	lim   Limits
	out   []Message
	turn  *Message // of the assistant, that is not whole
	calls []ToolCall
}

func (t *itemTurns) flush() {
	if t.turn == nil {
		return
	}
	if len(t.calls) > 0 {
		t.turn.Calls, t.turn.Empty = mustJSON(t.calls), t.turn.Content == ""
	}
	t.out = append(t.out, *t.turn)
	t.turn, t.calls = nil, nil
}

// answer is the assistant's turn, a new one if what comes cannot follow what it has.
func (t *itemTurns) answer(fresh bool) *Message {
	if t.turn != nil && fresh {
		t.flush()
	}
	if t.turn == nil {
		t.turn = &Message{Role: "assistant"}
	}
	return t.turn
}

func (t *itemTurns) call(x inItem, arguments string) {
	t.answer(false)
	t.calls = append(t.calls, madeCall{name: x.Name, arguments: []byte(arguments), id: x.CallID}.toolCall())
}

func (t *itemTurns) add(x inItem) {
	switch x.Type {
	case "message":
		text := itemText(x.at+".content", x.Content, t.lim)
		role := x.Role
		switch role {
		case "assistant":
			m := t.answer(len(t.calls) > 0)
			m.Content = strings.TrimPrefix(m.Content+"\n"+text, "\n")
			return
		case "developer", "system":
			role = "system"
		case "user":
		default:
			panic(refusal(invalid(x.at+".role", "'%s.role' must be user, assistant, system or developer, got %.40q.", x.at, x.Role)))
		}
		t.flush()
		if n := len(t.out) - 1; role == "system" && n >= 0 && n == len(t.out)-1 && t.out[n].Role == "system" {
			t.out[n].Content += "\n\n" + text // instructions, and what the developer adds
			return
		}
		t.out = append(t.out, Message{Role: role, Content: text})
	case "reasoning":
		m := t.answer(len(t.calls) > 0 || t.turn != nil && t.turn.Content != "")
		m.Thought += x.thought(t.lim)
	case "function_call":
		if x.Name == "" {
			panic(refusal(invalid(x.at+".name", "'%s.name' is required.", x.at)))
		}
		t.call(x, x.Arguments)
	case "custom_tool_call":
		t.call(x, string(mustJSON(map[string]string{"input": x.Input})))
	case "function_call_output", "custom_tool_call_output":
		text := itemText(x.at+".output", x.Output, t.lim)
		t.flush()
		t.out = append(t.out, Message{Role: "tool", CallID: x.CallID, Content: text})
	case "web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call": // another server ran them
	default:
		panic(refusal(invalidCode(x.at+".type", "unsupported_parameter", "'%s.type' is %.60q, which is not supported.", x.at, x.Type)))
	}
}

// thought is what a reasoning item says.
func (x inItem) thought(lim Limits) string {
	if !isNull(x.Content) {
		if text, e := decoded(func() string { return itemText(x.at, x.Content, lim) }); e == nil && text != "" {
			return text
		}
	}
	if text, ok := strings.CutPrefix(x.Encrypted, sealedThought); ok {
		if b, err := base64.StdEncoding.DecodeString(text); err == nil {
			return string(b)
		}
	}
	var parts []string
	for _, p := range x.Summary {
		parts = append(parts, p.Text)
	}
	return strings.Join(parts, "\n")
}

// sealedThought begins the encrypted_content of our own: the thought in base64, so that a
// client which keeps nothing else sends it back.
const sealedThought = "shoal:"

// itemText reads a string or a list of parts with text, which are joined by newlines.
func itemText(at string, v json.RawMessage, lim Limits) string {
	if isNull(v) {
		panic(refusal(invalid(at, "'%s' is required: a string or a list of parts.", at)))
	}
	if v[0] != '[' {
		return decodeContent(at, v, lim)
	}
	var texts []string
	elements(at, "parts", v, lim.Parts, func(i int, raw json.RawMessage) {
		here := at + "[" + itoa(i) + "]"
		var p itemPart
		if raw[0] != '{' || unmarshal(raw, &p) != nil {
			panic(refusal(invalid(here, "'%s' must be an object with a 'type'.", here)))
		}
		switch p.Type {
		case "input_text", "output_text", "text", "summary_text", "reasoning_text":
			texts = append(texts, p.Text)
		case "refusal":
			texts = append(texts, p.Refusal)
		default:
			panic(refusal(invalidCode(here+".type", "unsupported_parameter", "'%s.type' is %.40q: only text is supported.", here, p.Type)))
		}
	})
	return strings.Join(texts, "\n")
}
