package api

import (
	"encoding/json"
	"testing"

	"github.com/shoal-llm/shoal/internal/server/servertest"
	"github.com/shoal-llm/shoal/internal/text/grammar"
)

// Every way to ask for a structure reaches the engine as a grammar.
func TestStructuredOutputs(t *testing.T) {
	schema := M{"type": "object", "properties": M{"a": M{"type": "integer"}}}
	const text = `{"properties":{"a":{"type":"integer"}},"type":"object"}`
	e := &servertest.Engine{Script: servertest.Hello}
	url := serve(t, e)
	for _, c := range []struct {
		ask  M
		want *grammar.Spec
	}{
		{M{}, nil},
		{M{"response_format": M{"type": "text"}}, nil},
		{M{"response_format": M{"type": "json_object"}}, &grammar.Spec{Kind: grammar.KindJSONObject}},
		{M{"response_format": M{"type": "json_object", "schema": schema}}, &grammar.Spec{Kind: grammar.KindJSONSchema, Text: text}},
		{
			M{"response_format": M{"type": "json_schema", "json_schema": M{"name": "x", "strict": true, "schema": schema}}},
			&grammar.Spec{Kind: grammar.KindJSONSchema, Text: text},
		},
		{
			M{"guided_json": schema, "guided_whitespace_pattern": "[ ]?"},
			&grammar.Spec{Kind: grammar.KindJSONSchema, Text: text, Whitespace: "[ ]?"},
		},
		{M{"guided_json": text}, &grammar.Spec{Kind: grammar.KindJSONSchema, Text: text}},
		{M{"guided_regex": "a+"}, &grammar.Spec{Kind: grammar.KindRegex, Text: "a+"}},
		{M{"guided_choice": []string{"a", "b"}}, &grammar.Spec{Kind: grammar.KindChoice, Text: `["a","b"]`}},
		{M{"guided_grammar": `start: "a"`}, &grammar.Spec{Kind: grammar.KindLark, Text: `start: "a"`}},
		{M{"grammar": `root ::= "a"`}, &grammar.Spec{Kind: grammar.KindGBNF, Text: `root ::= "a"`}},
		{M{"json_schema": schema}, &grammar.Spec{Kind: grammar.KindJSONSchema, Text: text}},
		{
			M{"structured_outputs": M{"json": schema, "disable_any_whitespace": true}},
			&grammar.Spec{Kind: grammar.KindJSONSchema, Text: text, Compact: true},
		},
		{M{"structured_outputs": M{"json": schema, "any_order": true}}, &grammar.Spec{Kind: grammar.KindJSONSchema, Text: text, AnyOrder: true}},
		{
			M{"structured_outputs": M{"json": schema, "disable_additional_properties": true}},
			&grammar.Spec{Kind: grammar.KindJSONSchema, Text: text},
		},
		{
			M{"structured_outputs": M{"json": schema, "disable_additional_properties": false}},
			&grammar.Spec{Kind: grammar.KindJSONSchema, Text: text, Open: true},
		},
		{M{"structured_outputs": M{"choice": []string{"a"}}}, &grammar.Spec{Kind: grammar.KindChoice, Text: `["a"]`}},
		{M{"structured_outputs": M{"regex": "a"}}, &grammar.Spec{Kind: grammar.KindRegex, Text: "a"}},
		{M{"structured_outputs": M{"json_object": true}}, &grammar.Spec{Kind: grammar.KindJSONObject}},
	} {
		for _, path := range []string{"/v1/completions", "/v1/chat/completions"} {
			body := completion(c.ask)
			if path != "/v1/completions" {
				body = chat(c.ask)
			}
			if a := post(t, url+path, body); a.status != 200 || a.header.Get("X-Ignored-Parameters") != "" {
				t.Errorf("%v: %d %s, ignored %q", c.ask, a.status, a.raw, a.header.Get("X-Ignored-Parameters"))
				continue
			}
			got := e.Last(t).Sampling.Grammar
			if (got == nil) != (c.want == nil) || got != nil && *got != *c.want {
				t.Errorf("%v: grammar %+v, want %+v", c.ask, got, c.want)
			}
		}
	}
}

// A schema that cannot be enforced is refused by name, before anything is generated.
func TestStructuresRefused(t *testing.T) {
	url := serve(t, &servertest.Engine{Script: servertest.Hello}) + "/v1/chat/completions"
	for _, c := range []struct {
		ask         M
		param, code string
	}{
		{M{"response_format": M{"type": "yaml"}}, "response_format.type", ""},
		{M{"response_format": M{"type": "json_schema"}}, "response_format.json_schema", ""},
		{M{"response_format": M{"type": "json_schema", "json_schema": M{"schema": M{"uniqueItems": true}}}},
			"response_format.json_schema.schema", "unsupported_schema"},
		{M{"guided_json": M{"type": "nothing"}}, "guided_json", "unsupported_schema"},
		{M{"guided_json": false}, "guided_json", "invalid_grammar"},
		{M{"guided_regex": "("}, "guided_regex", "invalid_grammar"},
		{M{"grammar": "root ::= x"}, "grammar", "invalid_grammar"},
		{M{"guided_regex": "a", "guided_choice": []string{"b"}}, "guided_choice", ""},
		{M{"structured_outputs": M{"xml": 1}}, "structured_outputs.xml", "unsupported_parameter"},
		{M{"structured_outputs": M{"regex": 1}}, "structured_outputs.regex", ""},
		{M{"guided_json": M{"required": true}}, "guided_json", "unsupported_schema"},
		{M{"guided_choice": []string{}}, "guided_choice", "invalid_grammar"},
		{M{"guided_choice": json.RawMessage(`["\ud83d"]`)}, "guided_choice", "invalid_grammar"},
		{M{"guided_regex": ""}, "guided_regex", "invalid_grammar"},
		{M{"guided_grammar": ""}, "guided_grammar", "invalid_grammar"},
		{M{"grammar": ""}, "grammar", "invalid_grammar"},
		{M{"grammar": "root ::= "}, "grammar", "invalid_grammar"},
		{M{"guided_json": M{}}, "guided_json", "invalid_grammar"},
		{M{"guided_json": ""}, "guided_json", "invalid_grammar"},
		{M{"guided_json": " {} "}, "guided_json", "invalid_grammar"},
		{M{"json_schema": M{}}, "json_schema", "invalid_grammar"},
		{M{"response_format": M{"type": "json_schema", "json_schema": M{"schema": M{}}}},
			"response_format.json_schema.schema", "invalid_grammar"},
		{M{"structured_outputs": M{}}, "structured_outputs", ""},
		{M{"structured_outputs": M{"json": M{}}}, "structured_outputs.json", "invalid_grammar"},
		{M{"structured_outputs": M{"choice": []string{}}}, "structured_outputs.choice", "invalid_grammar"},
		{M{"structured_outputs": M{"grammar": ""}}, "structured_outputs.grammar", "invalid_grammar"},
		{M{"structured_outputs": M{"regex": ""}}, "structured_outputs.regex", "invalid_grammar"},
	} {
		checkError(t, post(t, url, chat(c.ask)), 400, "invalid_request_error", c.param, c.code)
	}
}
