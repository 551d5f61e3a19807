package tokenizer

import (
	"context"
	"math/rand/v2"
	"strings"
	"testing"
)

// randomText mixes everything that the patterns distinguish: apostrophes, several kinds of space,
// newlines, digits, letters of several scripts, marks, signs, controls.
func randomText(r *rand.Rand) string {
	parts := []string{
		"'", "'s", "'S", "'ſ", "'ll", "'LL", "'re", "'d", "'t", "l", "a", "b", "Z", "é", "e\u0301", "ß", "漢", "字", "ひ", "カ", "ー", "ǅ", "ʰ",
		" ", " ", "  ", "\t", "\n", "\r", "\r\n", "\u00a0", "\u3000", "\u2028", "\v", "0", "12", "345", "²", "½", "Ⅷ", "٣", "!", ".", "-", "_",
		"“", "—", "+", "€", "$", "\u0301", "\u200d", "\u200b", "\x00", "\x7f", "🙂", "❤️", "\U0001f469\u200d\U0001f467", "\ufeff", "\ue000",
	}
	var b strings.Builder
	for range r.IntN(24) {
		b.WriteString(parts[r.IntN(len(parts))])
	}
	return b.String()
}

type ranges []struct {
	lo, hi  int
	matched bool
}

func collect(t *testing.T, m matcher, s string) (out ranges) {
	t.Helper()
	err := m.match(s, searchesOf(context.Background(), len(s)), func(lo, hi int, matched bool) error {
		out = append(out, struct {
			lo, hi  int
			matched bool
		}{lo, hi, matched})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func sameRanges(a, b ranges) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// TestScanners: each hand-written scanner splits exactly like its pattern.
func TestScanners(t *testing.T) {
	all := map[string]scanner{`\w+|[^\w\s]+`: scanWords}
	for p, s := range scanners {
		all[p] = s
	}
	r := rand.New(rand.NewPCG(1, 2))
	for pattern, scan := range all {
		slow, err := compileRegex("pattern", pattern)
		if err != nil {
			t.Fatal(err)
		}
		for range 3000 {
			s := randomText(r)
			if pattern == `\w+|[^\w\s]+` {
				// Word characters in only one of Rust and Oniguruma.
				s = strings.NewReplacer("\u200d", "", "²", "", "½", "").Replace(s)
			}
			if got, want := collect(t, scan, s), collect(t, slow, s); !sameRanges(got, want) {
				t.Fatalf("%s\non %q:\n got %v\nwant %v", pattern, s, got, want)
			}
		}
	}
}

func TestTranslateRegex(t *testing.T) {
	for in, want := range map[string]string{
		`a?+b*`:               `a?+b*`,
		`(?m:a.b)`:            `(?s:a.b)`,
		`(?i)x{,3}`:           `(?i)x{0,3}`,
		`\h\x{41}\x{1F600}`:   `[0-9a-fA-F]\x41😀`,
		`\p{^L}\p{Han}`:       `\P{L}\p{Han}`,
		`[\p{L}&&[^\p{Han}]]`: `[\p{L}-[\p{Han}]]`,
		`[]a\]]`:              `[\]a\]]`,
		`\w`:                  `[` + bareWord + `]`,
	} {
		if got, err := translateRegex(in); err != nil || got != want {
			t.Errorf("%s: got %s, %v; want %s", in, got, err, want)
		}
	}
	for _, in := range []string{`[[:alpha:]]`, `[a&&b]`, `[a&&[^b]c]`, `[a[b]]`, `\Ka`, `\G`, `\X`, `(?s)a`, `(?P<n>a)`, `[a`, `a\`, `\x{110000}`, `a{2}+`, `[\W]`} {
		if got, err := translateRegex(in); err == nil {
			t.Errorf("%s: accepted as %s", in, got)
		}
	}
}

func TestBehaviors(t *testing.T) {
	digits := runeMatch(func(r rune) bool { return r >= '0' && r <= '9' })
	for b, want := range map[behavior]string{
		isolated:           "a|1|2|b|3|c|d",
		removed:            "a|b|c|d",
		mergedWithPrevious: "a1|2|b3|c|d",
		mergedWithNext:     "a|1|2b|3c|d",
		contiguous:         "a|12|b|3|c|d",
	} {
		var got []string
		for _, s := range []string{"a12b3c", "d", ""} {
			if err := b.split(piece{s, true, nil}, digits, func(p piece) error { got = append(got, p.text); return nil }); err != nil {
				t.Fatal(err)
			}
		}
		if g := strings.Join(got, "|"); g != want {
			t.Errorf("%s: got %s, want %s", behaviorNames[b], g, want)
		}
	}
}
