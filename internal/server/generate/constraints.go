package generate

import (
	"encoding/json"
	"errors"
	"strings"

	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
	"github.com/shoal-llm/shoal/internal/text/grammar"
)

// constraint is a grammar of a request, and the parameter that has it.
type constraint struct {
	param string
	spec  grammar.Spec
}

// parseGrammar reads the grammar of the output: OpenAI's response_format, vLLM's structured_outputs and
// guided_*, llama.cpp's grammar and json_schema. At most one of them may be given. A grammar that
// cannot be enforced is refused here, before anything is generated.
func (s *Service) parseGrammar(f *jsonbody.Object, noted *[]string) *grammar.Spec {
	var found []constraint
	add := func(param, kind, text string) {
		found = append(found, constraint{param, grammar.Spec{Kind: kind, Text: text}})
	}
	schema := func(param string, v json.RawMessage) {
		if jsonbody.CompactJSON(json.RawMessage(schemaText(v))) == "{}" {
			f.Fail(apierr.InvalidCode(param, "invalid_grammar",
				"'%s' is {}, which allows any output: describe the output, for example with {\"type\": \"object\"}.", param))
		}
		add(param, grammar.KindJSONSchema, schemaText(v))
	}
	s.responseFormat(f, add, schema)
	s.structuredOutputs(f, &found, add, schema)
	var pattern, text string
	f.Text("guided_whitespace_pattern", &pattern)
	f.Text("guided_decoding_backend", &text) // there is one
	for _, name := range [...]string{"guided_json", "json_schema"} {
		if v := f.Get(name); v != nil {
			schema(name, v)
		}
	}
	if f.Text("guided_regex", &text) {
		add("guided_regex", grammar.KindRegex, text)
	}
	if v := f.Get("guided_choice"); v != nil {
		add("guided_choice", grammar.KindChoice, jsonbody.CompactJSON(v))
	}
	for _, name := range [...]string{"guided_grammar", "grammar"} {
		if f.Text(name, &text) {
			add(name, grammarKind(text), text)
		}
	}
	if len(found) == 0 || f.Err != nil {
		return nil
	}
	if len(found) > 1 {
		f.Fail(apierr.Invalid(found[1].param, "'%s' and '%s' both constrain the output; give one.", found[0].param, found[1].param))
		return nil
	}
	c := &found[0]
	if pattern != "" && c.spec.Whitespace == "" {
		c.spec.Whitespace = pattern
	}
	if e := s.checkGrammar(c.param, &c.spec, noted); e != nil {
		f.Fail(e)
		return nil
	}
	return &c.spec
}

// checkGrammar returns an error if a grammar cannot be enforced. It adds the places without
// effect to noted, which may be nil.
func (s *Service) checkGrammar(param string, spec *grammar.Spec, noted *[]string) *apierr.Error {
	if len(spec.Text)+len(spec.Whitespace) > s.Config.Limits.GrammarBytes {
		return apierr.Invalid(param, "'%s' is longer than %d bytes.", param, s.Config.Limits.GrammarBytes)
	}
	g, err := s.grammars.Compile(*spec)
	if err == nil && noted != nil {
		for _, at := range g.Annotations() {
			*noted = append(*noted, jsonbody.HeaderName(param+at))
		}
	}
	var known *grammar.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &known) && known.Keyword != "":
		return apierr.InvalidCode(param, "unsupported_schema", "'%s' cannot be enforced: at %s: %s.", param, known.Where, known.Message)
	}
	return apierr.InvalidCode(param, "invalid_grammar", "'%s' cannot be enforced: %s.", param, strings.TrimPrefix(err.Error(), "grammar: "))
}

// grammarKind returns the language of a grammar: GBNF if a rule is defined by "::=", otherwise Lark.
func grammarKind(text string) string {
	if strings.Contains(text, "::=") {
		return grammar.KindGBNF
	}
	return grammar.KindLark
}

// schemaText returns a schema that is an object, or a string that holds one.
func schemaText(v json.RawMessage) string {
	var text string
	if jsonbody.Unmarshal(v, &text) == nil {
		return text
	}
	return string(v)
}

func (s *Service) responseFormat(f *jsonbody.Object, add func(param, kind, text string), schema func(param string, v json.RawMessage)) {
	const param = "response_format"
	v := f.Get(param)
	if v == nil {
		return
	}
	var r struct {
		Type       string          `json:"type"`
		Schema     json.RawMessage `json:"schema"` // as in llama.cpp
		JSONSchema *struct {
			Schema json.RawMessage `json:"schema"`
		} `json:"json_schema"`
	}
	if v[0] != '{' || jsonbody.Unmarshal(v, &r) != nil {
		f.Fail(apierr.Invalid(param, "'response_format' must be an object with a 'type'."))
		return
	}
	switch r.Type {
	case "text":
	case "json_object":
		if !jsonbody.IsNull(r.Schema) && !jsonbody.EmptyValue(r.Schema) {
			add(param+".schema", grammar.KindJSONSchema, schemaText(r.Schema))
			return
		}
		add(param, grammar.KindJSONObject, "")
	case "json_schema":
		if r.JSONSchema != nil {
			r.Schema = r.JSONSchema.Schema
		}
		if jsonbody.IsNull(r.Schema) {
			f.Fail(apierr.Invalid(param+".json_schema", "'response_format.json_schema.schema' is required."))
			return
		}
		schema(param+".json_schema.schema", r.Schema)
	case "structural_tag":
		add(param, grammar.KindTags, string(v))
	default:
		f.Fail(apierr.Invalid(param+".type",
			"'response_format.type' must be text, json_object, json_schema or structural_tag, got %.40q.", r.Type))
	}
}

func (s *Service) structuredOutputs(f *jsonbody.Object, found *[]constraint, add func(param, kind, text string),
	schema func(param string, v json.RawMessage)) {
	const param = "structured_outputs"
	o := f.Object(param)
	if o == nil {
		return
	}
	before := len(*found)
	var text string
	if x := o.Get("json"); x != nil {
		schema(param+".json", x)
	}
	var yes bool
	if o.Boolean("json_object", &yes) && yes {
		add(param+".json_object", grammar.KindJSONObject, "")
	}
	if o.Text("regex", &text) {
		add(param+".regex", grammar.KindRegex, text)
	}
	if x := o.Get("choice"); x != nil {
		add(param+".choice", grammar.KindChoice, jsonbody.CompactJSON(x))
	}
	if o.Text("grammar", &text) {
		add(param+".grammar", grammarKind(text), text)
	}
	if x := o.Get("structural_tag"); x != nil {
		add(param+".structural_tag", grammar.KindTags, schemaText(x))
	}
	var compact, anyOrder bool
	o.Boolean("disable_any_whitespace", &compact)
	o.Boolean("any_order", &anyOrder)
	closed := true
	o.Boolean("disable_additional_properties", &closed)
	text = ""
	o.Text("whitespace_pattern", &text)
	for i := before; i < len(*found); i++ {
		spec := &(*found)[i].spec
		spec.Compact, spec.Whitespace = compact, text
		if spec.Kind == grammar.KindJSONSchema || spec.Kind == grammar.KindLark || spec.Kind == grammar.KindTags { // schemas
			spec.AnyOrder, spec.Open = anyOrder, !closed
		}
	}
	var no bool
	o.Boolean("disable_fallback", &no) // there is none
	if names := o.Unread(); len(names) > 0 {
		f.Fail(apierr.InvalidCode(param+"."+names[0], "unsupported_parameter", "'structured_outputs.%s' is not known.", names[0]))
	}
	f.FailWithin(param, o)
	if len(*found) == before {
		f.Fail(apierr.Invalid(param,
			"'structured_outputs' has no constraint: give one of json, json_object, regex, choice, grammar and structural_tag."))
	}
}
