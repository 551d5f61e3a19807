package openai

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/generate"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
)

// freeSchema is the schema of the arguments of a custom tool.
var freeSchema = json.RawMessage(`{"type":"object","properties":{"input":{"type":"string"}},"required":["input"],"additionalProperties":false}`)

// spaced is a function of a namespace.
type spaced struct{ namespace, name string }

// flatName returns the name of a namespace's function in the prompt: models call functions by one name.
func flatName(namespace, name string) string {
	if namespace == "" || strings.HasSuffix(namespace, "__") {
		return namespace + name
	}
	return namespace + "__" + name
}

// parseTools reads the tools of Responses; errors are left in f. Tools that a server would run
// are left out and named as ignored: the model need not call them.
func (q *responseRequest) parseTools(f *jsonbody.Object) {
	if f.Err != nil {
		return
	}
	t, e := generate.ToolsOf(f.Get("tools"), func(t *generate.Toolset, at string, raw json.RawMessage) *apierr.Error {
		var x struct {
			Type  string          `json:"type"`
			Name  string          `json:"name"`
			Tools json.RawMessage `json:"tools"`
		}
		err := jsonbody.Unmarshal(raw, &x)
		if x.Type != "namespace" || raw[0] != '{' {
			return q.parseTool(t, at, "", raw)
		}
		if err != nil || x.Name == "" || jsonbody.IsNull(x.Tools) || x.Tools[0] != '[' {
			return apierr.Invalid(at, "'%s' must be {\"type\": \"namespace\", \"name\", \"tools\": [...]}.", at)
		}
		q.echo.Tools = append(q.echo.Tools, raw)
		return jsonbody.Elements(at+".tools", "functions", x.Tools, generate.MaxTools, func(i int, raw json.RawMessage) *apierr.Error {
			return q.parseTool(t, at+".tools["+strconv.Itoa(i)+"]", x.Name, raw)
		})
	})
	f.Fail(e)
	f.Boolean("parallel_tool_calls", &q.echo.Parallel)
	if f.Err != nil {
		return
	}
	if t != nil {
		t.Render()
		t.Single = !q.echo.Parallel
	}
	how, name := "", ""
	if v := f.Get("tool_choice"); v != nil {
		q.echo.ToolChoice = v
		if jsonbody.Unmarshal(v, &how) != nil {
			how, name, e = allowedTools(t, v)
			if f.Fail(e); e == nil && how == "" { // a choice among allowed tools without a mode is auto
				var choice map[string]json.RawMessage
				_ = jsonbody.Unmarshal(v, &choice) // allowedTools read it
				choice["mode"] = json.RawMessage(`"auto"`)
				q.echo.ToolChoice = jsonbody.MustJSON(choice)
			}
		}
	}
	if f.Err == nil {
		q.tools, e = t.Choose(how, name)
		f.Fail(e)
	}
}

// parseTool reads a tool, of a namespace if that is not empty.
func (q *responseRequest) parseTool(t *generate.Toolset, at, namespace string, raw json.RawMessage) *apierr.Error {
	var x struct {
		Type string `json:"type"`
		generate.Tool
		Format struct {
			Syntax     string `json:"syntax"`
			Definition string `json:"definition"`
		} `json:"format"`
	}
	err := jsonbody.Unmarshal(raw, &x)
	if known := x.Type == "function" || x.Type == "custom"; raw[0] != '{' || err != nil && (known || x.Type == "") {
		return apierr.Invalid(at, "'%s' must be {\"type\": \"function\", \"name\", \"description\", \"parameters\"}.", at)
	} else if !known {
		q.ignored = append(q.ignored, at)
		return nil
	}
	shown := x.Tool
	if shown.Name = flatName(namespace, x.Name); namespace != "" {
		q.spaces[shown.Name] = spaced{namespace, x.Name}
	}
	switch {
	case x.Type == "custom":
		q.free[shown.Name] = true
		shown.Parameters = freeSchema
		if x.Format.Definition != "" {
			shown.Description = strings.TrimSpace(shown.Description + "\nThe input is text of this " +
				x.Format.Syntax + " grammar:\n" + x.Format.Definition)
		}
		if namespace == "" {
			q.echo.Tools = append(q.echo.Tools, raw)
		}
	case namespace == "":
		q.echo.Tools = append(q.echo.Tools, struct {
			Type        string          `json:"type"`
			Name        string          `json:"name"`
			Description *string         `json:"description"`
			Parameters  json.RawMessage `json:"parameters"`
			Strict      bool            `json:"strict"`
		}{x.Type, x.Name, jsonbody.OrNil(x.Description), x.Parameters, x.Strict})
	}
	return t.Add(at, shown)
}

// allowedTools reads a tool_choice that is an object. Tools that it does not allow leave the set.
func allowedTools(t *generate.Toolset, v json.RawMessage) (how, name string, e *apierr.Error) {
	type named struct {
		Type      string `json:"type"`
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	}
	var c struct {
		named
		Mode  string  `json:"mode"`
		Tools []named `json:"tools"`
	}
	_ = jsonbody.Unmarshal(v, &c) // another value has no type
	switch c.Type {
	case "function", "custom":
		return "function", flatName(c.Namespace, c.Name), nil
	case "allowed_tools":
		if t == nil {
			return c.Mode, "", nil
		}
		var names []string
		for _, x := range c.Tools {
			names = append(names, flatName(x.Namespace, x.Name))
		}
		return c.Mode, "", t.Restrict(names)
	}
	return "", "", apierr.Invalid("tool_choice",
		"'tool_choice' must be none, auto, required, {\"type\": \"function\", \"name\": ...} or {\"type\": \"allowed_tools\", ...}.")
}
