package api

import (
	"encoding/json"
	"errors"
	"strings"

	"github.com/shoal-llm/shoal/internal/text/grammar"
)

// constraint is a grammar that a request asks for, and the parameter that does.
type constraint struct {
	param string
	spec  grammar.Spec
}

// parseGrammar reads every way to say what the output must fit: OpenAI's response_format,
// vLLM's structured_outputs and guided_*, llama.cpp's grammar and json_schema. One of them
// may be given. What cannot be enforced is refused here, before anything is generated.
func (s *Service) parseGrammar(f *fields, noted *[]string) *grammar.Spec {
	var found []constraint
	add := func(param, kind, text string) {
		found = append(found, constraint{param, grammar.Spec{Kind: kind, Text: text}})
	}
	schema := func(param string, v json.RawMessage) {
		if compactJSON(json.RawMessage(schemaText(v))) == "{}" {
			f.fail(invalidCode(param, "invalid_grammar", "'%s' is {}, which says nothing of the output: describe it, with {\"type\": \"object\"} say.", param))
		}
		add(param, grammar.KindJSONSchema, schemaText(v))
	}
	s.responseFormat(f, add, schema)
	s.structuredOutputs(f, &found, add, schema)
	var pattern, text string
	f.str("guided_whitespace_pattern", &pattern)
	f.str("guided_decoding_backend", &text) // there is one
	for _, name := range [...]string{"guided_json", "json_schema"} {
		if v := f.get(name); v != nil {
			schema(name, v)
		}
	}
	if f.str("guided_regex", &text) {
		add("guided_regex", grammar.KindRegex, text)
	}
	if v := f.get("guided_choice"); v != nil {
		add("guided_choice", grammar.KindChoice, compactJSON(v))
	}
	for _, name := range [...]string{"guided_grammar", "grammar"} {
		if f.str(name, &text) {
			add(name, grammarKind(text), text)
		}
	}
	if len(found) == 0 || f.err != nil {
		return nil
	}
	if len(found) > 1 {
		f.fail(invalid(found[1].param, "'%s' and '%s' both say what the output must be; give one.", found[0].param, found[1].param))
		return nil
	}
	c := &found[0]
	if pattern != "" && c.spec.Whitespace == "" {
		c.spec.Whitespace = pattern
	}
	if e := s.checkGrammar(c.param, &c.spec, noted); e != nil {
		f.fail(e)
		return nil
	}
	return &c.spec
}

// checkGrammar tells whether a grammar can be enforced. noted gets the places of what has no
// effect in it; it may be nil.
func (s *Service) checkGrammar(param string, spec *grammar.Spec, noted *[]string) *apiError {
	if len(spec.Text)+len(spec.Whitespace) > s.cfg.Limits.GrammarBytes {
		return invalid(param, "'%s' is longer than %d bytes.", param, s.cfg.Limits.GrammarBytes)
	}
	g, err := s.grammars.Compile(*spec)
	if err == nil && noted != nil {
		for _, at := range g.Annotations() {
			*noted = append(*noted, headerName(param+at))
		}
	}
	var known *grammar.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &known) && known.Keyword != "":
		return invalidCode(param, "unsupported_schema", "'%s' cannot be enforced: at %s: %s.", param, known.Where, known.Message)
	}
	return invalidCode(param, "invalid_grammar", "'%s' cannot be enforced: %s.", param, strings.TrimPrefix(err.Error(), "grammar: "))
}

// grammarKind tells llama.cpp's and Lark's languages apart by how they define a rule.
func grammarKind(text string) string {
	if strings.Contains(text, "::=") {
		return grammar.KindGBNF
	}
	return grammar.KindLark
}

// schemaText is a schema that is an object, or a string that holds one.
func schemaText(v json.RawMessage) string {
	var text string
	if unmarshal(v, &text) == nil {
		return text
	}
	return string(v)
}

func (s *Service) responseFormat(f *fields, add func(param, kind, text string), schema func(param string, v json.RawMessage)) {
	const param = "response_format"
	v := f.get(param)
	if v == nil {
		return
	}
	var r struct {
		Type       string          `json:"type"`
		Schema     json.RawMessage `json:"schema"` // llama.cpp's
		JSONSchema *struct {
			Schema json.RawMessage `json:"schema"`
		} `json:"json_schema"`
	}
	if v[0] != '{' || unmarshal(v, &r) != nil {
		f.fail(invalid(param, "'response_format' must be an object with a 'type'."))
		return
	}
	switch r.Type {
	case "text":
	case "json_object":
		if !isNull(r.Schema) && !emptyValue(r.Schema) {
			add(param+".schema", grammar.KindJSONSchema, schemaText(r.Schema))
			return
		}
		add(param, grammar.KindJSONObject, "")
	case "json_schema":
		if r.JSONSchema != nil {
			r.Schema = r.JSONSchema.Schema
		}
		if isNull(r.Schema) {
			f.fail(invalid(param+".json_schema", "'response_format.json_schema.schema' is required."))
			return
		}
		schema(param+".json_schema.schema", r.Schema)
	case "structural_tag":
		add(param, grammar.KindTags, string(v))
	default:
		f.fail(invalid(param+".type", "'response_format.type' must be text, json_object, json_schema or structural_tag, got %.40q.", r.Type))
	}
}

func (s *Service) structuredOutputs(f *fields, found *[]constraint, add func(param, kind, text string), schema func(param string, v json.RawMessage)) {
	const param = "structured_outputs"
	o := f.object(param)
	if o == nil {
		return
	}
	before := len(*found)
	var text string
	if x := o.get("json"); x != nil {
		schema(param+".json", x)
	}
	var yes bool
	if o.boolean("json_object", &yes) && yes {
		add(param+".json_object", grammar.KindJSONObject, "")
	}
	if o.str("regex", &text) {
		add(param+".regex", grammar.KindRegex, text)
	}
	if x := o.get("choice"); x != nil {
		add(param+".choice", grammar.KindChoice, compactJSON(x))
	}
	if o.str("grammar", &text) {
		add(param+".grammar", grammarKind(text), text)
	}
	if x := o.get("structural_tag"); x != nil {
		add(param+".structural_tag", grammar.KindTags, schemaText(x))
	}
	var compact, anyOrder bool
	o.boolean("disable_any_whitespace", &compact)
	o.boolean("any_order", &anyOrder)
	closed := true
	o.boolean("disable_additional_properties", &closed)
	text = ""
	o.str("whitespace_pattern", &text)
	for i := before; i < len(*found); i++ {
		spec := &(*found)[i].spec
		spec.Compact, spec.Whitespace = compact, text
		if spec.Kind == grammar.KindJSONSchema || spec.Kind == grammar.KindLark || spec.Kind == grammar.KindTags { // schemas
			spec.AnyOrder, spec.Open = anyOrder, !closed
		}
	}
	var no bool
	o.boolean("disable_fallback", &no) // there is none
	if names := o.unread(); len(names) > 0 {
		f.fail(invalidCode(param+"."+names[0], "unsupported_parameter", "'structured_outputs.%s' is not known.", names[0]))
	}
	f.failWithin(param, o)
	if len(*found) == before {
		f.fail(invalid(param, "'structured_outputs' says nothing of the output: give one of json, json_object, regex, choice, grammar and structural_tag."))
	}
}
