package alphabet

import "unicode/utf8"

// RuneState is the state of the first character of a text in UTF-8.
type RuneState uint8

// States. An incomplete character is a valid prefix that needs more bytes.
const (
	Complete RuneState = iota
	Incomplete
	Broken
)

// LeadingRune returns the length of the first character of p, or the length of its longest valid
// prefix if it is incomplete or invalid.
func LeadingRune(p []byte) (n int, s RuneState) {
	if p[0] < utf8.RuneSelf {
		return 1, Complete
	}
	if r, n := utf8.DecodeRune(p); r != utf8.RuneError || n > 1 {
		return n, Complete
	}
	want, lo, hi := 0, byte(0x80), byte(0xBF) // range of the second byte (Unicode, table 3-7)
	switch c := p[0]; {
	case c >= 0xC2 && c <= 0xDF:
		want = 2
	case c >= 0xE0 && c <= 0xEF:
		want = 3
		if c == 0xE0 {
			lo = 0xA0
		} else if c == 0xED {
			hi = 0x9F
		}
	case c >= 0xF0 && c <= 0xF4:
		want = 4
		if c == 0xF0 {
			lo = 0x90
		} else if c == 0xF4 {
			hi = 0x8F
		}
	default:
		return 1, Broken
	}
	for n = 1; n < len(p) && n < want; n++ {
		if p[n] < lo || p[n] > hi {
			return n, Broken
		}
		lo, hi = 0x80, 0xBF
	}
	return n, Incomplete
}
