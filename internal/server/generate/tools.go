package generate

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
	"github.com/shoal-llm/shoal/internal/text/grammar"
	"github.com/shoal-llm/shoal/internal/text/toolcall"
)

// Toolset holds the functions that a chat may or must call.
type Toolset struct {
	list   []Tool
	raw    json.RawMessage // in the form of the template
	Known  map[string]toolcall.Tool
	forced bool   // at least one call, and nothing else
	only   string // the one that must be called
	Single bool   // at most one call
	off    bool   // none may be called; they are here to be checked
}

// Tool is a function that can be called, in the form of OpenAI's chats.
type Tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters,omitempty"` // a schema, or nil
	Strict      bool            `json:"strict,omitempty"`
	schema      string          // of its arguments, as far as it can be enforced
}

const (
	MaxTools    = 512
	maxToolName = 128
)

// ParseTools reads tools, tool_choice and parallel_tool_calls; nil: nothing may be called.
func (s *Service) ParseTools(f *jsonbody.Object) (*Toolset, *apierr.Error) {
	raw, parallel := f.Get("tools"), true
	choice := f.Get("tool_choice")
	f.Boolean("parallel_tool_calls", &parallel)
	if f.Err != nil {
		return nil, f.Err
	}
	t, e := ToolsOf(raw, func(t *Toolset, at string, raw json.RawMessage) *apierr.Error {
		var x struct {
			Type     string `json:"type"`
			Function *Tool  `json:"function"`
		}
		if jsonbody.Unmarshal(raw, &x) != nil || x.Function == nil {
			return apierr.Invalid(at, "'%s' must be {\"type\": \"function\", \"function\": {\"name\", \"description\", \"parameters\"}}.", at)
		}
		if x.Type != "function" && x.Type != "" {
			return apierr.InvalidCode(at+".type", "unsupported_parameter", "'%s.type' is %.40q: only functions can be called.", at, x.Type)
		}
		return t.Add(at+".function", *x.Function)
	})
	if e != nil {
		return nil, e
	}
	if t != nil {
		t.raw, t.Single = raw, !parallel
	}
	var named struct {
		Type     string `json:"type"`
		Function struct {
			Name string `json:"name"`
		} `json:"function"`
	}
	how := ""
	if choice != nil && jsonbody.Unmarshal(choice, &how) != nil {
		if jsonbody.Unmarshal(choice, &named) != nil || named.Type != "function" {
			how = "?"
		}
		how += named.Type
	}
	return t.Choose(how, named.Function.Name)
}

// ToolsOf reads a list of tools. It returns nil if there is none.
func ToolsOf(v json.RawMessage, each func(t *Toolset, at string, raw json.RawMessage) *apierr.Error) (*Toolset, *apierr.Error) {
	if v == nil || jsonbody.EmptyValue(v) {
		return nil, nil
	}
	if v[0] != '[' {
		return nil, apierr.Invalid("tools", "'tools' must be a list.")
	}
	t := &Toolset{Known: map[string]toolcall.Tool{}}
	return t, jsonbody.Elements("tools", "functions", v, MaxTools,
		func(i int, raw json.RawMessage) *apierr.Error { return each(t, "tools["+strconv.Itoa(i)+"]", raw) })
}

// Callable returns the functions that may be called, nil if none may.
func (t *Toolset) Callable() *Toolset {
	if t == nil || t.off {
		return nil
	}
	return t
}

// Choose applies a tool_choice: auto, none, required (any), or function with a name.
func (t *Toolset) Choose(how, name string) (*Toolset, *apierr.Error) {
	if t == nil || len(t.list) == 0 {
		if how != "" && how != "none" && how != "auto" {
			return nil, apierr.Invalid("tool_choice", "'tool_choice' needs 'tools'.")
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
		if _, ok := t.Known[name]; !ok {
			return nil, apierr.Invalid("tool_choice", "'tool_choice' names %.60q, which is not among 'tools'.", name)
		}
		t.forced, t.Single, t.only = true, true, name
	default:
		return nil, apierr.Invalid("tool_choice",
			"'tool_choice' must be none, auto, required, or {\"type\": \"function\", \"function\": {\"name\": ...}}.")
	}
	return t, nil
}

// Add takes a function, whose place in the request is at.
func (t *Toolset) Add(at string, x Tool) *apierr.Error {
	name := x.Name
	if name == "" || len(name) > maxToolName || strings.ContainsFunc(name, func(r rune) bool {
		return !(r == '_' || r == '-' || r == '.' || r == ':' || r == '/' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z')
	}) {
		return apierr.Invalid(at+".name", "'%s.name' must be 1 to %d letters, digits, or one of _-.:/.", at, maxToolName)
	}
	if _, twice := t.Known[name]; twice {
		return apierr.Invalid(at+".name", "'tools' name %q twice.", name)
	}
	if jsonbody.IsNull(x.Parameters) {
		x.Parameters = nil
	} else if x.Parameters[0] != '{' {
		return apierr.Invalid(at+".parameters", "'%s.parameters' must be a JSON schema, an object.", at)
	}
	known := toolcall.Tool{}
	if x.Parameters != nil {
		known.Schema = grammar.NewParameters(string(x.Parameters))
	}
	t.Known[name] = known
	t.list = append(t.list, x)
	return nil
}

// Restrict takes out all functions but those of some names. An empty name is a tool of another kind.
func (t *Toolset) Restrict(names []string) *apierr.Error {
	allowed := map[string]bool{}
	for _, name := range names {
		if _, ok := t.Known[name]; !ok && name != "" {
			return apierr.Invalid("tool_choice.tools", "'tool_choice' names %.60q, which is not among 'tools'.", name)
		}
		allowed[name] = true
	}
	t.list = slices.DeleteFunc(t.list, func(x Tool) bool { return !allowed[x.Name] })
	maps.DeleteFunc(t.Known, func(name string, _ toolcall.Tool) bool { return !allowed[name] })
	return nil
}

// Render writes the tools in the form of templates, which the client's form may differ from.
func (t *Toolset) Render() {
	type shown struct {
		Type     string `json:"type"`
		Function Tool   `json:"function"`
	}
	out := make([]shown, len(t.list))
	for i, x := range t.list {
		out[i] = shown{"function", x}
	}
	t.raw = jsonbody.MustJSON(out)
}
