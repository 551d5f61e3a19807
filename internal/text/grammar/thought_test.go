package grammar

import (
	"errors"
	"testing"
)

// A thought is outside every kind of grammar, whether the prompt or the model opens it, and whether
// its marks are text or control tokens.
func TestThoughtIsOutside(t *testing.T) {
	var list []string
	for b := range 256 {
		list = append(list, string([]byte{byte(b)}))
	}
	list = append(list, "let me see", "</", "think>", "yes</think>", "</think>\n\n", "", "", "") // the last ones are control tokens
	v := NewVocabulary(len(list), func(id int32) []byte { return []byte(list[id]) }, []int32{int32(len(list) - 1)})
	open, shut, eos := int32(len(list)-3), int32(len(list)-2), int32(len(list)-1)
	v.Mark(open, "<think>")
	v.Mark(shut, "</think>")

	tags := `{"triggers":["<f"],"structures":[{"begin":"<f>","schema":{"type":"integer"},"end":"</f>"}]}`
	for _, c := range []struct{ kind, text, yes, no string }{
		{KindChoice, `["yes","no"]`, "yes", "may be"},
		{KindRegex, `[a-z]{2,3}`, "yes", "YES"},
		{KindRegex, `.*`, "any <think>x</think>", "a\nb"},
		{KindGBNF, `root ::= "yes" | "(" root ")"`, "(yes)", "yes)"},
		{KindLark, "start: WORD\nWORD: /[a-z]+/\n%ignore / +/", "yes", "7"},
		{KindJSONObject, "", `{"a":1}`, "[]"},
		{KindJSONSchema, `{"enum":["</think>",2]}`, `"</think>"`, "3"},
		{KindTags, tags, "free <f>12</f> text", "<f>x</f>"},
	} {
		for _, how := range []string{ThoughtBegun, ThoughtOptional} {
			g, err := New(v, Spec{Kind: c.kind, Text: c.text, Thought: how})
			if err != nil {
				t.Fatalf("%v: %v", c, err)
			}
			start := g.Start()
			refused := func(texts ...string) []string { // except texts that match the grammar itself
				plain, err := New(v, Spec{Kind: c.kind, Text: c.text})
				if err != nil {
					t.Fatal(err)
				}
				if accepts(t, plain, "") {
					return texts[:1]
				}
				return texts
			}
			thoughts := []string{"let me see </thi <f>x</f> {</think>", "</think>\n\n", "no</think> \t\n"}
			for i, thought := range thoughts {
				if how == ThoughtOptional {
					thoughts[i] = "<think>" + thought
				}
				checkTexts(t, g, c.kind+" "+how, []string{thoughts[i] + c.yes}, refused(thoughts[i]+c.no, thoughts[i], c.no))
			}
			if got := accepts(t, g, c.yes); got != (how == ThoughtOptional) && c.text != ".*" {
				t.Errorf("%v %s without a thought: %v", c, how, got)
			}
			// Control tokens: mask and states agree about all of them in every state.
			at := start
			if how == ThoughtOptional {
				checkMask(t, v, at)
				if at, err = at.Advance(open); err != nil {
					t.Fatalf("%v: %v", c, err)
				}
			}
			for _, id := range []int32{int32('x'), 257, int32('<'), shut} {
				if checkMask(t, v, at); id == shut && func() bool { m, _ := at.Mask(); return m.Has(eos) && c.kind != KindTags && c.text != ".*" }() {
					t.Errorf("%v: an end inside of a thought", c)
				}
				if at, err = at.Advance(id); err != nil {
					t.Fatalf("%v: token %d: %v", c, id, err)
				}
			}
			checkMask(t, v, at)
			if end, err := at.AdvanceBytes([]byte("\n" + c.yes)); err != nil || !end.Ends() {
				t.Errorf("%v: after control tokens: %v", c, err)
			}
			if how == ThoughtBegun {
				if _, err := at.Advance(shut); !errors.Is(err, ErrToken) {
					t.Errorf("%v: a closing mark after the thought: %v", c, err)
				}
			}
		}
		g, err := New(v, Spec{Kind: c.kind, Text: c.text})
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range []int32{open, shut} {
			if _, err := g.Start().Advance(id); !errors.Is(err, ErrToken) {
				t.Errorf("%v: a mark where no thought may be: %v", c, err)
			}
		}
	}
	if _, err := New(v, Spec{Kind: KindJSONSchema, Text: "false", Thought: ThoughtOptional}); err == nil {
		t.Error("a thought hid that no text fits")
	}
}

func checkMask(t *testing.T, v *Vocabulary, s State) {
	t.Helper()
	mask, err := s.Mask()
	if err != nil {
		t.Fatal(err)
	}
	for id := range int32(v.Size()) {
		if _, err := s.Advance(id); (err == nil) != mask.Has(id) {
			t.Fatalf("token %d: mask %v, state %v", id, mask.Has(id), err)
		}
	}
}
