package generate

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
	"github.com/shoal-llm/shoal/internal/text/grammar"
	"github.com/shoal-llm/shoal/internal/text/toolcall"
)

// constrainTools sets the grammar of an answer so that it enforces required calls, and those of strict
// functions. Thoughts may come before the structure. turn is the end of the prompt, in which the answer
// continues.
func (s *Service) constrainTools(g *Request, turn string) (e *apierr.Error) {
	g.thinking = s.dialect(g.Tools).thinking(turn)
	t, spec := g.Tools, &g.Sampling.Grammar
	if t != nil {
		strict := slices.ContainsFunc(t.list, func(x Tool) bool { return x.Strict })
		tags := strict && *spec == nil && s.family == toolcall.Hermes
		for i, x := range t.list {
			if (t.forced && (t.only == "" || t.only == x.Name)) || tags || x.Strict {
				if t.list[i].schema, e = s.arguments(i, x, &g.noted); e != nil {
					return e
				}
			}
		}
	}
	switch {
	case t != nil && t.forced:
		if *spec != nil && !g.formatted {
			return apierr.Invalid("tool_choice", "'tool_choice' requires a call, and another parameter requires another structure; give one.")
		}
		g.callHead = toolcall.ForcedHead(s.family, turn)
		*spec, e = s.callGrammar(t, g.callHead != "")
	case t != nil && *spec == nil && s.family == toolcall.Hermes:
		*spec, e = s.strictTags(t)
	}
	if e != nil {
		return e
	}
	if *spec != nil && g.thinking.on && g.thinking.tags == toolcall.DefaultTags { // the only tags that the grammar supports
		after := **spec
		after.Thought = grammar.ThoughtOptional
		if g.thinking.inside {
			after.Thought = grammar.ThoughtBegun
		}
		*spec = &after
	}
	return nil
}

// checkUncalled refuses schemas of strict functions that cannot be enforced, though nothing may
// be called: whether a request's tools are valid does not depend on its tool_choice.
func (s *Service) checkUncalled(t *Toolset) *apierr.Error {
	if t == nil || !t.off {
		return nil
	}
	for i, x := range t.list {
		if x.Strict {
			if _, e := s.arguments(i, x, nil); e != nil {
				return e
			}
		}
	}
	return nil
}

// arguments returns the schema of a function's arguments. Of one that is not strict, the parts
// that cannot be enforced have no effect: noted gets their places.
func (s *Service) arguments(i int, x Tool, noted *[]string) (schema string, e *apierr.Error) {
	const anything = `{"type":"object"}`
	if x.Parameters == nil || jsonbody.EmptyValue(x.Parameters) {
		return anything, nil
	}
	spec := &grammar.Spec{Kind: grammar.KindJSONSchema, Text: objectSchema(string(x.Parameters))}
	at := "tools[" + strconv.Itoa(i) + "].function.parameters"
	if !x.Strict && len(spec.Text) <= s.Config.Limits.GrammarBytes {
		text, removed, err := s.grammars.Relax(*spec)
		if err != nil {
			*noted = append(*noted, jsonbody.HeaderName(at))
			return anything, nil //nolint:nilerr // the header names a schema without effect
		}
		for _, part := range removed {
			*noted = append(*noted, jsonbody.HeaderName(at+part))
		}
		spec.Text = objectSchema(text)
	}
	e = s.checkGrammar(at, spec, noted)
	if e != nil && !x.Strict {
		*noted = append(*noted, jsonbody.HeaderName(at))
		return anything, nil
	}
	return spec.Text, e
}

// objectSchema holds a schema without a type to objects.
func objectSchema(text string) string {
	var head struct {
		Type any `json:"type"`
	}
	rest := strings.TrimSpace(text)[1:]
	switch {
	case json.Unmarshal([]byte(text), &head) != nil || head.Type != nil:
		return text
	case strings.TrimSpace(rest) == "}":
		return `{"type":"object"}`
	}
	return `{"type":"object",` + rest
}

// callGrammar returns an answer of calls alone, as the model's family writes them where that is
// text or begins in the prompt (begun), else as JSON.
func (s *Service) callGrammar(t *Toolset, begun bool) (*grammar.Spec, *apierr.Error) {
	family := toolcall.JSON
	if begun || s.family == toolcall.Hermes {
		family = s.family
	}
	var calls []string
	for _, x := range t.list {
		if t.only != "" && x.Name != t.only {
			continue
		}
		name := string(jsonbody.MustJSON(x.Name))
		open, end := []string{`{"name": ` + name + `, "parameters": `}, "}"
		switch family {
		case toolcall.Hermes:
			open, end = []string{"<tool_call>\n{\"name\": " + name + ", \"arguments\": "}, "}\n</tool_call>"
		case toolcall.Harmony:
			open, end = toolcall.HarmonyCall(x.Name), ""
		case toolcall.Cohere:
			open = []string{`    {"tool_call_id": "`, "/[0-9]{1,3}/", `", "tool_name": ` + name + `, "parameters": `}
		}
		calls = append(calls, larkTexts(open...)+" %json "+x.schema+" "+larkTexts(end))
	}
	start := "call"
	switch {
	case family == toolcall.Harmony: // one call ends the answer
	case family == toolcall.Cohere:
		start = larkTexts("[\n") + " call (" + larkTexts(",\n") + " call)* " + larkTexts("\n]", toolcall.CohereEnd)
		if t.Single {
			start = larkTexts("[\n") + " call " + larkTexts("\n]", toolcall.CohereEnd)
		}
	case t.Single:
	case family == toolcall.Hermes:
		start = `call ("\n" call)*`
	default:
		start = `call | "[" call (", " call)* "]"`
	}
	spec := &grammar.Spec{Kind: grammar.KindLark, Text: "start: " + start + "\ncall: " + strings.Join(calls, "\n  | ")}
	return spec, s.checkGrammar("tools", spec, nil)
}

// larkTexts returns texts in a row, in Lark. A text between slashes is a regular expression.
func larkTexts(texts ...string) string {
	var out []string
	for _, s := range texts {
		switch {
		case s == "":
		case len(s) > 1 && s[0] == '/' && s[len(s)-1] == '/':
			out = append(out, s)
		default:
			out = append(out, string(jsonbody.MustJSON(s)))
		}
	}
	return strings.Join(out, " ")
}

// strictTags holds calls in free text to their schemas, if any function is strict.
func (s *Service) strictTags(t *Toolset) (*grammar.Spec, *apierr.Error) {
	strict := false
	type structure struct {
		Begin  string          `json:"begin"`
		Schema json.RawMessage `json:"schema"`
		End    string          `json:"end"`
	}
	var body struct {
		Triggers   []string    `json:"triggers"`
		Structures []structure `json:"structures"`
	}
	body.Triggers = []string{"<tool_call>"}
	for _, x := range t.list {
		strict = strict || x.Strict
		body.Structures = append(body.Structures, structure{"<tool_call>\n{\"name\": " + string(jsonbody.MustJSON(x.Name)) + ", \"arguments\": ",
			json.RawMessage(x.schema), "}\n</tool_call>"})
	}
	if !strict {
		return nil, nil
	}
	spec := &grammar.Spec{Kind: grammar.KindTags, Text: string(jsonbody.MustJSON(body))}
	return spec, s.checkGrammar("tools", spec, nil)
}
