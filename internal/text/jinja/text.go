package jinja

import (
	"sort"
	"strings"
	"unicode/utf8"
)

// Span is a range of bytes [Lo, Hi).
type Span struct{ Lo, Hi int }

// Str is a string that records which of its bytes came from the request. All string operations use
// slice and builder, which keep the marks. Equality and order ignore them.
type Str struct {
	s   string
	lit []Span // sorted, disjoint, not empty
}

// Trusted returns text of the template or the model.
func Trusted(s string) Str { return Str{s: s} }

// Literal returns text of a request, whose bytes are marked.
func Literal(s string) Str {
	if s == "" {
		return Str{}
	}
	return Str{s, []Span{{0, len(s)}}}
}

func (t Str) String() string { return t.s }

// Spans returns the ranges of bytes that came from the request, sorted and disjoint.
func (t Str) Spans() []Span { return t.lit }

func (t Str) Prefix(n int) Str { return t.slice(0, n) }

// slice is t[lo:hi] in bytes.
func (t Str) slice(lo, hi int) Str {
	r := Str{s: t.s[lo:hi]}
	first := sort.Search(len(t.lit), func(i int) bool { return t.lit[i].Hi > lo })
	for _, sp := range t.lit[first:] {
		if sp.Lo >= hi {
			break
		}
		if a, b := max(sp.Lo, lo), min(sp.Hi, hi); a < b {
			r.lit = append(r.lit, Span{a - lo, b - lo})
		}
	}
	return r
}

// like marks all of s if any byte of t is marked, for the few operations that do not map bytes to
// bytes.
func (t Str) like(s string) Str {
	if len(t.lit) > 0 {
		return Literal(s)
	}
	return Trusted(s)
}

// runes returns the length in code points, Python's len.
func (t Str) runes() int { return utf8.RuneCountInString(t.s) }

// offset returns the byte offset of code point i, 0 <= i <= runes.
func (t Str) offset(i int) int {
	if len(t.s) == t.runes() {
		return i
	}
	for o := range t.s {
		if i == 0 {
			return o
		}
		i--
	}
	return len(t.s)
}

// at returns code point i as a string.
func (t Str) at(i int) Str {
	o := t.offset(i)
	_, n := utf8.DecodeRuneInString(t.s[o:])
	return t.slice(o, o+n)
}

// chars returns the code points as strings.
func (t Str) chars() []Str {
	var r []Str
	for o, c := range t.s {
		n := utf8.RuneLen(c)
		if c == utf8.RuneError {
			_, n = utf8.DecodeRuneInString(t.s[o:])
		}
		r = append(r, t.slice(o, o+n))
	}
	return r
}

// trimLeft drops leading code points that drop accepts; trimRight drops trailing ones.
func (t Str) trimLeft(drop func(rune) bool) Str {
	return t.slice(len(t.s)-len(strings.TrimLeftFunc(t.s, drop)), len(t.s))
}

func (t Str) trimRight(drop func(rune) bool) Str {
	return t.slice(0, len(strings.TrimRightFunc(t.s, drop)))
}

// mapRunes replaces each code point.
func (in *interp) mapRunes(t Str, f func(rune) string) Str {
	var b builder
	if t.lit == nil {
		in.charge(4 * len(t.s))
		for _, c := range t.s {
			b.raw(f(c))
		}
		return b.str()
	}
	in.charge(40 * len(t.s))
	for _, c := range t.chars() {
		r, _ := utf8.DecodeRuneInString(c.s)
		b.add(c.like(f(r)))
	}
	return b.str()
}

// builder concatenates strings and keeps their marks.
type builder struct {
	b   strings.Builder
	lit []Span
}

func (b *builder) raw(s string) { b.b.WriteString(s) }

func (b *builder) add(t Str) {
	at := b.b.Len()
	for _, sp := range t.lit {
		lo, hi := sp.Lo+at, sp.Hi+at
		if n := len(b.lit); n > 0 && b.lit[n-1].Hi == lo {
			b.lit[n-1].Hi = hi
		} else {
			b.lit = append(b.lit, Span{lo, hi})
		}
	}
	b.b.WriteString(t.s)
}

func (b *builder) len() int { return b.b.Len() }

func (b *builder) str() Str { return Str{b.b.String(), b.lit} }

func joinStr(parts []Str, sep Str) Str {
	var b builder
	for i, p := range parts {
		if i > 0 {
			b.add(sep)
		}
		b.add(p)
	}
	return b.str()
}

// isSpace is Python's str.isspace for one code point.
func isSpace(r rune) bool {
	switch {
	case r >= 9 && r <= 13, r >= 0x1c && r <= 0x20, r == 0x85, r == 0xa0, r == 0x1680,
		r >= 0x2000 && r <= 0x200a, r == 0x2028, r == 0x2029, r == 0x202f, r == 0x205f, r == 0x3000:
		return true
	}
	return false
}
