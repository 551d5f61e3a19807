package jinja

import "strings"

type padSide uint8

const (
	padLeft padSide = iota
	padRight
	padBoth
)

// pad fills s up to width code points.
func (in *interp) pad(s Str, width int, fill rune, side padSide) Str {
	n := width - s.runes()
	if n <= 0 {
		return s
	}
	in.charge(4*n + len(s.s))
	left := 0
	switch side {
	case padLeft:
		left = n
	case padBoth: // Python's str.center puts the odd one left when the width is odd
		left = n/2 + n&width&1
	}
	var b builder
	b.raw(strings.Repeat(string(fill), left))
	b.add(s)
	b.raw(strings.Repeat(string(fill), n-left))
	return b.str()
}

func padder(name string, side padSide) strMethod {
	return func(in *interp, s Str, a *args) Value {
		p := a.bind(in, name, "width", "fillchar?")
		fill := ' '
		if given(p[1]) {
			f := []rune(in.wantStr(name, p[1]).s)
			if len(f) != 1 {
				in.fail("the fill character must be exactly one character long")
			}
			fill = f[0]
		}
		return in.pad(s, in.wantInt(name, p[0], 0), fill, side)
	}
}

func strZfill(in *interp, s Str, a *args) Value {
	width := in.wantInt("zfill", a.bind(in, "zfill", "width")[0], 0)
	if strings.HasPrefix(s.s, "-") || strings.HasPrefix(s.s, "+") {
		return joinStr([]Str{s.slice(0, 1), in.pad(s.slice(1, len(s.s)), width-1, '0', padLeft)}, Str{})
	}
	return in.pad(s, width, '0', padLeft)
}
