package grammar

import (
	"strings"
	"testing"
)

// The types that schemas allow for a member "x", as first letters (u is a number that is not an
// integer).
func TestParametersAllow(t *testing.T) {
	kinds := []string{"null", "boolean", "integer", "number", "string", "array", "object"}
	for schema, want := range map[string]string{
		`{}`:                                  "nbiusao",
		`{"properties":{"x":{}}}`:             "nbiusao",
		`{"properties":{"x":true,"y":false}}`: "nbiusao",
		`{"properties":{"x":{"type":"string"},"z":true,"y":{"type":7},"w":[]}}`:                        "s",
		`{"properties":{"x":{"type":"integer"}}}`:                                                      "i",
		`{"properties":{"x":{"type":["string","null"]}}}`:                                              "ns",
		`{"properties":{"x":{"anyOf":[{"type":"string"},{"type":"null"}]}}}`:                           "ns",
		`{"properties":{"x":{"oneOf":[{"type":"boolean"},{"type":"array"}]}}}`:                         "ba",
		`{"properties":{"x":{"allOf":[{"type":["string","integer"]},{"type":["string","object"]}]}}}`:  "s",
		`{"properties":{"x":{"$ref":"#/$defs/s"}},"$defs":{"s":{"type":"string","format":"x-y"}}}`:     "s",
		`{"properties":{"x":{"$ref":"#/$defs/none"}}}`:                                                 "nbiusao",
		`{"properties":{"x":{"$ref":"#/properties/x"}}}`:                                               "nbiusao",
		`{"properties":{"x":{"enum":["a",1,null]}}}`:                                                   "nius",
		`{"properties":{"x":{"const":true}}}`:                                                          "b",
		`{"properties":{"x":{"type":"string","nullable":true}}}`:                                       "ns",
		`{"properties":{"x":{"not":{"type":"string"}}}}`:                                               "nbiuao",
		`{"properties":{"x":{"type":"STR"}}}`:                                                          "s",
		`{"additionalProperties":{"type":"string"}}`:                                                   "s",
		`{"properties":{"y":{}},"additionalProperties":{"type":"boolean"}}`:                            "b",
		`{"properties":{"y":{}},"additionalProperties":false}`:                                         "nbiusao",
		`{"patternProperties":{"^x":{"type":"object"},"(":{}},"additionalProperties":{"type":"null"}}`: "o",
		`{"$ref":"#/$defs/a","$defs":{"a":{"properties":{"x":{"type":"array"}}}}}`:                     "a",
		`{"allOf":[{"properties":{"x":{"type":"boolean"}}},{"required":["x"]}]}`:                       "b",
		`{"anyOf":[{"properties":{"x":{"type":"boolean"}}},{"properties":{"x":{"type":"null"}}},{}]}`:  "nb",
		`{"unevaluatedProperties":false,"properties":{"x":{"type":"string"}}}`:                         "s",
		`{"$schema":"http://json-schema.org/draft-07/schema#","properties":{"x":{"$ref":"#/definitions/i","type":"string"}},"definitions":{"i":{"type":"boolean"}}}`: "b",
		`no schema`: "nbiusao",
	} {
		p, got := NewParameters(schema), ""
		for _, k := range kinds {
			if p.Allows("x", k) {
				got += strings.Replace(k[:2], "nu", map[string]string{"null": "n", "number": "u"}[k], 1)[:1]
			}
		}
		if got != want {
			t.Errorf("%s allows %s, want %s", schema, got, want)
		}
	}
}

func TestParametersList(t *testing.T) {
	for _, c := range []struct {
		schema, value string
		want          bool
	}{
		{`{"properties":{"x":{"enum":[1,"a",[1,2]]}}}`, `1.0`, true},
		{`{"properties":{"x":{"enum":[1,"a",[1,2]]}}}`, `[1, 2]`, true},
		{`{"properties":{"x":{"enum":[1,"a",[1,2]]}}}`, `"1"`, false},
		{`{"properties":{"x":{"anyOf":[{"const":true},{"type":"string"}]}}}`, `true`, true},
		{`{"properties":{"x":{"$ref":"#/$defs/e"}},"$defs":{"e":{"allOf":[{"enum":[null]}]}}}`, `null`, true},
		{`{"properties":{"y":{"enum":[1]}}}`, `1`, false},
	} {
		if got := NewParameters(c.schema).Lists("x", c.value); got != c.want {
			t.Errorf("%s lists %s: %v", c.schema, c.value, got)
		}
	}
}

// An infinitely branching schema is abandoned at the limit.
func TestParametersBound(t *testing.T) {
	p := NewParameters(`{"properties":{"x":{"$ref":"#/$defs/a"}},"$defs":{"a":{"anyOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/a"},{"type":"string"}]}}}`)
	if !p.Allows("x", "string") {
		t.Error("a string is not allowed")
	}
}
