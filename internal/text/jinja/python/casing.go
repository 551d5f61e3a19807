package python

import (
	"sync"
	"unicode"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

// severalRunes covers the code points whose upper or title case has several code points.
var severalRunes = &unicode.RangeTable{R16: []unicode.Range16{
	{0xdf, 0xdf, 1}, {0x149, 0x149, 1}, {0x1f0, 0x1f0, 1}, {0x390, 0x390, 1}, {0x3b0, 0x3b0, 1}, {0x587, 0x587, 1},
	{0x1e96, 0x1e9a, 1}, {0x1f50, 0x1ffc, 1}, {0xfb00, 0xfb17, 1},
}, LatinOffset: 1}

// fullCase has the upper and title case of the code points in severalRunes, from Unicode's
// SpecialCasing without language-specific rules.
var fullCase = sync.OnceValue(func() map[rune][2]string {
	out := map[rune][2]string{}
	upper, title := cases.Upper(language.Und), cases.Title(language.Und)
	for _, part := range severalRunes.R16 {
		for r := rune(part.Lo); r <= rune(part.Hi); r++ {
			out[r] = [2]string{upper.String(string(r)), title.String(string(r))}
		}
	}
	return out
})

// UpperRune returns str.upper of one code point. TitleRune and LowerRune do so for title and lower.
func UpperRune(r rune) string {
	if unicode.Is(severalRunes, r) {
		return fullCase()[r][0]
	}
	return string(unicode.ToUpper(r))
}

func TitleRune(r rune) string {
	if unicode.Is(severalRunes, r) {
		return fullCase()[r][1]
	}
	return string(unicode.ToTitle(r))
}

func LowerRune(r rune) string {
	if r == 'İ' {
		return "i̇"
	}
	return string(unicode.ToLower(r))
}
