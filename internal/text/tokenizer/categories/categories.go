// Package categories has the classes of characters that Hugging Face's tokenizers library uses.
// Its tables are of several Unicode versions, older than those of package unicode. With newer ones
// a character could get other ids than in training.
//
// train/tokenizer_categories.py writes tables.txt from the results of the library.
package categories

import (
	_ "embed"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"unicode"
)

//go:embed tables.txt
var text string

var tables = sync.OnceValue(func() map[string]*unicode.RangeTable {
	out := map[string]*unicode.RangeTable{}
	for line := range strings.Lines(text) {
		if name, ranges, _ := strings.Cut(strings.TrimSpace(line), " "); name != "lower" {
			out[name] = parse(ranges)
		}
	}
	return out
})

// parse reads ascending ranges of hexadecimal code points, "21-2f 3a".
func parse(ranges string) *unicode.RangeTable {
	t := &unicode.RangeTable{}
	for _, f := range strings.Fields(ranges) {
		a, b, both := strings.Cut(f, "-")
		if !both {
			b = a
		}
		lo, hi := hex(a), hex(b)
		if hi < 1<<16 {
			t.R16 = append(t.R16, unicode.Range16{Lo: uint16(lo), Hi: uint16(hi), Stride: 1})
			continue
		}
		t.R32 = append(t.R32, unicode.Range32{Lo: uint32(lo), Hi: uint32(hi), Stride: 1})
	}
	return t
}

func hex(s string) rune {
	v, err := strconv.ParseUint(s, 16, 21)
	if err != nil {
		panic(fmt.Sprintf("categories: tables.txt has the code point %q", s))
	}
	return rune(v)
}

// class returns the test of one line of tables.txt.
func class(name string) func(rune) bool {
	table := sync.OnceValue(func() *unicode.RangeTable { return tables()[name] })
	return func(r rune) bool { return unicode.Is(table(), r) }
}

var (
	// IsPunctuation: the pre-tokenizers Punctuation and BertPreTokenizer isolate the character.
	IsPunctuation = class("punctuation")
	// IsNonspacingMark: BertNormalizer removes the character with strip_accents.
	IsNonspacingMark = class("nonspacing")
	// IsMark: StripAccents removes the character.
	IsMark = class("marks")
	// IsControl: BertNormalizer removes the character with clean_text.
	IsControl = class("control")
	// IsNmtRemoved: Nmt removes the character.
	IsNmtRemoved = class("nmt-removed")
	// IsNmtSpace: Nmt turns the character into a space.
	IsNmtSpace = class("nmt-space")
	// IsKept: NFD, NFKC and NFKD leave the character, which has a decomposition in newer versions.
	IsKept = class("kept")
)

// lower has the lower case of characters that package unicode does not have yet.
var lower = sync.OnceValue(func() map[rune]rune {
	out := map[rune]rune{}
	for line := range strings.Lines(text) {
		name, pairs, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name != "lower" {
			continue
		}
		for _, f := range strings.Fields(pairs) {
			a, b, _ := strings.Cut(f, "-")
			out[hex(a)] = hex(b)
		}
	}
	return out
})

// Lower maps each character to lower case without context: a final capital sigma becomes a plain
// sigma.
func Lower(s string) string {
	if strings.ContainsRune(s, 'İ') { // the only one whose lower case has two characters
		s = strings.ReplaceAll(s, "İ", "i\u0307")
	}
	newer := lower()
	return strings.Map(func(r rune) rune {
		if r < unicode.MaxLatin1 {
			return unicode.ToLower(r)
		}
		if l, ok := newer[r]; ok {
			return l
		}
		return unicode.ToLower(r)
	}, s)
}
