package python

import (
	"sort"
	"strings"
	"unicode/utf8"
)

// Span is a range of bytes [Lo, Hi).
type Span struct{ Lo, Hi int }

// Str is a string that records which of its bytes came from the request. All string operations use
// Slice and Builder, which keep the marks. Equality and order ignore them.
type Str struct {
	Text  string
	Marks []Span // sorted, disjoint, not empty
}

// Trusted returns text of the template or the model.
func Trusted(s string) Str { return Str{Text: s} }

// Literal returns text of a request, whose bytes are marked.
func Literal(s string) Str {
	if s == "" {
		return Str{}
	}
	return Str{s, []Span{{0, len(s)}}}
}

func (t Str) String() string { return t.Text }

// Spans returns the ranges of bytes that came from the request, sorted and disjoint.
func (t Str) Spans() []Span { return t.Marks }

func (t Str) Prefix(n int) Str { return t.Slice(0, n) }

// Slice is t[lo:hi] in bytes.
func (t Str) Slice(lo, hi int) Str {
	r := Str{Text: t.Text[lo:hi]}
	first := sort.Search(len(t.Marks), func(i int) bool { return t.Marks[i].Hi > lo })
	for _, sp := range t.Marks[first:] {
		if sp.Lo >= hi {
			break
		}
		if a, b := max(sp.Lo, lo), min(sp.Hi, hi); a < b {
			r.Marks = append(r.Marks, Span{a - lo, b - lo})
		}
	}
	return r
}

// Like marks all of s if any byte of t is marked, for the few operations that do not map bytes to
// bytes.
func (t Str) Like(s string) Str {
	if len(t.Marks) > 0 {
		return Literal(s)
	}
	return Trusted(s)
}

// Runes returns the length in code points, Python's len.
func (t Str) Runes() int { return utf8.RuneCountInString(t.Text) }

// Offset returns the byte offset of code point i, 0 <= i <= runes.
func (t Str) Offset(i int) int {
	if len(t.Text) == t.Runes() {
		return i
	}
	for o := range t.Text {
		if i == 0 {
			return o
		}
		i--
	}
	return len(t.Text)
}

// At returns code point i as a string.
func (t Str) At(i int) Str {
	o := t.Offset(i)
	_, n := utf8.DecodeRuneInString(t.Text[o:])
	return t.Slice(o, o+n)
}

// Chars returns the code points as strings.
func (t Str) Chars() []Str {
	var r []Str
	for o, c := range t.Text {
		n := utf8.RuneLen(c)
		if c == utf8.RuneError {
			_, n = utf8.DecodeRuneInString(t.Text[o:])
		}
		r = append(r, t.Slice(o, o+n))
	}
	return r
}

// TrimLeft drops leading code points that drop accepts; TrimRight drops trailing ones.
func (t Str) TrimLeft(drop func(rune) bool) Str {
	return t.Slice(len(t.Text)-len(strings.TrimLeftFunc(t.Text, drop)), len(t.Text))
}

func (t Str) TrimRight(drop func(rune) bool) Str {
	return t.Slice(0, len(strings.TrimRightFunc(t.Text, drop)))
}

// MapRunes replaces each code point.
func (m *Meter) MapRunes(t Str, f func(rune) string) Str {
	var b Builder
	if t.Marks == nil {
		m.Charge(4 * len(t.Text))
		for _, c := range t.Text {
			b.Raw(f(c))
		}
		return b.Str()
	}
	m.Charge(40 * len(t.Text))
	for _, c := range t.Chars() {
		r, _ := utf8.DecodeRuneInString(c.Text)
		b.Add(c.Like(f(r)))
	}
	return b.Str()
}

// Builder concatenates strings and keeps their marks.
type Builder struct {
	b   strings.Builder
	lit []Span
}

// Raw appends text without marks.
func (b *Builder) Raw(s string) { b.b.WriteString(s) }

// Add appends t with its marks.
func (b *Builder) Add(t Str) {
	at := b.b.Len()
	for _, sp := range t.Marks {
		lo, hi := sp.Lo+at, sp.Hi+at
		if n := len(b.lit); n > 0 && b.lit[n-1].Hi == lo {
			b.lit[n-1].Hi = hi
		} else {
			b.lit = append(b.lit, Span{lo, hi})
		}
	}
	b.b.WriteString(t.Text)
}

func (b *Builder) Len() int { return b.b.Len() }

// Str returns the text so far.
func (b *Builder) Str() Str { return Str{b.b.String(), b.lit} }

// JoinStr joins parts with sep between them.
func JoinStr(parts []Str, sep Str) Str {
	var b Builder
	for i, p := range parts {
		if i > 0 {
			b.Add(sep)
		}
		b.Add(p)
	}
	return b.Str()
}

// IsSpace is Python's str.isspace for one code point.
func IsSpace(r rune) bool {
	switch {
	case r >= 9 && r <= 13, r >= 0x1c && r <= 0x20, r == 0x85, r == 0xa0, r == 0x1680,
		r >= 0x2000 && r <= 0x200a, r == 0x2028, r == 0x2029, r == 0x202f, r == 0x205f, r == 0x3000:
		return true
	}
	return false
}
