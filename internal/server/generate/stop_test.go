package generate

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// naiveStop walks the whole text byte by byte: the slow twin of stopper.
func naiveStop(text string, stops []string) (out, hit string) {
	for end := 1; end <= len(text); end++ {
		for _, s := range stops {
			if strings.HasSuffix(text[:end], s) && len(s) > len(hit) {
				hit = s
			}
		}
		if hit != "" {
			return text[:end-len(hit)], hit
		}
	}
	return text, ""
}

func TestStopperEqualsItsTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[ab日]{1,5}`)
		stops := rapid.SliceOfN(word, 0, 4).Draw(t, "stops")
		pieces := rapid.SliceOfN(rapid.StringMatching(`[abc日]{0,6}`), 0, 10).Draw(t, "pieces")
		s := stopper{stops: stops}
		var out, hit string
		for _, p := range pieces {
			var o string
			if o, hit = s.push(p); true {
				out += o
			}
			if hit != "" {
				break
			}
			// no text is shown that a stop string later removes
			if whole, _ := naiveStop(strings.Join(pieces, ""), stops); !strings.HasPrefix(whole, out) {
				t.Fatalf("showed %q, the answer is %q", out, whole)
			}
		}
		if hit == "" {
			out += s.flush()
		}
		wantOut, wantHit := naiveStop(strings.Join(pieces, ""), stops)
		if out != wantOut || hit != wantHit {
			t.Fatalf("got %q, %q; want %q, %q", out, hit, wantOut, wantHit)
		}
	})
}

func TestStopperHoldsNoMoreThanItMust(t *testing.T) {
	s := stopper{stops: []string{"</end>"}}
	for _, step := range []struct{ in, out string }{{"a<", "a"}, {"b", "<b"}, {"</", ""}, {"en", ""}, {"e", "</ene"}} {
		if out, _ := s.push(step.in); out != step.out {
			t.Errorf("push(%q) shows %q, want %q", step.in, out, step.out)
		}
	}
}
