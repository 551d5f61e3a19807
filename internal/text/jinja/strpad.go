package jinja

import (
	"strings"
	"unicode/utf8"
)

func init() { // separate from strMethods, which format reads
	for name, m := range map[string]strMethod{
		"center": padder("center", func(n, width int) int { return n/2 + n&width&1 }),
		"ljust":  padder("ljust", func(int, int) int { return 0 }),
		"rjust":  padder("rjust", func(n, _ int) int { return n }),
		"zfill": func(in *interp, s Str, a *args) Value {
			n := in.wantInt("zfill", a.bind(in, "zfill", "width")[0], 0) - s.runes()
			at := 0
			if s.s != "" && (s.s[0] == '+' || s.s[0] == '-') {
				at = 1
			}
			return joinStr([]Str{s.slice(0, at), in.fill(n, Trusted("0")), s.slice(at, len(s.s))}, Str{})
		},
		"expandtabs": strExpandTabs,
		"format":     strFormat,
	} {
		strMethods[name] = m
	}
}

// fill repeats a character n times; nothing if n is not positive.
func (in *interp) fill(n int, char Str) Str {
	n = max(n, 0)
	if n > maxWidth {
		in.limit("width of a string", maxWidth)
	}
	in.charge(4 * n * max(len(char.s), 1))
	return char.like(strings.Repeat(char.s, n))
}

// padder pads a string to the width in its argument. left returns how many of the n missing
// characters go before it.
func padder(name string, left func(n, width int) int) strMethod {
	return func(in *interp, s Str, a *args) Value {
		p := a.bind(in, name, "width", "fillchar?")
		fill := Trusted(" ")
		if given(p[1]) {
			if fill = in.wantStr(name, p[1]); fill.runes() != 1 {
				in.fail("The fill character must be exactly one character long")
			}
		}
		width := in.wantInt(name, p[0], 0)
		n := max(width-s.runes(), 0)
		before := left(n, width)
		return joinStr([]Str{in.fill(before, fill), s, in.fill(n-before, fill)}, Str{})
	}
}

func strExpandTabs(in *interp, s Str, a *args) Value {
	size := in.wantInt("expandtabs", a.bind(in, "expandtabs", "tabsize?")[0], 8)
	var b builder
	from, column := 0, 0
	for i, r := range s.s {
		switch r {
		case '\t':
			b.add(s.slice(from, i))
			from = i + 1
			if size > 0 {
				n := size - column%size
				b.add(s.slice(i, i+1).like(in.fill(n, Trusted(" ")).s))
				column += n
			}
		case '\n', '\r':
			column = 0
		default:
			column++
		}
	}
	b.add(s.slice(from, len(s.s)))
	return in.made(b.str())
}

// isWord is \w of Python's regular expressions.
func isWord(r rune) bool {
	return r == '_' || r != utf8.RuneError && isAlnum(r)
}
