package jinja

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

type strMethod func(in *interp, s Str, a *args) Value

// strMethods are the methods of Python's str.
var strMethods = map[string]strMethod{
	"capitalize":   func(in *interp, s Str, a *args) Value { a.bind(in, "capitalize"); return in.capitalize(s) },
	"count":        strCount,
	"endswith":     affix("endswith", strings.HasSuffix),
	"find":         finder("find", strings.Index, false),
	"index":        finder("index", strings.Index, true),
	"isalnum":      class("isalnum", isAlnum),
	"isalpha":      class("isalpha", unicode.IsLetter),
	"isascii":      func(in *interp, s Str, a *args) Value { return len(s.s) == s.runes() && utf8.ValidString(s.s) },
	"isdecimal":    class("isdecimal", unicode.IsDigit),
	"isdigit":      class("isdigit", unicode.IsDigit),
	"islower":      func(in *interp, s Str, a *args) Value { return isCased(s.s, false) },
	"isnumeric":    class("isnumeric", unicode.IsNumber),
	"isspace":      class("isspace", isSpace),
	"isupper":      func(in *interp, s Str, a *args) Value { return isCased(s.s, true) },
	"join":         strJoin,
	"lower":        simple("lower", lowerRune),
	"lstrip":       stripper("lstrip", true, false),
	"partition":    partition("partition", strings.Index, false),
	"removeprefix": strRemovePrefix,
	"removesuffix": strRemoveSuffix,
	"replace": func(in *interp, s Str, a *args) Value {
		p := a.bind(in, "replace", "old", "new", "count?")
		return in.replace(s, in.wantStr("replace", p[0]), in.wantStr("replace", p[1]), in.wantInt("replace", p[2], -1))
	},
	"rfind":      finder("rfind", strings.LastIndex, false),
	"rindex":     finder("rindex", strings.LastIndex, true),
	"rpartition": partition("rpartition", strings.LastIndex, true),
	"rsplit":     func(in *interp, s Str, a *args) Value { return in.split("rsplit", s, a, true) },
	"rstrip":     stripper("rstrip", false, true),
	"split":      func(in *interp, s Str, a *args) Value { return in.split("split", s, a, false) },
	"splitlines": func(in *interp, s Str, a *args) Value {
		keep := optBool(a.bind(in, "splitlines", "keepends?")[0], false)
		in.charge(40 * strings.Count(s.s, "\n"))
		return in.strList(splitLines(s, keep))
	},
	"startswith": affix("startswith", strings.HasPrefix),
	"strip":      stripper("strip", true, true),
	"swapcase": simple("swapcase", func(r rune) string {
		if unicode.IsUpper(r) {
			return lowerRune(r)
		}
		return upperRune(r)
	}),
	"title": func(in *interp, s Str, a *args) Value { a.bind(in, "title"); return in.titleCase(s) },
	"upper": simple("upper", upperRune),
}

func isAlnum(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) }

func (in *interp) capitalize(s Str) Str {
	first := true
	return in.mapRunes(s, func(r rune) string {
		if first {
			first = false
			return titleRune(r)
		}
		return lowerRune(r)
	})
}

func (in *interp) titleCase(s Str) Str {
	inWord := false
	return in.mapRunes(s, func(r rune) string {
		cased := unicode.IsUpper(r) || unicode.IsLower(r) || unicode.IsTitle(r)
		start := cased && !inWord
		inWord = cased
		if start {
			return titleRune(r)
		}
		return lowerRune(r)
	})
}

func simple(name string, f func(rune) string) strMethod {
	return func(in *interp, s Str, a *args) Value {
		a.bind(in, name)
		return in.mapRunes(s, f)
	}
}

func class(name string, f func(rune) bool) strMethod {
	return func(in *interp, s Str, a *args) Value {
		a.bind(in, name)
		return s.s != "" && strings.IndexFunc(s.s, func(r rune) bool { return !f(r) }) < 0
	}
}

func stripper(name string, left, right bool) strMethod {
	return func(in *interp, s Str, a *args) Value {
		return s.strip(in, orNone(a.bind(in, name, "chars?")[0]), left, right)
	}
}

func (t Str) strip(in *interp, chars Value, left, right bool) Value {
	drop := isSpace
	if chars != nil {
		set := in.wantStr("strip", chars).s
		drop = func(r rune) bool { return strings.ContainsRune(set, r) }
		if len(set) > 16 {
			in.charge(40 * len(set))
			has := make(map[rune]bool)
			for _, r := range set {
				has[r] = true
			}
			drop = func(r rune) bool { return has[r] }
		}
	}
	if left {
		t = t.trimLeft(drop)
	}
	if right {
		t = t.trimRight(drop)
	}
	return t
}

func affix(name string, has func(s, x string) bool) strMethod {
	return func(in *interp, s Str, a *args) Value {
		p := a.bind(in, name, "affix", "start?", "end?")
		s, _ = in.window(s, p[1], p[2])
		if l, ok := p[0].(*List); ok && l.kind == kindTuple {
			for _, x := range l.items {
				if has(s.s, in.wantStr(name, x).s) {
					return true
				}
			}
			return false
		}
		return has(s.s, in.wantStr(name, p[0]).s)
	}
}

// window returns s[start:end] and its start in code points.
func (in *interp) window(s Str, start, end Value) (Str, int) {
	start, end = orNone(start), orNone(end)
	if start == nil && end == nil {
		return s, 0
	}
	n := s.runes()
	clamp := func(v Value, unset int) int {
		if v == nil {
			return unset
		}
		i := in.wantInt("a string method", v, 0)
		if i < 0 {
			i += n
		}
		return min(max(i, 0), n)
	}
	lo, hi := clamp(start, 0), clamp(end, n)
	return s.slice(s.offset(lo), s.offset(max(lo, hi))), lo
}

func finder(name string, find func(s, x string) int, must bool) strMethod {
	return func(in *interp, s Str, a *args) Value {
		p := a.bind(in, name, "sub", "start?", "end?")
		w, lo := in.window(s, p[1], p[2])
		i := find(w.s, in.wantStr(name, p[0]).s)
		if i < 0 {
			if must {
				in.fail("substring not found")
			}
			return int64(-1)
		}
		return int64(lo + w.slice(0, i).runes())
	}
}

func strCount(in *interp, s Str, a *args) Value {
	p := a.bind(in, "count", "sub", "start?", "end?")
	w, _ := in.window(s, p[1], p[2])
	return int64(strings.Count(w.s, in.wantStr("count", p[0]).s))
}

func strJoin(in *interp, s Str, a *args) Value {
	var parts []Str
	for i, x := range in.iterate(a.bind(in, "join", "iterable")[0]) {
		t, ok := x.(Str)
		if !ok {
			in.fail("sequence item %d: expected str instance, %s found", i, typeName(x))
		}
		in.charge(len(s.s) + len(t.s))
		parts = append(parts, t)
	}
	return joinStr(parts, s)
}

func strRemovePrefix(in *interp, s Str, a *args) Value {
	if x := in.wantStr("removeprefix", a.bind(in, "removeprefix", "prefix")[0]); strings.HasPrefix(s.s, x.s) {
		return s.slice(len(x.s), len(s.s))
	}
	return s
}

func strRemoveSuffix(in *interp, s Str, a *args) Value {
	if x := in.wantStr("removesuffix", a.bind(in, "removesuffix", "suffix")[0]); strings.HasSuffix(s.s, x.s) {
		return s.slice(0, len(s.s)-len(x.s))
	}
	return s
}

func partition(name string, find func(s, x string) int, last bool) strMethod {
	return func(in *interp, s Str, a *args) Value {
		sep := in.wantStr(name, a.bind(in, name, "sep")[0])
		if sep.s == "" {
			in.fail("empty separator")
		}
		i := find(s.s, sep.s)
		switch {
		case i >= 0:
			return tuple(s.slice(0, i), sep, s.slice(i+len(sep.s), len(s.s)))
		case last:
			return tuple(Str{}, Str{}, s)
		}
		return tuple(s, Str{}, Str{})
	}
}

func (in *interp) replace(s, old, new Str, count int) Str {
	if count < 0 || count > len(s.s)+1 {
		count = len(s.s) + 1
	}
	var b builder
	from := 0
	if old.s == "" { // between all code points
		in.charge(40 * len(s.s))
		chars := s.chars()
		for i, c := range append(chars, Str{}) {
			if i < count {
				in.charge(len(new.s) + 16*len(new.lit))
				b.add(new)
			}
			b.add(c)
		}
		return in.made(b.str())
	}
	for ; count > 0; count-- {
		i := strings.Index(s.s[from:], old.s)
		if i < 0 {
			break
		}
		in.charge(len(new.s) + 16*len(new.lit) + i)
		b.add(s.slice(from, from+i))
		b.add(new)
		from += i + len(old.s)
	}
	b.add(s.slice(from, len(s.s)))
	return in.made(b.str())
}

func (in *interp) strList(parts []Str) *List {
	in.charge(40 * len(parts))
	l := NewList()
	for _, p := range parts {
		l.items = append(l.items, p)
	}
	return l
}

func (in *interp) split(name string, s Str, a *args, fromRight bool) Value {
	p := a.bind(in, name, "sep?", "maxsplit?")
	limit := in.wantInt(name, p[1], -1)
	if limit < 0 {
		limit = len(s.s) + 1
	}
	sep := orNone(p[0])
	if sep == nil {
		return in.strList(splitSpace(s, limit, fromRight))
	}
	x := in.wantStr(name, sep).s
	if x == "" {
		in.fail("empty separator")
	}
	in.charge(64 * min(strings.Count(s.s, x), limit))
	if fromRight {
		var parts []Str
		end := len(s.s)
		for ; limit > 0; limit-- {
			i := strings.LastIndex(s.s[:end], x)
			if i < 0 {
				break
			}
			parts = append(parts, s.slice(i+len(x), end))
			end = i
		}
		parts = append(parts, s.slice(0, end))
		slices.Reverse(parts)
		return in.strList(parts)
	}
	var parts []Str
	from := 0
	for ; limit > 0; limit-- {
		i := strings.Index(s.s[from:], x)
		if i < 0 {
			break
		}
		parts = append(parts, s.slice(from, from+i))
		from += i + len(x)
	}
	return in.strList(append(parts, s.slice(from, len(s.s))))
}

func splitSpace(s Str, limit int, fromRight bool) []Str {
	var parts []Str
	if fromRight {
		end := len(strings.TrimRightFunc(s.s, isSpace))
		for ; end > 0; end = len(strings.TrimRightFunc(s.s[:end], isSpace)) {
			i := strings.LastIndexFunc(s.s[:end], isSpace)
			if i < 0 || limit == 0 {
				parts = append(parts, s.slice(0, end))
				break
			}
			_, n := utf8.DecodeRuneInString(s.s[i:])
			parts = append(parts, s.slice(i+n, end))
			end = i
			limit--
		}
		slices.Reverse(parts)
		return parts
	}
	skip := func(at int) int { return len(s.s) - len(strings.TrimLeftFunc(s.s[at:], isSpace)) }
	for at := skip(0); at < len(s.s); at = skip(at) {
		i := strings.IndexFunc(s.s[at:], isSpace)
		if i < 0 || limit == 0 {
			return append(parts, s.slice(at, len(s.s)))
		}
		parts = append(parts, s.slice(at, at+i))
		at += i
		limit--
	}
	return parts
}

// splitLines splits at Python's line boundaries; a final boundary ends the last line.
func splitLines(s Str, keep bool) []Str {
	var parts []Str
	from := 0
	for i := 0; i < len(s.s); {
		r, n := utf8.DecodeRuneInString(s.s[i:])
		switch r {
		case '\n', '\r', '\v', '\f', 0x1c, 0x1d, 0x1e, 0x85, 0x2028, 0x2029:
			if r == '\r' && strings.HasPrefix(s.s[i+1:], "\n") {
				n = 2
			}
			end := i
			if keep {
				end = i + n
			}
			parts = append(parts, s.slice(from, end))
			from = i + n
		}
		i += n
	}
	if from < len(s.s) {
		parts = append(parts, s.slice(from, len(s.s)))
	}
	return parts
}
