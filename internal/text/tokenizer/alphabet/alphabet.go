// Package alphabet has GPT-2's printable spelling of bytes, and finds characters in bytes.
package alphabet

import "unicode/utf8"

// GPT-2's alphabet maps every byte to a printable character. Bytes that are printable in Latin-1
// map to themselves, the others to U+0100 and up in byte order (openai/gpt-2, encoder.py,
// bytes_to_unicode).
var (
	byteRune [256]rune
	Text     [256]string // the character of each byte
	runeByte = map[rune]byte{}
)

func init() {
	next := rune(0x100)
	for b := range 256 {
		r := rune(b)
		if !(r >= '!' && r <= '~' || r >= 0xA1 && r <= 0xAC || r >= 0xAE) {
			r = next
			next++
		}
		byteRune[b], Text[b], runeByte[r] = r, string(r), byte(b)
	}
}

// Spell replaces each byte of s by its character.
func Spell(s string) string {
	out := make([]byte, 0, 2*len(s))
	for i := range len(s) {
		out = utf8.AppendRune(out, byteRune[s[i]])
	}
	return string(out)
}

// Bytes appends the bytes that s represents. It returns false and leaves dst unchanged if s
// has a character outside the alphabet, for example in an added token.
func Bytes(dst []byte, s string) ([]byte, bool) {
	n := len(dst)
	for _, r := range s {
		b, ok := runeByte[r]
		if !ok {
			return dst[:n], false
		}
		dst = append(dst, b)
	}
	return dst, true
}
