package unicodeform

import (
	"testing"

	"golang.org/x/text/unicode/norm"
	"pgregory.net/rapid"
)

// TestNormalForms: the plain algorithm agrees with package norm where that is exact.
func TestNormalForms(t *testing.T) {
	alphabet := []rune("aeouAEOUsﬁ①가각ᄒ\u1161\u11abéộẛ\u0301\u0323\u0302\u0307\u0308\u031b\u0344\u0f71\u0f72\u3099かﾊﾞÅΩ\U0001d15e\u0958क़")
	forms := []norm.Form{norm.NFC, norm.NFD, norm.NFKC, norm.NFKD}
	rapid.Check(t, func(t *rapid.T) {
		s := string(rapid.SliceOfN(rapid.SampledFrom(alphabet), 0, 10).Draw(t, "runes"))
		f := rapid.SampledFrom(forms).Draw(t, "form")
		if got, want := plainForm(f, s), f.String(s); got != want {
			t.Fatalf("form %d of %+q: %+q, want %+q", f, s, got, want)
		}
	})
}
