package jinja

import (
	"strings"
	"unicode/utf8"

	"github.com/shoal-llm/shoal/internal/text/jinja/python"
)

func init() { // separate from strMethods, which format reads
	for name, m := range map[string]strMethod{
		"center": padder("center", func(n, width int) int { return n/2 + n&width&1 }),
		"ljust":  padder("ljust", func(int, int) int { return 0 }),
		"rjust":  padder("rjust", func(n, _ int) int { return n }),
		"zfill": func(in *interp, s python.Str, a *args) python.Value {
			n := in.wantInt("zfill", a.bind(in, "zfill", "width")[0], 0) - s.Runes()
			at := 0
			if s.Text != "" && (s.Text[0] == '+' || s.Text[0] == '-') {
				at = 1
			}
			return python.JoinStr([]python.Str{s.Slice(0, at), in.fill(n, python.Trusted("0")), s.Slice(at, len(s.Text))}, python.Str{})
		},
		"expandtabs": strExpandTabs,
		"format":     strFormat,
	} {
		strMethods[name] = m
	}
}

// fill repeats a character n times; nothing if n is not positive.
func (in *interp) fill(n int, char python.Str) python.Str {
	n = max(n, 0)
	if n > maxWidth {
		in.Exceed("width of a string", maxWidth)
	}
	in.Charge(4 * n * max(len(char.Text), 1))
	return char.Like(strings.Repeat(char.Text, n))
}

// padder pads a string to the width in its argument. left returns how many of the n missing
// characters go before it.
func padder(name string, left func(n, width int) int) strMethod {
	return func(in *interp, s python.Str, a *args) python.Value {
		p := a.bind(in, name, "width", "fillchar?")
		fill := python.Trusted(" ")
		if given(p[1]) {
			if fill = in.wantStr(name, p[1]); fill.Runes() != 1 {
				in.Fail("The fill character must be exactly one character long")
			}
		}
		width := in.wantInt(name, p[0], 0)
		n := max(width-s.Runes(), 0)
		before := left(n, width)
		return python.JoinStr([]python.Str{in.fill(before, fill), s, in.fill(n-before, fill)}, python.Str{})
	}
}

func strExpandTabs(in *interp, s python.Str, a *args) python.Value {
	size := in.wantInt("expandtabs", a.bind(in, "expandtabs", "tabsize?")[0], 8)
	var b python.Builder
	from, column := 0, 0
	for i, r := range s.Text {
		switch r {
		case '\t':
			b.Add(s.Slice(from, i))
			from = i + 1
			if size > 0 {
				n := size - column%size
				b.Add(s.Slice(i, i+1).Like(in.fill(n, python.Trusted(" ")).Text))
				column += n
			}
		case '\n', '\r':
			column = 0
		default:
			column++
		}
	}
	b.Add(s.Slice(from, len(s.Text)))
	return in.Made(b.Str())
}

// isWord is \w of Python's regular expressions.
func isWord(r rune) bool {
	return r == '_' || r != utf8.RuneError && isAlnum(r)
}
