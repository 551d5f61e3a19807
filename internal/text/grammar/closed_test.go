package grammar

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// Objects have the members that their schema declares, each at most once.
func TestMembers(t *testing.T) {
	two := `"properties":{"name":{"type":"string"},"age":{"type":"integer"}},"required":["name","age"]`
	for _, c := range []struct {
		schema  string
		how     Spec
		yes, no []string
	}{
		{`{"type":"object",` + two + `}`, Spec{}, []string{`{"name":"a","age":1}`}, []string{`{"age":1,"name":"a"}`, `{"name":"a","age":1,"x":1}`, `{"name":"a","age":1,"age":1}`, `{"message":1`}},
		{`{"type":"object",` + two + `}`, Spec{AnyOrder: true}, []string{`{"name":"a","age":1}`, `{"age":1,"name":"a"}`}, []string{`{"x":1`, `{"age":1,"age":1`}},
		{`{"type":"object",` + two + `}`, Spec{Open: true}, []string{`{"name":"a","age":1,"x":1}`}, []string{`{"name":"a","age":1,"x":1,"x":2}`, `{"name":"a","age":1,"name":"b"}`}},
		{`{"type":"object",` + two + `,"additionalProperties":true}`, Spec{}, []string{`{"name":"a","age":1,"x":1,"y":2}`, `{"name":"a","age":1,"x":{"x":1,"name":2}}`}, []string{`{"name":"a","age":1,"x":1,"x":2}`, `{"name":"a","age":1,"x":1,"age":2}`, `{"name":"a","age":1,"x":{"x":1,"x":2}}`}},
		{`{"type":"object",` + two + `,"additionalProperties":{"type":"integer"}}`, Spec{AnyOrder: true}, []string{`{"x":1,"name":"a","y":2,"age":1}`}, []string{`{"x":1,"name":"a","x":2,"age":1}`, `{"x":"a"`}},
		{`{"type":"object","properties":{}}`, Spec{}, []string{`{}`}, []string{`{"a":1}`}},
		{`{"type":"object","properties":{"a":true},"required":["b"]}`, Spec{}, []string{`{"a":1,"b":2}`, `{"b":2}`}, []string{`{"a":1}`, `{"b":2,"c":3}`}},
		{`{"allOf":[{"properties":{"a":true}},{"properties":{"b":true}}],"type":"object"}`, Spec{}, []string{`{"a":1,"b":2}`}, []string{`{"c":1}`}},
		{`{"properties":{"a":true},"allOf":[{"$ref":"#/$defs/o"}],"$defs":{"o":{"additionalProperties":true}}}`, Spec{}, []string{`{"c":1}`}, nil},
		{`{"properties":{"a":{"properties":{"b":true}}},"type":"object"}`, Spec{}, []string{`{"a":{"b":1}}`, `{"a":3}`}, []string{`{"a":{"c":1}}`}},
		{`{"type":"object","properties":{"a":true},"patternProperties":{"^x":{"type":"null"}}}`, Spec{}, []string{`{"a":1,"xy":null,"x":null}`}, []string{`{"y":null}`, `{"x":null,"x":null}`}},
		{`{"type":"object","dependentRequired":{"a":["b"]}}`, Spec{}, []string{`{"c":1}`, `{"a":1,"b":1}`}, []string{`{"a":1}`}},
		{`{"type":"object","properties":{"k":{"enum":["x","y"]}},"required":["k"],"if":{"properties":{"k":{"const":"x"}}},"then":{"properties":{"v":{"type":"integer"}},"required":["v"]}}`, Spec{}, []string{`{"k":"x","v":1}`, `{"k":"y"}`}, []string{`{"k":"x"}`, `{"k":"y","z":1}`}},
		{`{}`, Spec{}, []string{`{"a":{"a":1},"b":{"a":1}}`, `[{"a":1},{"a":1}]`}, []string{`{"a":1,"a":2}`, `{"b":[{"a":1,"b":1,"a":2}]}`, `{"\u0061":1}`}},
		{`{"type":"object"}`, Spec{}, []string{`{"é":1,"è":1,"\n":1,"a":1}`}, []string{`{"é":1,"é":1}`, `{"\n":1,"a":1,"\n":2}`}},
		{`{"type":"object","propertyNames":{"enum":["a","b"]}}`, Spec{}, []string{`{"b":1,"a":1}`}, []string{`{"a":1,"b":1,`, `{"a":1,"a`}},
		{`{"type":"object","propertyNames":{"pattern":"^[ab]$"},"minProperties":2}`, Spec{}, []string{`{"b":1,"a":1}`}, []string{`{"a":1}`}},
	} {
		c.how.Kind, c.how.Text = KindJSONSchema, c.schema
		g, err := New(words(t), c.how)
		if err != nil {
			t.Errorf("%s: %v", c.schema, err)
			continue
		}
		checkTexts(t, g, c.schema, c.yes, c.no)
	}
	for kind, text := range map[string]string{KindLark: `start: %json {"type":"object","properties":{"a":{"type":"null"}}}`,
		KindTags: `{"triggers":["<f"],"structures":[{"begin":"<f>","schema":{"type":"object","properties":{"a":{"type":"null"}}},"end":"</f>"}]}`} {
		for _, open := range []bool{false, true} {
			g, err := New(words(t), Spec{Kind: kind, Text: text, Open: open})
			if err != nil {
				t.Fatal(err)
			}
			more := `{"a":null,"b":1}`
			if kind == KindTags {
				more = "<f>" + more + "</f>"
			}
			if accepts(t, g, more) != open {
				t.Errorf("%s, open %v: %s: %v", kind, open, more, !open)
			}
		}
	}
	// No name is left for a third member.
	if _, err := New(words(t), Spec{Kind: KindJSONSchema, Text: `{"type":"object","propertyNames":{"pattern":"^[ab]$"},"minProperties":3}`}); err == nil {
		t.Error("an object of three members and two names was taken")
	}
}

func checkTexts(t *testing.T, g *Grammar, name string, yes, no []string) {
	t.Helper()
	for _, s := range yes {
		if !accepts(t, g, s) {
			t.Errorf("%s refuses %s", name, s)
		}
	}
	for _, s := range no {
		if accepts(t, g, s) {
			t.Errorf("%s takes %s", name, s)
		}
	}
}

// No matching prefix is a dead end, for any allowed next token, and no object has a name twice.
func TestNamesRunOut(t *testing.T) {
	v := words(t)
	for _, schema := range []string{
		`{"type":"object","propertyNames":{"enum":["a","ab","abc"]},"additionalProperties":{"type":"boolean"}}`,
		`{"type":"object","patternProperties":{"^a?b?$":{"type":"integer"}},"minProperties":3}`,
		`{"type":"object","propertyNames":{"pattern":"^[ab]{1,2}$"},"additionalProperties":{"enum":[1]},"minProperties":6}`,
	} {
		g, err := New(v, Spec{Kind: KindJSONSchema, Text: schema, Compact: true})
		if err != nil {
			t.Fatal(err)
		}
		r := rand.New(rand.NewPCG(1, 9))
		for range 60 {
			at, text := g.Start(), ""
			for range 60 {
				mask, err := at.Mask()
				if err != nil {
					t.Fatal(err)
				}
				var may []int32
				for id := range int32(v.Size()) {
					if mask.Has(id) {
						may = append(may, id)
					}
				}
				if len(may) == 0 {
					t.Fatalf("%s: nothing follows %s", schema, text)
				}
				id := may[r.IntN(len(may))]
				if at, err = at.Advance(id); err != nil {
					t.Fatalf("%s: %q after %s: %v", schema, v.token[id], text, err)
				}
				text += string(v.token[id])
			}
			var names []string
			for i, part := range strings.Split(text, `"`) {
				if i%2 == 1 {
					names = append(names, part)
				}
			}
			slices.Sort(names)
			if len(slices.Compact(slices.Clone(names))) != len(names) {
				t.Fatalf("%s: a name twice: %s", schema, text)
			}
		}
	}
}

// Values have a unique spelling, and numbers have bounded length.
func TestValues(t *testing.T) {
	nines := strings.Repeat("9", 25)
	for _, c := range []struct {
		schema  string
		yes, no []string
	}{
		{`{"type":"integer","const":7}`, []string{"7"}, []string{"7.0", "7e0", "07"}},
		{`{"type":"integer","const":7.0}`, []string{"7"}, []string{"7.0"}},
		{`{"const":7}`, []string{"7"}, []string{"7.0"}},
		{`{"const":0.50}`, []string{"0.50"}, []string{"0.5"}},
		{`{"enum":[1,22,"a",null,[1,{"b":2}]]}`, []string{"1", "22", `"a"`, "null", `[1,{"b":2}]`}, []string{"1.0", "22.0", `[1.0,{"b":2}]`}},
		{`{"type":"integer"}`, []string{"0", "-1", "9223372036854775807", "-9223372036854775808"}, []string{"9223372036854775808", "-9223372036854775809", nines, "1.0"}},
		{`{"type":"integer","minimum":0}`, []string{"0", "9223372036854775807"}, []string{"9223372036854775808", "-1"}},
		{`{"type":"integer","minimum":10000000000000000000}`, []string{"10000000000000000000"}, []string{"1", nines}},
		{`{"type":"integer","format":"int32"}`, []string{"2147483647", "-2147483648"}, []string{"2147483648", "-2147483649"}},
		{`{"type":"integer","format":"int32","minimum":5}`, []string{"5"}, []string{"4", "2147483648"}},
		{`{"type":"integer","format":"uint64"}`, []string{"18446744073709551615", "0"}, []string{"-1", "18446744073709551616"}},
		{`{"type":"integer","format":"int64"}`, []string{"9223372036854775807"}, []string{"9223372036854775808"}},
		{`{"type":"integer","multipleOf":5}`, []string{"5", "-10"}, []string{"4", nines[:20] + "0"}},
		{`{"type":"number"}`, []string{"0", "-0.5", "1e5", "1.5E-10", "9.9e307", "1.6e308", "1e-308", "1234567890123456789", "0.12345678901234567", "9999999999999999999e288"},
			[]string{nines, "0.123456789012345678", "1.8e308", "2e308", "2e26513285", "1e309", "9999999999999999999e290", "1e0001", "1e-309"}},
		{`{"type":"number","minimum":0}`, []string{"0.5", "1234567890123456789"}, []string{nines, "0.123456789012345678", "-1"}},
		{`{"type":"number","exclusiveMinimum":0,"maximum":0.00000000000000000001}`, []string{"0.00000000000000000001"}, []string{"0.00000000000000000002"}},
		{`{"type":"number","format":"double"}`, []string{"0.5"}, []string{nines}},
		{`{"type":"string","format":"password"}`, []string{`"x"`}, nil},
		{`{"type":"string","format":"uuid4","maxLength":2}`, []string{`"x"`}, []string{`"xyz"`}},
		{`{"type":"string","format":"date"}`, []string{`"2026-01-01"`}, []string{`"x"`}},
		{`{"type":"string","format":"time"}`, []string{`"10:00:00.123456789Z"`}, []string{`"10:00:00.1234567890Z"`}},
		{`{"type":"string","format":"duration"}`, []string{`"P1Y2M3DT4H5M6S"`, `"P123456789W"`}, []string{`"P1234567890W"`, `"PT1234567890S"`}},
		{`{"enum":["x","2026-01-01"],"format":"byte"}`, []string{`"x"`}, nil},
		{`{"enum":["\ud83d"]}`, []string{`"\ud83d"`}, []string{"\"\uFFFD\""}},
		{`{"enum":["a\udc1f\ud83db"]}`, []string{`"a\udc1f\ud83db"`}, nil},
		{`{"enum":["\ud83d\udc1f"]}`, []string{`"🐟"`}, []string{`"\ud83d\udc1f"`}},
		{`{"type":"object","properties":{"\ud83d":{"type":"null"}},"required":["\ud83d"]}`, []string{`{"\ud83d":null}`}, []string{"{\"\uFFFD\":null}"}},
		{`{"type":"array","items":{"type":"null"}}`, []string{"[\n" + strings.Repeat(" ", 20) + "null]", "[\n\n\t\tnull]"}, []string{"[\n" + strings.Repeat(" ", 21) + "null]", "[\n" + strings.Repeat("\t", 21) + "null]", "[\n\n\nnull]", "[  null]"}},
	} {
		g, err := New(words(t), Spec{Kind: KindJSONSchema, Text: c.schema})
		if err != nil {
			if c.yes != nil {
				t.Errorf("%s: %v", c.schema, err)
			}
			continue
		}
		checkTexts(t, g, c.schema, c.yes, c.no)
	}
	g := compiled(t, KindJSONSchema, `{"type":"object","properties":{"a":{"type":"string","format":"password"},"b":{"type":"number","format":"double"},"c":{"type":"string","format":"date"},"d":{"type":"integer","format":"int32"}}}`)
	if got := g.Annotations(); !slices.Equal(got, []string{"#/properties/a/format", "#/properties/b/format"}) {
		t.Errorf("annotations: %v", got)
	}
}
