package jinja

import (
	"net/url"
	"strings"
	"unicode"
)

func filterCenter(in *interp, v Value, a *args) Value {
	width := in.wantInt("center", a.bind(in, "center", "width?")[0], 80)
	return in.pad(in.str(v), width, ' ', padBoth)
}

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
	// Jinja appends a newline first: a trailing newline stays one, and "" is one line.
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

// filterTitle is Jinja's: a word starts after white space, "-" or a bracket.
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

func filterTruncate(in *interp, v Value, a *args) Value {
	p := a.bind(in, "truncate", "length?", "killwords?", "end?", "leeway?")
	switch v.(type) {
	case *List, *Dict, *Undefined: // Python only asks for their length
		if n := filterLength(in, v, &args{}).(int64); n <= int64(in.wantInt("truncate", p[0], 255)) {
			return v
		}
	}
	s, length, leeway := in.wantStr("truncate", v), in.wantInt("truncate", p[0], 255), in.wantInt("truncate", p[3], 5)
	end := Trusted("...")
	if given(p[2]) {
		end = in.wantStr("truncate", p[2])
	}
	if length < end.runes() || leeway < 0 {
		in.fail("truncate: expected length >= %d and leeway >= 0, got %d and %d", end.runes(), length, leeway)
	}
	if s.runes() <= length+leeway {
		return s
	}
	head := s.slice(0, s.offset(length-end.runes()))
	if !optBool(p[1], false) {
		if i := strings.LastIndexByte(head.s, ' '); i >= 0 {
			head = head.slice(0, i)
		}
	}
	return in.made(joinStr([]Str{head, end}, Str{}))
}

func filterURLEncode(in *interp, v Value, a *args) Value {
	a.bind(in, "urlencode")
	quote := func(s Str, space, slash string) Str {
		e := strings.ReplaceAll(url.QueryEscape(s.s), "+", space)
		return s.like(strings.ReplaceAll(e, "%2F", slash))
	}
	if d, ok := v.(*Dict); ok {
		var parts []Str
		for _, e := range d.entries {
			parts = append(parts, joinStr([]Str{quote(in.str(e.key), "+", "%2F"), quote(in.str(e.value), "+", "%2F")}, Trusted("=")))
		}
		return in.made(joinStr(parts, Trusted("&")))
	}
	return in.made(quote(in.str(v), "%20", "/"))
}

func filterWordcount(in *interp, v Value, a *args) Value {
	a.bind(in, "wordcount")
	n, inWord := int64(0), false
	for _, r := range in.str(v).s {
		w := r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r)
		if w && !inWord {
			n++
		}
		inWord = w
	}
	return n
}
