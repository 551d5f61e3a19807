package api

import (
	"encoding/json"
	"errors"
	"strings"

	"github.com/shoal-llm/shoal/grammar"
)

// constraint is a grammar that a request asks for, and the parameter that does.
type constraint struct {
	param string
	spec  grammar.Spec
}

// parseGrammar reads every way to say what the output must fit: OpenAI's response_format,
// vLLM's structured_outputs and guided_*, llama.cpp's grammar and json_schema. One of them
// may be given. What cannot be enforced is refused here, before anything is generated.
func (s *Server) parseGrammar(f *fields) *grammar.Spec {
	var found []constraint
	add := func(param, kind, text string) {
		found = append(found, constraint{param, grammar.Spec{Kind: kind, Text: text, AnyOrder: hasSchemas(kind)}})
	}
	if s.responseFormat(f, add) { // OpenAI's promise
		found[0].spec.AnyOrder = false
	}
	s.structuredOutputs(f, &found, add)
	var pattern, text string
	f.str("guided_whitespace_pattern", &pattern, s.cfg.Limits.GrammarBytes)
	f.str("guided_decoding_backend", &text, 256) // there is one
	if v := f.get("guided_json"); v != nil {
		add("guided_json", grammar.KindJSONSchema, schemaText(v))
	}
	if v := f.get("json_schema"); v != nil && !emptyValue(v) {
		add("json_schema", grammar.KindJSONSchema, schemaText(v))
	}
	if f.str("guided_regex", &text, s.cfg.Limits.GrammarBytes) {
		add("guided_regex", grammar.KindRegex, text)
	}
	if v := f.get("guided_choice"); v != nil && !emptyValue(v) {
		add("guided_choice", grammar.KindChoice, compactJSON(v))
	}
	for _, name := range [...]string{"guided_grammar", "grammar"} {
		if f.str(name, &text, s.cfg.Limits.GrammarBytes) && text != "" {
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
	if e := s.checkGrammar(c.param, &c.spec); e != nil {
		f.fail(e)
		return nil
	}
	return &c.spec
}

// hasSchemas tells for which kinds the order of properties means something.
func hasSchemas(kind string) bool {
	return kind == grammar.KindJSONSchema || kind == grammar.KindLark || kind == grammar.KindTags
}

// checkGrammar tells whether a grammar can be enforced.
func (s *Server) checkGrammar(param string, spec *grammar.Spec) *apiError {
	if len(spec.Text)+len(spec.Whitespace) > s.cfg.Limits.GrammarBytes {
		return invalid(param, "'%s' is longer than %d bytes.", param, s.cfg.Limits.GrammarBytes)
	}
	_, err := s.grammars.Compile(*spec)
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

// responseFormat tells whether what it finds asks for the schema's order.
func (s *Server) responseFormat(f *fields, add func(param, kind, text string)) (ordered bool) {
	const param = "response_format"
	v := f.get(param)
	if v == nil {
		return false
	}
	var r struct {
		Type       string          `json:"type"`
		Schema     json.RawMessage `json:"schema"` // llama.cpp's
		Strict     bool            `json:"strict"` // of Responses
		JSONSchema *struct {
			Schema json.RawMessage `json:"schema"`
			Strict bool            `json:"strict"`
		} `json:"json_schema"`
	}
	if v[0] != '{' || unmarshal(v, &r) != nil {
		f.fail(invalid(param, "'response_format' must be an object with a 'type'."))
		return false
	}
	switch r.Type {
	case "text":
	case "json_object":
		if !isNull(r.Schema) && !emptyValue(r.Schema) {
			add(param+".schema", grammar.KindJSONSchema, schemaText(r.Schema))
			return false
		}
		add(param, grammar.KindJSONObject, "")
	case "json_schema":
		schema := r.Schema
		if r.JSONSchema != nil {
			schema, r.Strict = r.JSONSchema.Schema, r.JSONSchema.Strict
		}
		if isNull(schema) {
			f.fail(invalid(param+".json_schema", "'response_format.json_schema.schema' is required."))
			return false
		}
		add(param+".json_schema.schema", grammar.KindJSONSchema, schemaText(schema))
		return r.Strict
	case "structural_tag":
		add(param, grammar.KindTags, string(v))
	default:
		f.fail(invalid(param+".type", "'response_format.type' must be text, json_object, json_schema or structural_tag, got %.40q.", r.Type))
	}
	return false
}

func (s *Server) structuredOutputs(f *fields, found *[]constraint, add func(param, kind, text string)) {
	const param = "structured_outputs"
	v := f.get(param)
	if v == nil || emptyValue(v) {
		return
	}
	o, err := parseFields(v)
	if err != nil {
		f.fail(invalid(param, "'structured_outputs' must be an object."))
		return
	}
	before := len(*found)
	lim := s.cfg.Limits.GrammarBytes
	var text string
	if x := o.get("json"); x != nil {
		add(param+".json", grammar.KindJSONSchema, schemaText(x))
	}
	var yes bool
	if o.boolean("json_object", &yes) && yes {
		add(param+".json_object", grammar.KindJSONObject, "")
	}
	if o.str("regex", &text, lim) {
		add(param+".regex", grammar.KindRegex, text)
	}
	if x := o.get("choice"); x != nil {
		add(param+".choice", grammar.KindChoice, compactJSON(x))
	}
	if o.str("grammar", &text, lim) {
		add(param+".grammar", grammarKind(text), text)
	}
	if x := o.get("structural_tag"); x != nil {
		add(param+".structural_tag", grammar.KindTags, schemaText(x))
	}
	compact, anyOrder := false, true
	o.boolean("disable_any_whitespace", &compact)
	o.boolean("any_order", &anyOrder)
	text = ""
	o.str("whitespace_pattern", &text, lim)
	for i := before; i < len(*found); i++ {
		(*found)[i].spec.Compact, (*found)[i].spec.Whitespace, (*found)[i].spec.AnyOrder = compact, text, anyOrder && hasSchemas((*found)[i].spec.Kind)
	}
	var no bool
	o.boolean("disable_fallback", &no) // there is none
	if o.boolean("disable_additional_properties", &no) && no {
		f.fail(invalidCode(param+".disable_additional_properties", "unsupported_parameter", "'structured_outputs.disable_additional_properties' is not supported: say \"additionalProperties\": false in the schema."))
	}
	if names := o.unread(); len(names) > 0 {
		f.fail(invalidCode(param+"."+names[0], "unsupported_parameter", "'structured_outputs.%s' is not known.", names[0]))
	}
	if o.err != nil {
		f.fail(invalid(param+"."+o.err.param, "%s", o.err.message))
	}
}
