package jinja

import (
	"testing"
	"unicode"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"

	"github.com/shoal-llm/shoal/internal/text/jinja/python"
)

// One code point may become several, as in Python. Python gave the expected counts.
func TestCasing(t *testing.T) {
	for source, want := range map[string]string{
		`{{ 'ŉ'|upper }}`: "ʼN", `{{ 'ﬁx'|upper }}`: "FIX", `{{ 'ﬁx'.capitalize() }}`: "Fix", `{{ 'ßa ßb'.title() }}`: "Ssa Ssb", `{{ 'ᾳ'.upper() }}`: "ΑΙ", `{{ 'ᾳ'.title() }}`: "ᾼ", `{{ 'ǆ'.title() }}`: "ǅ",
	} {
		tmpl, err := Parse(source)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := tmpl.Render(python.NewDict(), Options{}); err != nil || got.String() != want {
			t.Errorf("%s: %q, %v, want %q", source, got.String(), err, want)
		}
	}
	upper, title, several := cases.Upper(language.Und), cases.Title(language.Und), [2]int{}
	for r := rune(0); r < 0x20000; r++ {
		if r >= 0xd800 && r < 0xe000 || !unicode.IsLetter(r) && !unicode.IsMark(r) {
			continue
		}
		for i, got := range []string{python.UpperRune(r), python.TitleRune(r)} {
			if want := []cases.Caser{upper, title}[i].String(string(r)); got != want {
				t.Errorf("%q becomes %q, want %q", r, got, want)
			} else if len([]rune(want)) > 1 {
				several[i]++
			}
		}
	}
	if several != [2]int{102, 48} {
		t.Errorf("%d code points become several", several)
	}
}
