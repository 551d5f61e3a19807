package api

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-llm/shoal/internal/text/grammar"
	"github.com/shoal-llm/shoal/internal/text/toolcall"
)

// toolset are the functions that a chat may call, and must.
type toolset struct {
	list   []tool
	raw    json.RawMessage // as the template sees them
	known  map[string]toolcall.Tool
	forced bool   // at least one call, and nothing else
	only   string // the one that must be called
	single bool   // at most one call
	off    bool   // none may be called; they are here to be checked
}

// tool is a function that can be called, in the words of OpenAI's chats.
type tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters,omitempty"` // a schema, or nil
	Strict      bool            `json:"strict,omitempty"`
	schema      string          // of its arguments, as far as it can be enforced
}

const (
	maxTools    = 512
	maxToolName = 128
)

// parseTools reads tools, tool_choice and parallel_tool_calls; nil: nothing may be called.
func (s *Service) parseTools(f *fields) (*toolset, *apiError) {
	raw, parallel := f.get("tools"), true
	choice := f.get("tool_choice")
	f.boolean("parallel_tool_calls", &parallel)
	if f.err != nil {
		return nil, f.err
	}
	t, e := toolsOf(raw, func(t *toolset, at string, raw json.RawMessage) *apiError {
		var x struct {
			Type     string `json:"type"`
			Function *tool  `json:"function"`
		}
		if unmarshal(raw, &x) != nil || x.Function == nil {
			return invalid(at, "'%s' must be {\"type\": \"function\", \"function\": {\"name\", \"description\", \"parameters\"}}.", at)
		}
		if x.Type != "function" && x.Type != "" {
			return invalidCode(at+".type", "unsupported_parameter", "'%s.type' is %.40q: only functions can be called.", at, x.Type)
		}
		return t.add(at+".function", *x.Function)
	})
	if e != nil {
		return nil, e
	}
	if t != nil {
		t.raw, t.single = raw, !parallel
	}
	var named struct {
		Type     string `json:"type"`
		Function struct {
			Name string `json:"name"`
		} `json:"function"`
	}
	how := ""
	if choice != nil && unmarshal(choice, &how) != nil {
		if unmarshal(choice, &named) != nil || named.Type != "function" {
			how = "?"
		}
		how += named.Type
	}
	return t.choose(how, named.Function.Name)
}

// toolsOf reads a list of tools; nil: there is none.
func toolsOf(v json.RawMessage, each func(t *toolset, at string, raw json.RawMessage) *apiError) (*toolset, *apiError) {
	if v == nil || emptyValue(v) {
		return nil, nil
	}
	if v[0] != '[' {
		return nil, invalid("tools", "'tools' must be a list.")
	}
	t := &toolset{known: map[string]toolcall.Tool{}}
	return t, elements("tools", "functions", v, maxTools, func(i int, raw json.RawMessage) *apiError { return each(t, "tools["+strconv.Itoa(i)+"]", raw) })
}

// callable are the functions that may be called, nil if none may.
func (t *toolset) callable() *toolset {
	if t == nil || t.off {
		return nil
	}
	return t
}

// choose applies a tool_choice: auto, none, required (any), or function with a name.
func (t *toolset) choose(how, name string) (*toolset, *apiError) {
	if t == nil || len(t.list) == 0 {
		if how != "" && how != "none" && how != "auto" {
			return nil, invalid("tool_choice", "'tool_choice' needs 'tools'.")
		}
		return nil, nil
	}
	switch how {
	case "", "auto":
	case "none":
		t.off = true
	case "required", "any":
		t.forced = true
	case "function":
		if _, ok := t.known[name]; !ok {
			return nil, invalid("tool_choice", "'tool_choice' names %.60q, which is not among 'tools'.", name)
		}
		t.forced, t.single, t.only = true, true, name
	default:
		return nil, invalid("tool_choice", "'tool_choice' must be none, auto, required, or {\"type\": \"function\", \"function\": {\"name\": ...}}.")
	}
	return t, nil
}

// add takes a function, whose place in the request is at.
func (t *toolset) add(at string, x tool) *apiError {
	name := x.Name
	if name == "" || len(name) > maxToolName || strings.ContainsFunc(name, func(r rune) bool {
		return !(r == '_' || r == '-' || r == '.' || r == ':' || r == '/' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z')
	}) {
		return invalid(at+".name", "'%s.name' must be 1 to %d letters, digits, or one of _-.:/.", at, maxToolName)
	}
	if _, twice := t.known[name]; twice {
		return invalid(at+".name", "'tools' name %q twice.", name)
	}
	if isNull(x.Parameters) {
		x.Parameters = nil
	} else if x.Parameters[0] != '{' {
		return invalid(at+".parameters", "'%s.parameters' must be a JSON schema, an object.", at)
	}
	known := toolcall.Tool{}
	if x.Parameters != nil {
		known.Schema = grammar.NewParameters(string(x.Parameters))
	}
	t.known[name] = known
	t.list = append(t.list, x)
	return nil
}

// keepOnly takes out all functions but those of some names.
func (t *toolset) keepOnly(names map[string]bool) {
	t.list = slices.DeleteFunc(t.list, func(x tool) bool { return !names[x.Name] })
	maps.DeleteFunc(t.known, func(name string, _ toolcall.Tool) bool { return !names[name] })
}

// show writes the tools as templates know them, where they did not come so.
func (t *toolset) show() {
	type shown struct {
		Type     string `json:"type"`
		Function tool   `json:"function"`
	}
	out := make([]shown, len(t.list))
	for i, x := range t.list {
		out[i] = shown{"function", x}
	}
	t.raw = mustJSON(out)
}
