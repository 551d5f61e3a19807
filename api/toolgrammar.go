package api

import (
	"encoding/json"
	"strings"

	"github.com/shoal-llm/shoal/grammar"
	"github.com/shoal-llm/shoal/toolcall"
)

// thinking is whether an answer may begin with thoughts, and has begun with them in the
// prompt.
type thinking struct{ on, inside bool }

// constrainTools has the grammar of an answer enforce calls that must be made, and those
// of strict functions; thoughts may come before what a grammar asks for. tail is the end
// of the prompt.
func (s *Server) constrainTools(g *generation, tail string) {
	g.thinking.on = s.thinks
	g.thinking.inside = s.thinks && strings.HasSuffix(strings.TrimRight(tail, " \n"), "<think>")
	t, spec := g.tools, &g.sampling.Grammar
	switch {
	case t != nil && t.forced:
		if *spec != nil {
			panic(refusal(invalid("tool_choice", "'tool_choice' asks for a call, and another parameter for another structure; give one.")))
		}
		made := s.callGrammar(t, g.thinking)
		*spec = made
	case t != nil && *spec == nil && s.family == toolcall.Hermes:
		made := s.strictTags(t)
		*spec = made
	case *spec != nil && g.thinking.on:
		*spec = afterThought(*spec, g.thinking)
	}
}

// thoughtRule is Lark's for a thought that may, or must, come first.
func thoughtRule(th thinking) string {
	switch {
	case th.inside:
		return "%until \"</think>\" /[ \\t\\r\\n]{0,8}/ "
	case th.on:
		return "(\"<think>\" %until \"</think>\" /[ \\t\\r\\n]{0,8}/)? "
	}
	return ""
}

// afterThought lets a thought come before JSON.
func afterThought(spec *grammar.Spec, th thinking) *grammar.Spec {
	out := *spec
	switch spec.Kind {
	case grammar.KindJSONSchema:
		out.Text = "start: " + thoughtRule(th) + "%json " + spec.Text
	case grammar.KindJSONObject:
		out.Text = "start: " + thoughtRule(th) + "%json {\"type\":\"object\"}"
	default:
		return spec
	}
	out.Kind = grammar.KindLark
	return &out
}

// arguments is the schema of a function's arguments; one that cannot be enforced stands
// for any object, unless it is strict.
func (s *Server) arguments(i int, x tool) string {
	text := `{"type":"object"}`
	if x.Parameters == nil || emptyValue(x.Parameters) {
		return text
	}
	text = string(x.Parameters)
	var head struct {
		Type any `json:"type"`
	}
	if json.Unmarshal(x.Parameters, &head) == nil && head.Type == nil {
		text = `{"type":"object",` + strings.TrimSpace(text)[1:]
	}
	e := s.checkGrammar("tools["+itoa(i)+"].function.parameters", &grammar.Spec{Kind: grammar.KindJSONSchema, Text: text, AnyOrder: true})
	if e != nil && !x.Strict {
		return `{"type":"object"}`
	}
	give(e)
	return text
}

// callGrammar is an answer of calls alone, as the model's family writes them where that is
// text, else as JSON.
func (s *Server) callGrammar(t *toolset, th thinking) *grammar.Spec {
	hermes := s.family == toolcall.Hermes
	var calls []string
	for i, x := range t.list {
		if t.only != "" && x.Name != t.only {
			continue
		}
		schema := s.arguments(i, x)
		open, end := `{"name": `+string(mustJSON(x.Name))+`, "parameters": `, "}"
		if hermes {
			open, end = "<tool_call>\n{\"name\": "+string(mustJSON(x.Name))+", \"arguments\": ", "}\n</tool_call>"
		}
		calls = append(calls, string(mustJSON(open))+" %json "+schema+" "+string(mustJSON(end)))
	}
	start := "call"
	switch {
	case t.single:
	case hermes:
		start = `call ("\n" call)*`
	default:
		start = `call | "[" call (", " call)* "]"`
	}
	if rule := thoughtRule(th); rule != "" {
		start = rule + "(" + start + ")"
	}
	spec := &grammar.Spec{Kind: grammar.KindLark, Text: "start: " + start + "\ncall: " + strings.Join(calls, "\n  | "), AnyOrder: true}
	give(s.checkGrammar("tools", spec))
	return spec
}

// strictTags holds calls in free text to their schemas, if any function is strict.
func (s *Server) strictTags(t *toolset) *grammar.Spec {
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
	for i, x := range t.list {
		strict = strict || x.Strict
		schema := s.arguments(i, x)
		body.Structures = append(body.Structures, structure{"<tool_call>\n{\"name\": " + string(mustJSON(x.Name)) + ", \"arguments\": ", json.RawMessage(schema), "}\n</tool_call>"})
	}
	if !strict {
		return nil
	}
	spec := &grammar.Spec{Kind: grammar.KindTags, Text: string(mustJSON(body)), AnyOrder: true}
	give(s.checkGrammar("tools", spec))
	return spec
}
