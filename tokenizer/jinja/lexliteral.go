package jinja

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// digits reads an integer (decimal, 0x, 0o, 0b) or a float; "_" may separate digits.
func (lx *lexer) digits() {
	rest := lx.src[lx.pos:]
	if len(rest) > 2 && rest[0] == '0' && strings.IndexByte("xXoObB", rest[1]) >= 0 {
		n := 2
		for n < len(rest) && (isHex(rest[n]) || rest[n] == '_') {
			n++
		}
		lx.number(tokInt, n)
		return
	}
	n, kind := digitRun(rest), tokInt
	if n+1 < len(rest) && rest[n] == '.' && isDigit(rest[n+1]) {
		kind = tokFloat
		n += 1 + digitRun(rest[n+1:])
	}
	if n < len(rest) && (rest[n] == 'e' || rest[n] == 'E') {
		m := n + 1
		if m < len(rest) && (rest[m] == '+' || rest[m] == '-') {
			m++
		}
		if d := digitRun(rest[m:]); d > 0 {
			kind = tokFloat
			n = m + d
		}
	}
	lx.number(kind, n)
}

func (lx *lexer) number(kind tokenKind, n int) {
	lx.emit(kind, strings.ReplaceAll(lx.src[lx.pos:lx.pos+n], "_", ""))
	lx.pos += n
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func isHex(c byte) bool {
	return isDigit(c) || (c|0x20 >= 'a' && c|0x20 <= 'f')
}

func digitRun(s string) int {
	n := 0
	for n < len(s) && (isDigit(s[n]) || (s[n] == '_' && n > 0 && n+1 < len(s) && isDigit(s[n+1]))) {
		n++
	}
	return n
}

// quoted reads a string with Python's escapes.
func (lx *lexer) quoted(quote byte) {
	s := lx.src[lx.pos+1:]
	var b strings.Builder
	for i := 0; i < len(s); {
		switch c := s[i]; {
		case c == quote:
			lx.emit(tokString, b.String())
			lx.pos += i + 2
			return
		case c == '\\' && i+1 < len(s):
			text, n := lx.escape(s[i+1:])
			b.WriteString(text)
			i += 1 + n
		default:
			b.WriteByte(c)
			i++
		}
	}
	lx.fail("a string is not closed by %c", quote)
}

// escape decodes what follows a backslash; an unknown escape keeps its backslash.
func (lx *lexer) escape(s string) (string, int) {
	const plain, meant = `\'"abfnrtv`, "\\'\"\a\b\f\n\r\t\v"
	if i := strings.IndexByte(plain, s[0]); i >= 0 {
		return meant[i : i+1], 1
	}
	digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}[s[0]]
	switch {
	case s[0] == '\n':
		return "", 1
	case digits > 0:
		if len(s) <= digits {
			lx.fail("a \\%c escape needs %d hexadecimal digits", s[0], digits)
		}
		v, err := strconv.ParseUint(s[1:1+digits], 16, 32)
		if err != nil || v > utf8.MaxRune {
			lx.fail("a \\%c escape needs %d hexadecimal digits of a code point", s[0], digits)
		}
		return string(rune(v)), 1 + digits
	case s[0] >= '0' && s[0] <= '7':
		n := 1
		for n < 3 && n < len(s) && s[n] >= '0' && s[n] <= '7' {
			n++
		}
		v, _ := strconv.ParseUint(s[:n], 8, 16)
		return string(rune(v)), n
	}
	_, n := utf8.DecodeRuneInString(s)
	return `\` + s[:n], n
}
