package grammar

import (
	"errors"
	"slices"
	"testing"
)

// Any grammar ends within its limits, with an error or with states whose masks are consistent.
func fuzzKind(f *testing.F, kind string, seeds ...string) {
	for _, s := range seeds {
		f.Add(s, `{"a": 1}`)
	}
	v := words(f)
	f.Fuzz(func(t *testing.T, text, input string) {
		if len(text) > 4096 || len(input) > 64 {
			return
		}
		g, err := New(v, Spec{Kind: kind, Text: text, AnyOrder: len(text)%2 == 1, Open: len(text)%3 == 0,
			Thought: []string{"", ThoughtOptional}[len(input)%2]})
		var known *Error
		if err != nil {
			if !errors.As(err, &known) && !errors.Is(err, ErrTooComplex) {
				t.Fatalf("%v", err)
			}
			return
		}
		at := g.Start()
		for _, b := range []byte(input) {
			mask, err := at.Mask()
			if err != nil {
				return
			}
			if !slices.ContainsFunc(mask.Words(), func(w uint64) bool { return w != 0 }) {
				t.Fatalf("nothing may follow in %q", input)
			}
			next, err := at.Advance(int32(b))
			if errors.Is(err, ErrTooComplex) {
				return
			}
			if (err == nil) != mask.Has(int32(b)) {
				t.Fatalf("byte %q: mask %v, state %v", b, mask.Has(int32(b)), err)
			}
			if err != nil {
				return
			}
			at = next
		}
	})
}

func FuzzSchema(f *testing.F) {
	fuzzKind(f, KindJSONSchema, `{"type":"object","properties":{"a":{"$ref":"#/$defs/x"}},"$defs":{"x":{"enum":[1,"b",{"c":[]}]}}}`,
		`{"oneOf":[{"type":"string","pattern":"^a+$"},{"type":"integer","multipleOf":3}],"not":{"const":"aa"}}`,
		`{"type":"object","patternProperties":{"^x":{"type":"null"}},"additionalProperties":false,"minProperties":1,"propertyNames":{"maxLength":4}}`,
		`{"if":{"required":["a"]},"then":{"required":["b"]},"else":{"dependentRequired":{"c":["d"]}},"prefixItems":[{"minimum":1.5}],"items":false}`)
}

// The result of Relax can be enforced.
func FuzzRelax(f *testing.F) {
	for _, s := range []string{`{"type":"Object","properties":{"a":{"uniqueItems":true},"b":5},"required":null}`, `{"oneOf":[{"type":"integer"},{"minimum":1}],"$ref":"#/x"}`,
		`{"items":[{"not":{"items":{}}},{"contains":1}],"properties":{"a~/b":{"$ref":"x"}}}`} {
		f.Add(s)
	}
	v := words(f)
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 2048 {
			return
		}
		left, _, err := NewEngine(v).Relax(Spec{Kind: KindJSONSchema, Text: text})
		if err != nil {
			return
		}
		if _, err := New(v, Spec{Kind: KindJSONSchema, Text: left}); err != nil {
			t.Fatalf("%s: %v", left, err)
		}
	})
}

func FuzzRegex(f *testing.F) {
	fuzzKind(f, KindRegex, `(a|b)*[^\d]{2,3}?`, `(?i)\p{Lu}\x41$`, `^(?!a)(?:b|c$)`, `[a-z&&[^b]]`, `[]a]`)
}

func FuzzGBNF(f *testing.F) {
	fuzzKind(f, KindGBNF, "root ::= \"a\" x{1,3} # c\nx ::= [^b-c\\n] | root?", "root ::= root \"a\" | (\"b\"\n| .)*")
}

func FuzzLark(f *testing.F) {
	fuzzKind(f, KindLark, "start: a+ -> b\na: \"x\"i~2..3 | /y[/]/i | [NUM]\nNUM: \"0\"..\"9\"\n%ignore /\\s/\n%import common.WS",
		"start: %json {\"type\":\"null\"}")
}

func FuzzTags(f *testing.F) {
	fuzzKind(f, KindTags, `{"triggers":["<"],"structures":[{"begin":"<a>","schema":{},"end":"</a>"}]}`)
}
