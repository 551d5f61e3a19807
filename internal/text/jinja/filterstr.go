package jinja

import (
	"strings"
)

func filterReplace(in *interp, v Value, a *args) Value {
	p := a.bind(in, "replace", "old", "new", "count?")
	count := -1
	if given(p[2]) && p[2] != nil {
		count = in.wantInt("replace", p[2], -1)
	}
	return in.replace(in.str(v), in.str(p[0]), in.str(p[1]), count)
}

func filterTrim(in *interp, v Value, a *args) Value {
	chars := orNone(a.bind(in, "trim", "chars?")[0])
	return in.str(v).strip(in, chars, true, true)
}

func filterFormat(in *interp, v Value, a *args) Value {
	if len(a.pos) > 0 && len(a.named) > 0 {
		in.fail("can't handle positional and keyword arguments at the same time")
	}
	if len(a.named) > 0 {
		d := NewDict()
		for _, n := range a.named {
			d.Set(n.name, n.value)
		}
		return in.percent(in.str(v), d)
	}
	return in.percent(in.str(v), tuple(a.pos...))
}

func filterIndent(in *interp, v Value, a *args) Value {
	p := a.bind(in, "indent", "width?", "first?", "blank?")
	pad, ok := p[0].(Str)
	if !ok {
		n := max(in.wantInt("indent", p[0], 4), 0)
		in.charge(n)
		pad = Trusted(strings.Repeat(" ", n))
	}
	s, blank := in.wantStr("indent", v), optBool(p[2], false)
	var b builder
	if optBool(p[1], false) {
		b.add(pad)
	}
	// Jinja first appends a newline: a trailing newline is kept, and "" has one line.
	in.charge(len(s.s) + 64)
	lines := splitLines(joinStr([]Str{s, Trusted("\n")}, Str{}), false)
	for i, l := range lines {
		if i > 0 {
			b.raw("\n")
			if blank || l.s != "" {
				in.charge(len(pad.s))
				b.add(pad)
			}
		}
		b.add(l)
	}
	return in.made(b.str())
}

// filterTitle implements Jinja's title: a word starts after white space, "-" or a bracket.
func filterTitle(in *interp, v Value, a *args) Value {
	a.bind(in, "title")
	start := true
	return in.mapRunes(in.str(v), func(r rune) string {
		up := start
		start = isSpace(r) || strings.ContainsRune("-({[<", r)
		if up {
			return upperRune(r)
		}
		return lowerRune(r)
	})
}
