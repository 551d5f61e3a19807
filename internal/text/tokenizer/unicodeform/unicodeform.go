// Package unicodeform has the Unicode normal forms as Hugging Face's tokenizers library makes them.
package unicodeform

import (
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"github.com/shoal-llm/shoal/internal/text/tokenizer/categories"
)

// Forms has the forms by the names of tokenizer.json.
var Forms = map[string]norm.Form{"NFC": norm.NFC, "NFD": norm.NFD, "NFKC": norm.NFKC, "NFKD": norm.NFKD}

// maxMarks is the longest run of marks that package norm handles exactly. It counts 30 after
// decomposition, and a mark decomposes into at most two.
const maxMarks = 8

// Normal returns the Unicode normal form of s (UAX #15).
//
// Package norm produces stream-safe text: it breaks runs of more than 30 non-starters with
// U+034F. The library does not, so such runs ("zalgo" text) use the plain algorithm below.
// The library is older than package norm: it leaves the characters of [categories.IsKept].
func Normal(f norm.Form, s string) string {
	if f != norm.NFC {
		if i := strings.IndexFunc(s, categories.IsKept); i >= 0 {
			_, n := utf8.DecodeRuneInString(s[i:])
			return normal(f, s[:i]) + s[i:i+n] + Normal(f, s[i+n:])
		}
	}
	return normal(f, s)
}

func normal(f norm.Form, s string) string {
	switch {
	case longMarks(f, s):
		return plainForm(f, s)
	case f.IsNormalString(s):
		return s
	}
	return f.String(s)
}

func longMarks(f norm.Form, s string) bool {
	run := 0
	for i := 0; i < len(s); {
		if s[i] < utf8.RuneSelf {
			run = 0
			i++
			continue
		}
		p := f.PropertiesString(s[i:])
		if p.LeadCCC() == 0 {
			run = 0
		} else if run++; run > maxMarks {
			return true
		}
		i += max(1, p.Size())
	}
	return false
}

type ccRune struct {
	r   rune
	ccc uint8
}

// plainForm decomposes each character, orders marks by combining class, and then composes pairs
// (UAX #15, sections 1.2 and 1.3; D117 of the Unicode Standard).
func plainForm(f norm.Form, s string) string {
	decompose, compose := norm.NFD, f == norm.NFC || f == norm.NFKC
	if f == norm.NFKC || f == norm.NFKD {
		decompose = norm.NFKD
	}
	var rs []ccRune
	for _, r := range s {
		for _, d := range decompose.String(string(r)) {
			rs = append(rs, ccRune{d, norm.NFD.PropertiesString(string(d)).CCC()})
		}
	}
	for i := 0; i < len(rs); {
		j := i
		for j < len(rs) && rs[j].ccc != 0 {
			j++
		}
		slices.SortStableFunc(rs[i:j], func(a, b ccRune) int { return int(a.ccc) - int(b.ccc) })
		i = j + 1
	}
	if compose {
		rs = composePairs(rs)
	}
	out := make([]byte, 0, len(s))
	for _, c := range rs {
		out = utf8.AppendRune(out, c.r)
	}
	return string(out)
}

func composePairs(rs []ccRune) []ccRune {
	out := rs[:0]
	starter, last := -1, uint8(0) // index in out; class of the last character kept after it
	for _, c := range rs {
		if starter >= 0 && (last < c.ccc || last == 0 && len(out) == starter+1) {
			if r, ok := composePair(out[starter].r, c.r); ok {
				out[starter].r = r
				continue
			}
		}
		if c.ccc == 0 {
			starter, last = len(out), 0
		} else {
			last = c.ccc
		}
		out = append(out, c)
	}
	return out
}

func composePair(a, b rune) (rune, bool) {
	pair := string(a) + string(b)
	c := norm.NFC.String(pair)
	r, n := utf8.DecodeRuneInString(c)
	return r, n == len(c) && c != pair
}
