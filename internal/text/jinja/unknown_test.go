package jinja

import (
	"errors"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/text/jinja/python"
)

// Unknown constructs are refused by name, at parsing or at evaluation. They are never omitted from
// the output silently.
func TestUnknownConstructsAreNamed(t *testing.T) {
	for _, c := range []struct {
		source, name string
		parses       bool
	}{
		{`{{ x|nosuch }}`, "No filter named 'nosuch'", false},
		{`{{ x|upper|a.b }}`, "No filter named 'a.b'", false},
		{`{{ x is nosuch }}`, "No test named 'nosuch'", false},
		{`{{ x is not nosuch(1) }}`, "No test named 'nosuch'", false},
		{`{% for y in [] %}{% if y is nosuch %}{% endif %}{{ y|nosuch2 }}{% endfor %}`, "nosuch2", false},
		{`{% if x is nosuch %}{% endif %}`, "No test named 'nosuch'", true},
		{`{% if x %}{{ x|nosuch }}{% endif %}`, "No filter named 'nosuch'", true},
		{`{{ [x]|map('nosuch')|list }}`, "No filter named 'nosuch'", true},
		{`{{ [x]|select('nosuch')|list }}`, "No test named 'nosuch'", true},
		{`{{ nosuch(1) }}`, "'nosuch' is undefined", true},
		{`{{ nosuch.y }}`, "'nosuch' is undefined", true},
		{`{{ lipsum() }}`, "'lipsum' is undefined", true},
		{`{{ x.nosuch() }}`, "no attribute 'nosuch'", true},
		{`{{ [].nosuch() }}`, "no attribute 'nosuch'", true},
		{`{{ {}.nosuch() }}`, "no attribute 'nosuch'", true},
		{`{% macro m() %}{% endmacro %}{{ m.name }}`, "no attribute 'name'", true},
		{`{% macro m() %}{% endmacro %}{{ m['arguments'] }}`, "no attribute 'arguments'", true},
		{`{{ x.casefold }}`, "no attribute 'casefold'", true},
		{`{{ 1.5.hex }}`, "no attribute 'hex'", true},
		{`{{ "\N{BULLET}" }}`, `\N{BULLET}`, false},
		{`{{ '%c' % 1.5 }}`, "%c requires int or char", true},
		{`{{ '%c' % 'ab' }}`, "%c requires int or char", true},
		{`{{ '%c' % 1114112 }}`, "range(0x110000)", true},
		{`{{ '%c' % 55296 }}`, "surrogate", true},
		{`{{ x|upper(1) }}`, "upper", true},
		{`{{ x|tojson(nosuch=1) }}`, "'nosuch'", true},
		{`{{ range(1, nosuch=1) }}`, "'nosuch'", true},
		{`{% nosuch %}`, "'nosuch'", false},
		{`{% if x %}{% nosuch %}{% endif %}`, "'nosuch'", false},
		// Jinja has these, but no chat template uses them.
		{`{{ cycler(1) }}`, "'cycler' is undefined", true},
		{`{{ x.casefold() }}`, "no attribute 'casefold'", true},
		{`{{ x.encode() }}`, "no attribute 'encode'", true},
		{`{{ x|wordwrap }}`, "'wordwrap'", false},
		{`{{ x|pprint }}`, "'pprint'", false},
		{`{{ [x]|random }}`, "'random'", false},
		{`{{ x|striptags }}`, "'striptags'", false},
		{`{{ x|urlize }}`, "'urlize'", false},
		{`{{ 1|filesizeformat }}`, "'filesizeformat'", false},
		{`{{ {}|xmlattr }}`, "'xmlattr'", false},
		{`{% block a %}{% endblock %}`, "'block'", false},
		{`{% include 'a' %}`, "'include'", false},
		{`{% import 'a' as b %}`, "'import'", false},
		{`{% from 'a' import b %}`, "'from'", false},
		{`{% extends 'a' %}`, "'extends'", false},
		{`{% autoescape true %}{% endautoescape %}`, "'autoescape'", false},
		{`{% trans %}{% endtrans %}`, "'trans'", false},
		{`{% do x %}`, "'do'", false},
		{`{{ x; }}`, ";", false},
		{`{{ x ? 1 : 2 }}`, "?", false},
		{`{{ x && x }}`, "&", false},
		{`{{ [y for y in x] }}`, `"for"`, false},
		{`{{ lambda: x }}`, ":", false},
		{`{{ f'x' }}`, "found", false},
	} {
		vars := python.NewDict()
		vars.Set("x", python.Literal("x"))
		tmpl, err := Parse(c.source)
		if (err == nil) != c.parses {
			t.Errorf("%s: Parse returned %v", c.source, err)
		}
		if err == nil {
			_, err = tmpl.Render(vars, Options{})
		}
		if err == nil || errors.Is(err, python.ErrInternal) || !strings.Contains(err.Error(), c.name) {
			t.Errorf("%s: error %v, want one with %s", c.source, err, c.name)
		}
	}
}

// The output of %c equals Python's.
func TestPercentC(t *testing.T) {
	for source, want := range map[string]string{
		`{{ '%c' % 65 }}`: "A", `{{ '%.0c' % 'a' }}`: "a", `{{ '%3c|%-3c|' % (66, 'é') }}`: "  B|é  |", `{{ '%c' % true }}`: "\x01",
	} {
		tmpl, err := Parse(source)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := tmpl.Render(python.NewDict(), Options{}); err != nil || got.String() != want {
			t.Errorf("%s: %q, %v, want %q", source, got.String(), err, want)
		}
	}
}
