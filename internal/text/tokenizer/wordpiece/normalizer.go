package wordpiece

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"github.com/shoal-llm/shoal/internal/text/tokenizer/categories"
	"github.com/shoal-llm/shoal/internal/text/tokenizer/unicodeform"
)

// Normalizer is BertNormalizer. Its steps have the order of the fields.
type Normalizer struct {
	Clean   bool // removes control characters and turns each white space into a space
	Chinese bool // puts spaces around Chinese characters
	Accents bool // decomposes characters and removes non-spacing marks
	Lower   bool
}

// Apply returns the normalized text.
func (n Normalizer) Apply(s string) string {
	if n.Clean {
		s = strings.Map(clean, s)
	}
	if n.Chinese {
		s = spaceChinese(s)
	}
	if n.Accents {
		s = strings.Map(func(r rune) rune {
			if categories.IsNonspacingMark(r) {
				return -1
			}
			return r
		}, unicodeform.Normal(norm.NFD, s))
	}
	if n.Lower {
		s = categories.Lower(s)
	}
	return s
}

func clean(r rune) rune {
	switch {
	case categories.IsControl(r):
		return -1
	case unicode.IsSpace(r):
		return ' '
	}
	return r
}

func spaceChinese(s string) string {
	if strings.IndexFunc(s, isChinese) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if isChinese(r) {
			b.WriteByte(' ')
			b.WriteRune(r)
			b.WriteByte(' ')
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

// isChinese has the ideograph blocks that BERT lists. Hiragana, Katakana and Hangul are not in them.
func isChinese(r rune) bool {
	if r < 0x3400 || r == utf8.RuneError {
		return false
	}
	for _, block := range chinese {
		if r >= block[0] && r <= block[1] {
			return true
		}
	}
	return false
}

var chinese = [][2]rune{{0x4E00, 0x9FFF}, {0x3400, 0x4DBF}, {0x20000, 0x2A6DF}, {0x2A700, 0x2B81F},
	{0x2B920, 0x2CEAF}, {0xF900, 0xFAFF}, {0x2F800, 0x2FA1F}}
