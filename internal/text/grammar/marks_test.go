package grammar

import "testing"

// A control token that represents a mark of a call is allowed where the grammar has that text and nothing
// else may follow, but not inside a string.
func TestMarksOfCalls(t *testing.T) {
	var list []string
	for b := range 256 {
		list = append(list, string([]byte{byte(b)}))
	}
	list = append(list, "json", "", "", "") // the last ones are control tokens
	v := NewVocabulary(len(list), func(id int32) []byte { return []byte(list[id]) }, []int32{int32(len(list) - 1)})
	constrain, message := int32(len(list)-3), int32(len(list)-2)
	v.Mark(constrain, "<|constrain|>")
	v.Mark(message, "<|message|>")
	g, err := New(v, Spec{Kind: KindLark, Text: `start: ("functions.f " | "functions.g ") "<|constrain|>" "json" "<|message|>" %json {"type":"object","properties":{"a":{"type":"string"}}}`})
	if err != nil {
		t.Fatal(err)
	}
	checkTexts(t, g, "a call", []string{`functions.g <|constrain|>json<|message|>{"a":"<|message|>"}`}, []string{`functions.h <|constrain|>json<|message|>{}`})
	at := g.Start()
	checkMask(t, v, at)
	text := func(s string) {
		t.Helper()
		for _, c := range []byte(s) {
			if at, err = at.Advance(int32(c)); err != nil {
				t.Fatalf("%q: %v", s, err)
			}
			if m, _ := at.Mask(); m.Has(message) || m.Has(constrain) != (s == "functions.f " && c == ' ') {
				t.Fatalf("after %q of %q: %v, %v", c, s, m.Has(constrain), m.Has(message))
			}
			checkMask(t, v, at)
		}
	}
	text("functions.f ")
	for _, id := range []int32{constrain, 256, message} {
		if at, err = at.Advance(id); err != nil {
			t.Fatalf("token %d: %v", id, err)
		}
		checkMask(t, v, at)
	}
	text(`{"a": "x`)
	if end, err := at.AdvanceBytes([]byte(`"}`)); err != nil || !end.Ends() {
		t.Error(err)
	}
}
