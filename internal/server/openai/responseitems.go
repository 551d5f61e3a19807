package openai

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/generate"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
	"github.com/shoal-llm/shoal/internal/server/turns"
)

// inItem is an item that a client sends, or that an earlier response holds.
type inItem struct {
	Type      string          `json:"type"`
	ID        string          `json:"id"`
	Role      string          `json:"role"`
	Content   json.RawMessage `json:"content"`
	CallID    string          `json:"call_id"`
	Name      string          `json:"name"`
	Namespace string          `json:"namespace"`
	Arguments json.RawMessage `json:"arguments"`
	Input     string          `json:"input"`
	Output    json.RawMessage `json:"output"`
	Encrypted string          `json:"encrypted_content"`
	Summary   []itemPart      `json:"summary"`

	at  string // its place in the request
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
	Namespace string      `json:"namespace,omitempty"`
	Arguments *string     `json:"arguments,omitempty"`
	Input     *string     `json:"input,omitempty"`
}

// knownItems are the kinds of items that are read; others are left out.
var knownItems = map[string]bool{"message": true, "reasoning": true, "item_reference": true, "function_call": true,
	"function_call_output": true, "custom_tool_call": true, "custom_tool_call_output": true}

// decodeItems reads the input of a request. A string is a message of the user.
func decodeItems(v json.RawMessage, lim jsonbody.Limits) (out []inItem, e *apierr.Error) {
	if v == nil {
		return nil, nil
	}
	if v[0] == '"' {
		return []inItem{{Type: "message", Role: "user", Content: v, at: "input",
			raw: jsonbody.MustJSON(map[string]any{"type": "message", "role": "user", "content": v})}}, nil
	}
	if v[0] != '[' {
		return nil, apierr.Invalid("input", "'input' must be a string or a list of items.")
	}
	e = jsonbody.Elements("input", "items", v, lim.Messages, func(i int, raw json.RawMessage) *apierr.Error {
		x := inItem{at: "input[" + strconv.Itoa(i) + "]", raw: raw}
		// An item of another kind may have members of any form.
		if err := jsonbody.Unmarshal(raw, &x); raw[0] != '{' || err != nil && (x.Type == "" || knownItems[x.Type]) {
			return apierr.Invalid(x.at, "'%s' must be an item, an object with a 'type'.", x.at)
		}
		if x.Type == "" {
			if x.Type = "message"; x.Role == "" && x.ID != "" {
				x.Type = "item_reference"
			}
		}
		out = append(out, x)
		return nil
	})
	return out, e
}

// turnsOfItems returns the turns of a chat with these items. All items of one answer are one turn. The
// last items are those of the request, the others are of earlier responses. It also returns the places of
// the request's items and parts that were left out.
func (s *API) turnsOfItems(ctx context.Context, q *responseRequest, items []inItem) ([]engine.Message, []string, *apierr.Error) {
	t := itemTurns{Reader: turns.Reader{Limits: s.Config.Limits}, removed: map[string]bool{}}
	if q.instruct != "" {
		t.out = append(t.out, engine.Message{Role: "system", Content: q.instruct})
	}
	roles := make([]string, len(items))
	for i, x := range items {
		if x.Type == "item_reference" {
			found, e := s.reference(ctx, x)
			if e != nil && q.replay && e.Status == http.StatusBadRequest {
				found, e = gone, nil
			}
			if e != nil {
				return nil, nil, e
			}
			items[i] = found
		}
		roles[i] = items[i].Role
	}
	last := turns.NewestOfUser(roles, false)
	for i, x := range items {
		t.Newest = i == last
		if t.add(x); t.Err != nil {
			return nil, nil, t.Err
		}
		if i < len(items)-len(q.input) {
			t.Omitted = nil
		}
	}
	t.flush()
	if len(t.out) == 0 && len(t.Omitted) > 0 {
		return nil, nil, apierr.InvalidCode(t.Omitted[0]+".type", "unsupported_parameter",
			"'input' has no item that can be read: '%s.type' is not supported.", t.Omitted[0])
	}
	if len(t.out) == 0 {
		return nil, nil, apierr.InvalidCode("input", "missing_required_parameter", "'input' is required: a string or a list of items.")
	}
	return t.out, t.Omitted, nil
}

type itemTurns struct {
	turns.Reader
	out     []engine.Message
	turn    *engine.Message // of the assistant, that is not whole
	calls   []generate.ToolCall
	removed map[string]bool // ids of calls that were left out: so are their outputs
}

func (t *itemTurns) flush() {
	if t.turn == nil {
		return
	}
	if len(t.calls) > 0 {
		t.turn.Calls, t.turn.Empty = jsonbody.MustJSON(t.calls), t.turn.Content == ""
	}
	t.out = append(t.out, *t.turn)
	t.turn, t.calls = nil, nil
}

// answer returns the assistant's turn, a new one if the next item cannot be part of it.
func (t *itemTurns) answer(fresh bool) *engine.Message {
	if t.turn != nil && fresh {
		t.flush()
	}
	if t.turn == nil {
		t.turn = &engine.Message{Role: "assistant"}
	}
	return t.turn
}

func (t *itemTurns) call(x inItem, arguments string) {
	t.answer(false)
	t.calls = append(t.calls, generate.Call{Name: flatName(x.Namespace, x.Name), Arguments: []byte(arguments), Id: x.CallID}.ToolCall())
}

func (t *itemTurns) add(x inItem) {
	switch x.Type {
	case "message":
		text := t.Text(x.at+".content", x.Content)
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
			t.Fail(apierr.Invalid(x.at+".role", "'%s.role' must be user, assistant, system or developer, got %.40q.", x.at, x.Role))
			return
		}
		t.flush()
		if n := len(t.out) - 1; role == "system" && n >= 0 && n == len(t.out)-1 && t.out[n].Role == "system" {
			t.out[n].Content += "\n\n" + text // instructions, and messages of the developer
			return
		}
		t.out = append(t.out, engine.Message{Role: role, Content: text})
	case "reasoning":
		m := t.answer(len(t.calls) > 0 || t.turn != nil && t.turn.Content != "")
		text, e := x.thought(t.Limits)
		t.Fail(e)
		m.Thought += text
	case "function_call":
		if x.Name == "" {
			t.Fail(apierr.Invalid(x.at+".name", "'%s.name' is required.", x.at))
			return
		}
		args := jsonbody.StringOf(x.Arguments)
		if !jsonbody.IsNull(x.Arguments) && x.Arguments[0] == '{' {
			args = jsonbody.CompactJSON(x.Arguments)
		}
		t.call(x, args)
	case "custom_tool_call":
		t.call(x, string(jsonbody.MustJSON(map[string]string{"input": x.Input})))
	case "function_call_output", "custom_tool_call_output":
		if t.removed[x.CallID] {
			t.Omit(x.at)
			return
		}
		text := t.Text(x.at+".output", x.Output)
		t.flush()
		t.out = append(t.out, engine.Message{Role: "tool", CallID: x.CallID, Content: text})
	default: // of a tool that another server ran, or opaque
		if t.Omit(x.at); x.CallID != "" {
			t.removed[x.CallID] = true
		}
	}
}

// thought returns the text of a reasoning item.
func (x inItem) thought(lim jsonbody.Limits) (string, *apierr.Error) {
	r := turns.Reader{Limits: lim}
	if text := r.Text(x.at+".content", x.Content); text != "" || r.Err != nil {
		return text, r.Err
	}
	if text, ok := strings.CutPrefix(x.Encrypted, sealedThought); ok {
		if b, err := base64.StdEncoding.DecodeString(text); err == nil {
			return string(b), nil
		}
	}
	var parts []string
	for _, p := range x.Summary {
		parts = append(parts, p.Text)
	}
	return strings.Join(parts, "\n"), nil
}

// sealedThought begins the encrypted_content of our own: the thought in base64, so that a
// client which keeps nothing else sends it back.
const sealedThought = "shoal:"
