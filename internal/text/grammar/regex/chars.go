package regex

import (
	"fmt"
	"slices"
	"unicode"
	"unicode/utf8"
)

// Runes is a set of characters: sorted, separate ranges.
type Runes []runeRange

type runeRange struct{ lo, hi rune }

// AnyRune has all characters.
var AnyRune = Runes{{0, unicode.MaxRune}}

// Between returns the characters from lo to hi.
func Between(lo, hi rune) Runes { return Runes{{lo, hi}} }

// Normal sorts the ranges and joins those that touch.
func (s Runes) Normal() Runes {
	s = slices.Clone(s)
	slices.SortFunc(s, func(a, b runeRange) int { return int(a.lo - b.lo) })
	out := s[:0]
	for _, r := range s {
		if n := len(out); n > 0 && r.lo <= out[n-1].hi+1 {
			out[n-1].hi = max(out[n-1].hi, r.hi)
		} else {
			out = append(out, r)
		}
	}
	return out
}

// Except returns s without o. Both must be normalized.
func (s Runes) Except(o Runes) Runes {
	var out Runes
	for _, r := range s {
		lo := r.lo
		for _, x := range o {
			if x.hi < lo || x.lo > r.hi {
				continue
			}
			if x.lo > lo {
				out = append(out, runeRange{lo, x.lo - 1})
			}
			lo = x.hi + 1
		}
		if lo <= r.hi {
			out = append(out, runeRange{lo, r.hi})
		}
	}
	return out
}

func (s Runes) has(c rune) bool {
	return slices.ContainsFunc(s, func(r runeRange) bool { return r.lo <= c && c <= r.hi })
}

// Folded adds the characters that differ only in case.
func (s Runes) Folded() Runes {
	out := slices.Clone(s)
	for _, r := range s {
		for c := r.lo; c <= r.hi && c <= 0x1E943; c++ {
			for f := unicode.SimpleFold(c); f != c; f = unicode.SimpleFold(f) {
				out = append(out, runeRange{f, f})
			}
		}
	}
	return out.Normal()
}

func tableRunes(t *unicode.RangeTable) Runes {
	var out Runes
	add := func(lo, hi, stride rune) {
		if stride == 1 {
			out = append(out, runeRange{lo, hi})
			return
		}
		for c := lo; c <= hi; c += stride {
			out = append(out, runeRange{c, c})
		}
	}
	for _, r := range t.R16 {
		add(rune(r.Lo), rune(r.Hi), rune(r.Stride))
	}
	for _, r := range t.R32 {
		add(rune(r.Lo), rune(r.Hi), rune(r.Stride))
	}
	return out.Normal()
}

// UTF8 returns the encodings of the characters of s. Surrogates have none.
func (x *Store) UTF8(s Runes) ID {
	var list []ID
	var ascii ByteSet
	for _, r := range s.Except(Runes{{0xD800, 0xDFFF}}) {
		for lo := r.lo; lo <= r.hi; {
			hi := r.hi
			for _, last := range [...]rune{0x7F, 0x7FF, 0xD7FF, 0xFFFF} {
				if lo <= last {
					hi = min(hi, last)
					break
				}
			}
			if hi <= 0x7F {
				ascii.addRange(byte(lo), byte(hi))
			} else {
				var a, b [4]byte
				n := utf8.EncodeRune(a[:], lo)
				utf8.EncodeRune(b[:], hi)
				list = append(list, x.span(a[:n], b[:n]))
			}
			lo = hi + 1
		}
	}
	return x.Or(append(list, x.Set(ascii))...)
}

// span returns the encodings from a to b, which have the same length.
func (x *Store) span(a, b []byte) ID {
	if len(a) == 1 {
		return x.Bytes(a[0], b[0])
	}
	full := func(p []byte, with byte) bool {
		for _, c := range p {
			if c != with {
				return false
			}
		}
		return true
	}
	rest := len(a) - 1
	least, most := make([]byte, rest), make([]byte, rest)
	for i := range rest {
		least[i], most[i] = 0x80, 0xBF
	}
	if a[0] == b[0] {
		return x.Concat(x.Bytes(a[0], a[0]), x.span(a[1:], b[1:]))
	}
	var list []ID
	lo, hi := a[0], b[0]
	if !full(a[1:], 0x80) {
		list = append(list, x.Concat(x.Bytes(lo, lo), x.span(a[1:], most)))
		lo++
	}
	if !full(b[1:], 0xBF) {
		list = append(list, x.Concat(x.Bytes(hi, hi), x.span(least, b[1:])))
		hi--
	}
	if lo <= hi {
		list = append(list, x.Concat(x.Bytes(lo, hi), x.span(least, most)))
	}
	return x.Or(list...)
}

// Encoder converts characters to the bytes that represent them.
type Encoder interface {
	Class(s Runes) ID
}

// RawText represents text as UTF-8.
func RawText(x *Store) Encoder { return rawText{x} }

type rawText struct{ x *Store }

func (t rawText) Class(s Runes) ID {
	if len(s) == 1 && s[0].lo == s[0].hi && utf8.ValidRune(s[0].lo) {
		return t.x.Literal(string(s[0].lo))
	}
	return t.x.UTF8(s)
}

// JSONText represents text inside a JSON string with a unique spelling: only required escapes, each
// in its shortest form. So a set of texts and its complement have disjoint spellings.
func JSONText(x *Store) Encoder { return jsonText{x} }

type jsonText struct{ x *Store }

func (t jsonText) Class(s Runes) ID {
	if len(s) == 1 && s[0].lo == s[0].hi && utf8.ValidRune(s[0].lo) {
		return t.x.Literal(jsonRune(s[0].lo))
	}
	list := []ID{t.x.UTF8(s.Except(escaped))}
	for _, r := range escaped {
		for c := r.lo; c <= r.hi; c++ {
			if s.has(c) {
				list = append(list, t.x.Literal(jsonRune(c)))
			}
		}
	}
	return t.x.Or(list...)
}

var escaped = Runes{{0, 0x1F}, {'"', '"'}, {'\\', '\\'}}

func jsonRune(c rune) string {
	const hex = "0123456789abcdef"
	switch c {
	case '"', '\\':
		return `\` + string(c)
	case '\b':
		return `\b`
	case '\f':
		return `\f`
	case '\n':
		return `\n`
	case '\r':
		return `\r`
	case '\t':
		return `\t`
	}
	if c < 0x20 {
		return `\u00` + string(hex[c>>4]) + string(hex[c&15])
	}
	return string(c)
}

// JSONSpelling returns JSONText's spelling of s, without quotes.
func JSONSpelling(s string) string {
	out := make([]byte, 0, len(s)+2)
	for i := 0; i < len(s); {
		if i+2 < len(s) && s[i] == 0xED && s[i+1] >= 0xA0 { // an unpaired surrogate: see jsonParser.str
			out = fmt.Appendf(out, `\u%04x`, 0xD000|int(s[i+1]&0x3F)<<6|int(s[i+2]&0x3F))
			i += 3
			continue
		}
		c, n := utf8.DecodeRuneInString(s[i:])
		out = append(out, jsonRune(c)...)
		i += n
	}
	return string(out)
}

// JSONChar matches one character of a JSON string in any spelling. A surrogate pair is one
// character.
func (x *Store) JSONChar() ID {
	var short, hex, d, upTo7, highs, lows ByteSet
	for _, b := range []byte(`"\/bfnrt`) {
		short.Add(b)
	}
	for _, s := range [...]*ByteSet{&hex} {
		s.addRange('0', '9')
		s.addRange('a', 'f')
		s.addRange('A', 'F')
	}
	d.Add('d')
	d.Add('D')
	upTo7.addRange('0', '7')
	for _, b := range []byte("89abAB") {
		highs.Add(b)
	}
	for _, b := range []byte("cdefCDEF") {
		lows.Add(b)
	}
	notD := hex
	for i := range notD {
		notD[i] &^= d[i]
	}
	h, u := x.Set(hex), x.Literal(`\u`)
	return x.Or(
		x.UTF8(AnyRune.Except(escaped)),
		x.Concat(x.Literal(`\`), x.Set(short)),
		x.Concat(u, x.Set(notD), h, h, h),
		x.Concat(u, x.Set(d), x.Set(upTo7), h, h),
		x.Concat(u, x.Set(d), x.Set(highs), h, h, u, x.Set(d), x.Set(lows), h, h),
	)
}
