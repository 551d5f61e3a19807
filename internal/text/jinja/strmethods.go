package jinja

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/shoal-llm/shoal/internal/text/jinja/python"
)

type strMethod func(in *interp, s python.Str, a *args) python.Value

// strMethods are the methods of Python's str.
var strMethods = map[string]strMethod{
	"capitalize": func(in *interp, s python.Str, a *args) python.Value {
		a.bind(in, "capitalize")
		return in.capitalize(s)
	},
	"count":    strCount,
	"endswith": affix("endswith", strings.HasSuffix),
	"find":     finder("find", strings.Index, false),
	"index":    finder("index", strings.Index, true),
	"isalnum":  class("isalnum", isAlnum),
	"isalpha":  class("isalpha", unicode.IsLetter),
	"isascii": func(in *interp, s python.Str, a *args) python.Value {
		return len(s.Text) == s.Runes() && utf8.ValidString(s.Text)
	},
	"isdecimal":    class("isdecimal", unicode.IsDigit),
	"isdigit":      class("isdigit", unicode.IsDigit),
	"islower":      func(in *interp, s python.Str, a *args) python.Value { return isCased(s.Text, false) },
	"isnumeric":    class("isnumeric", unicode.IsNumber),
	"isspace":      class("isspace", python.IsSpace),
	"isupper":      func(in *interp, s python.Str, a *args) python.Value { return isCased(s.Text, true) },
	"join":         strJoin,
	"lower":        simple("lower", python.LowerRune),
	"lstrip":       stripper("lstrip", true, false),
	"partition":    partition("partition", strings.Index, false),
	"removeprefix": strRemovePrefix,
	"removesuffix": strRemoveSuffix,
	"replace": func(in *interp, s python.Str, a *args) python.Value {
		p := a.bind(in, "replace", "old", "new", "count?")
		return in.replace(s, in.wantStr("replace", p[0]), in.wantStr("replace", p[1]), in.wantInt("replace", p[2], -1))
	},
	"rfind":      finder("rfind", strings.LastIndex, false),
	"rindex":     finder("rindex", strings.LastIndex, true),
	"rpartition": partition("rpartition", strings.LastIndex, true),
	"rsplit":     func(in *interp, s python.Str, a *args) python.Value { return in.split("rsplit", s, a, true) },
	"rstrip":     stripper("rstrip", false, true),
	"split":      func(in *interp, s python.Str, a *args) python.Value { return in.split("split", s, a, false) },
	"splitlines": func(in *interp, s python.Str, a *args) python.Value {
		keep := optBool(a.bind(in, "splitlines", "keepends?")[0])
		in.Charge(40 * strings.Count(s.Text, "\n"))
		return in.strList(splitLines(s, keep))
	},
	"startswith": affix("startswith", strings.HasPrefix),
	"strip":      stripper("strip", true, true),
	"swapcase": simple("swapcase", func(r rune) string {
		if unicode.IsUpper(r) {
			return python.LowerRune(r)
		}
		return python.UpperRune(r)
	}),
	"title": func(in *interp, s python.Str, a *args) python.Value { a.bind(in, "title"); return in.titleCase(s) },
	"upper": simple("upper", python.UpperRune),
}

func isAlnum(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) }

func (in *interp) capitalize(s python.Str) python.Str {
	first := true
	return in.MapRunes(s, func(r rune) string {
		if first {
			first = false
			return python.TitleRune(r)
		}
		return python.LowerRune(r)
	})
}

func (in *interp) titleCase(s python.Str) python.Str {
	inWord := false
	return in.MapRunes(s, func(r rune) string {
		cased := unicode.IsUpper(r) || unicode.IsLower(r) || unicode.IsTitle(r)
		start := cased && !inWord
		inWord = cased
		if start {
			return python.TitleRune(r)
		}
		return python.LowerRune(r)
	})
}

func simple(name string, f func(rune) string) strMethod {
	return func(in *interp, s python.Str, a *args) python.Value {
		a.bind(in, name)
		return in.MapRunes(s, f)
	}
}

func class(name string, f func(rune) bool) strMethod {
	return func(in *interp, s python.Str, a *args) python.Value {
		a.bind(in, name)
		return s.Text != "" && strings.IndexFunc(s.Text, func(r rune) bool { return !f(r) }) < 0
	}
}

func stripper(name string, left, right bool) strMethod {
	return func(in *interp, s python.Str, a *args) python.Value {
		return in.strip(s, orNone(a.bind(in, name, "chars?")[0]), left, right)
	}
}

func (in *interp) strip(t python.Str, chars python.Value, left, right bool) python.Value {
	drop := python.IsSpace
	if chars != nil {
		set := in.wantStr("strip", chars).Text
		drop = func(r rune) bool { return strings.ContainsRune(set, r) }
		if len(set) > 16 {
			in.Charge(40 * len(set))
			has := make(map[rune]bool)
			for _, r := range set {
				has[r] = true
			}
			drop = func(r rune) bool { return has[r] }
		}
	}
	if left {
		t = t.TrimLeft(drop)
	}
	if right {
		t = t.TrimRight(drop)
	}
	return t
}

func affix(name string, has func(s, x string) bool) strMethod {
	return func(in *interp, s python.Str, a *args) python.Value {
		p := a.bind(in, name, "affix", "start?", "end?")
		s, _, inside := in.window(s, p[1], p[2])
		if l, ok := p[0].(*python.List); ok && l.Kind == python.KindTuple {
			for _, x := range l.Items {
				if has(s.Text, in.wantStr(name, x).Text) && inside {
					return true
				}
			}
			return false
		}
		return has(s.Text, in.wantStr(name, p[0]).Text) && inside
	}
}

// window returns s[start:end] and its start in code points. Without ok not even "" is found there: the start is
// after the end.
func (in *interp) window(s python.Str, start, end python.Value) (w python.Str, from int, ok bool) {
	start, end = orNone(start), orNone(end)
	if start == nil && end == nil {
		return s, 0, true
	}
	n := s.Runes()
	clamp := func(v python.Value, unset int) int {
		if v == nil {
			return unset
		}
		i := in.wantInt("a string method", v, 0)
		if i < 0 {
			i += n
		}
		return max(i, 0)
	}
	lo, hi := clamp(start, 0), min(clamp(end, n), n)
	if lo > hi {
		return python.Str{}, 0, false
	}
	return s.Slice(s.Offset(lo), s.Offset(hi)), lo, true
}

func finder(name string, find func(s, x string) int, must bool) strMethod {
	return func(in *interp, s python.Str, a *args) python.Value {
		p := a.bind(in, name, "sub", "start?", "end?")
		w, lo, ok := in.window(s, p[1], p[2])
		i := find(w.Text, in.wantStr(name, p[0]).Text)
		if i < 0 || !ok {
			if must {
				in.Fail("substring not found")
			}
			return int64(-1)
		}
		return int64(lo + w.Slice(0, i).Runes())
	}
}

func strCount(in *interp, s python.Str, a *args) python.Value {
	p := a.bind(in, "count", "sub", "start?", "end?")
	w, _, ok := in.window(s, p[1], p[2])
	n := strings.Count(w.Text, in.wantStr("count", p[0]).Text)
	if !ok {
		n = 0
	}
	return int64(n)
}

func strJoin(in *interp, s python.Str, a *args) python.Value {
	var parts []python.Str
	for i, x := range in.iterate(a.bind(in, "join", "iterable")[0]) {
		t, ok := x.(python.Str)
		if !ok {
			in.Fail("sequence item %d: expected str instance, %s found", i, python.TypeName(x))
		}
		in.Charge(len(s.Text) + len(t.Text))
		parts = append(parts, t)
	}
	return python.JoinStr(parts, s)
}

func strRemovePrefix(in *interp, s python.Str, a *args) python.Value {
	if x := in.wantStr("removeprefix", a.bind(in, "removeprefix", "prefix")[0]); strings.HasPrefix(s.Text, x.Text) {
		return s.Slice(len(x.Text), len(s.Text))
	}
	return s
}

func strRemoveSuffix(in *interp, s python.Str, a *args) python.Value {
	if x := in.wantStr("removesuffix", a.bind(in, "removesuffix", "suffix")[0]); strings.HasSuffix(s.Text, x.Text) {
		return s.Slice(0, len(s.Text)-len(x.Text))
	}
	return s
}

func partition(name string, find func(s, x string) int, last bool) strMethod {
	return func(in *interp, s python.Str, a *args) python.Value {
		sep := in.wantStr(name, a.bind(in, name, "sep")[0])
		if sep.Text == "" {
			in.Fail("empty separator")
		}
		i := find(s.Text, sep.Text)
		switch {
		case i >= 0:
			return python.Tuple(s.Slice(0, i), sep, s.Slice(i+len(sep.Text), len(s.Text)))
		case last:
			return python.Tuple(python.Str{}, python.Str{}, s)
		}
		return python.Tuple(s, python.Str{}, python.Str{})
	}
}

func (in *interp) replace(s, old, new python.Str, count int) python.Str {
	if count < 0 || count > len(s.Text)+1 {
		count = len(s.Text) + 1
	}
	var b python.Builder
	from := 0
	if old.Text == "" { // between all code points
		in.Charge(40 * len(s.Text))
		chars := s.Chars()
		for i, c := range append(chars, python.Str{}) {
			if i < count {
				in.Charge(len(new.Text) + 16*len(new.Marks))
				b.Add(new)
			}
			b.Add(c)
		}
		return in.Made(b.Str())
	}
	for ; count > 0; count-- {
		i := strings.Index(s.Text[from:], old.Text)
		if i < 0 {
			break
		}
		in.Charge(len(new.Text) + 16*len(new.Marks) + i)
		b.Add(s.Slice(from, from+i))
		b.Add(new)
		from += i + len(old.Text)
	}
	b.Add(s.Slice(from, len(s.Text)))
	return in.Made(b.Str())
}

func (in *interp) strList(parts []python.Str) *python.List {
	in.Charge(40 * len(parts))
	l := python.NewList()
	for _, p := range parts {
		l.Items = append(l.Items, p)
	}
	return l
}

func (in *interp) split(name string, s python.Str, a *args, fromRight bool) python.Value {
	p := a.bind(in, name, "sep?", "maxsplit?")
	limit := in.wantInt(name, p[1], -1)
	if limit < 0 {
		limit = len(s.Text) + 1
	}
	sep := orNone(p[0])
	if sep == nil {
		return in.strList(splitSpace(s, limit, fromRight))
	}
	x := in.wantStr(name, sep).Text
	if x == "" {
		in.Fail("empty separator")
	}
	in.Charge(64 * min(strings.Count(s.Text, x), limit))
	if fromRight {
		var parts []python.Str
		end := len(s.Text)
		for ; limit > 0; limit-- {
			i := strings.LastIndex(s.Text[:end], x)
			if i < 0 {
				break
			}
			parts = append(parts, s.Slice(i+len(x), end))
			end = i
		}
		parts = append(parts, s.Slice(0, end))
		slices.Reverse(parts)
		return in.strList(parts)
	}
	var parts []python.Str
	from := 0
	for ; limit > 0; limit-- {
		i := strings.Index(s.Text[from:], x)
		if i < 0 {
			break
		}
		parts = append(parts, s.Slice(from, from+i))
		from += i + len(x)
	}
	return in.strList(append(parts, s.Slice(from, len(s.Text))))
}

func splitSpace(s python.Str, limit int, fromRight bool) []python.Str {
	var parts []python.Str
	if fromRight {
		end := len(strings.TrimRightFunc(s.Text, python.IsSpace))
		for ; end > 0; end = len(strings.TrimRightFunc(s.Text[:end], python.IsSpace)) {
			i := strings.LastIndexFunc(s.Text[:end], python.IsSpace)
			if i < 0 || limit == 0 {
				parts = append(parts, s.Slice(0, end))
				break
			}
			_, n := utf8.DecodeRuneInString(s.Text[i:])
			parts = append(parts, s.Slice(i+n, end))
			end = i
			limit--
		}
		slices.Reverse(parts)
		return parts
	}
	skip := func(at int) int { return len(s.Text) - len(strings.TrimLeftFunc(s.Text[at:], python.IsSpace)) }
	for at := skip(0); at < len(s.Text); at = skip(at) {
		i := strings.IndexFunc(s.Text[at:], python.IsSpace)
		if i < 0 || limit == 0 {
			return append(parts, s.Slice(at, len(s.Text)))
		}
		parts = append(parts, s.Slice(at, at+i))
		at += i
		limit--
	}
	return parts
}

// splitLines splits at Python's line boundaries; a final boundary ends the last line.
func splitLines(s python.Str, keep bool) []python.Str {
	var parts []python.Str
	from := 0
	for i := 0; i < len(s.Text); {
		r, n := utf8.DecodeRuneInString(s.Text[i:])
		switch r {
		case '\n', '\r', '\v', '\f', 0x1c, 0x1d, 0x1e, 0x85, 0x2028, 0x2029:
			if r == '\r' && strings.HasPrefix(s.Text[i+1:], "\n") {
				n = 2
			}
			end := i
			if keep {
				end = i + n
			}
			parts = append(parts, s.Slice(from, end))
			from = i + n
		}
		i += n
	}
	if from < len(s.Text) {
		parts = append(parts, s.Slice(from, len(s.Text)))
	}
	return parts
}
