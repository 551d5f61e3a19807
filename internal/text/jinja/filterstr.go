package jinja

import (
	"strings"

	"github.com/shoal-llm/shoal/internal/text/jinja/python"
)

func filterReplace(in *interp, v python.Value, a *args) python.Value {
	p := a.bind(in, "replace", "old", "new", "count?")
	count := -1
	if given(p[2]) && p[2] != nil {
		count = in.wantInt("replace", p[2], -1)
	}
	return in.replace(in.Str(v), in.Str(p[0]), in.Str(p[1]), count)
}

func filterTrim(in *interp, v python.Value, a *args) python.Value {
	chars := orNone(a.bind(in, "trim", "chars?")[0])
	return in.strip(in.Str(v), chars, true, true)
}

func filterFormat(in *interp, v python.Value, a *args) python.Value {
	if len(a.pos) > 0 && len(a.named) > 0 {
		in.Fail("can't handle positional and keyword arguments at the same time")
	}
	if len(a.named) > 0 {
		d := python.NewDict()
		for _, n := range a.named {
			d.Set(n.name, n.value)
		}
		return in.percent(in.Str(v), d)
	}
	return in.percent(in.Str(v), python.Tuple(a.pos...))
}

func filterIndent(in *interp, v python.Value, a *args) python.Value {
	p := a.bind(in, "indent", "width?", "first?", "blank?")
	pad, ok := p[0].(python.Str)
	if !ok {
		n := max(in.wantInt("indent", p[0], 4), 0)
		in.Charge(n)
		pad = python.Trusted(strings.Repeat(" ", n))
	}
	s, blank := in.wantStr("indent", v), optBool(p[2])
	var b python.Builder
	if optBool(p[1]) {
		b.Add(pad)
	}
	// Jinja first appends a newline: a trailing newline is kept, and "" has one line.
	in.Charge(len(s.Text) + 64)
	lines := splitLines(python.JoinStr([]python.Str{s, python.Trusted("\n")}, python.Str{}), false)
	for i, l := range lines {
		if i > 0 {
			b.Raw("\n")
			if blank || l.Text != "" {
				in.Charge(len(pad.Text))
				b.Add(pad)
			}
		}
		b.Add(l)
	}
	return in.Made(b.Str())
}

// filterTitle implements Jinja's title: a word starts after white space, "-" or a bracket.
func filterTitle(in *interp, v python.Value, a *args) python.Value {
	a.bind(in, "title")
	start := true
	return in.MapRunes(in.Str(v), func(r rune) string {
		up := start
		start = python.IsSpace(r) || strings.ContainsRune("-({[<", r)
		if up {
			return python.UpperRune(r)
		}
		return python.LowerRune(r)
	})
}
