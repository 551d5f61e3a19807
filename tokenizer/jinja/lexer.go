package jinja

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

type tokenKind uint8

const (
	tokEOF tokenKind = iota
	tokData
	tokBlockBegin
	tokBlockEnd
	tokVarBegin
	tokVarEnd
	tokName
	tokString
	tokInt
	tokFloat
	tokOp
)

type token struct {
	kind tokenKind
	text string // data, name, decoded string, digits, operator
	line int
}

func (t token) describe() string {
	switch t.kind {
	case tokEOF:
		return "the end of the template"
	case tokBlockEnd:
		return "'%}'"
	case tokVarEnd:
		return "'}}'"
	}
	return fmt.Sprintf("%q", t.text)
}

// lexer cuts a template into data and tags and applies whitespace control as
// Jinja does with trim_blocks and lstrip_blocks: the newline after a block or
// comment goes, and so does white space between the start of a line and a block
// or comment; "-" inside a delimiter strips all white space on that side, "+" none.
type lexer struct {
	src       string
	pos, line int
	counted   int  // bytes of src whose newlines are in line
	lineStart bool // nothing but a newline precedes pos
	out       []token
}

func lex(src string) []token {
	src = strings.ReplaceAll(src, "\r\n", "\n")
	src = strings.ReplaceAll(src, "\r", "\n")
	src = strings.TrimSuffix(src, "\n") // keep_trailing_newline is off
	lx := &lexer{src: src, line: 1, lineStart: true}
	for lx.pos < len(src) {
		lx.root()
	}
	lx.emit(tokEOF, "")
	return lx.out
}

func (lx *lexer) fail(format string, a ...any) {
	lx.count()
	panic(&Error{lx.line, fmt.Sprintf(format, a...), ErrSyntax})
}

func (lx *lexer) count() {
	lx.line += strings.Count(lx.src[lx.counted:lx.pos], "\n")
	lx.counted = lx.pos
}

func (lx *lexer) emit(k tokenKind, text string) {
	lx.count()
	lx.out = append(lx.out, token{k, text, lx.line})
}

// root handles data up to the next tag, and the tag.
func (lx *lexer) root() {
	start := lx.pos
	i := nextTag(lx.src, start)
	if i < 0 {
		lx.data(lx.src[start:], 0, false)
		lx.pos = len(lx.src)
		return
	}
	kind, sign := lx.src[i+1], byte(0)
	after := i + 2
	if after < len(lx.src) && (lx.src[after] == '-' || lx.src[after] == '+') {
		sign = lx.src[after]
		after++
	}
	lx.data(lx.src[start:i], sign, kind != '{')
	lx.pos = i
	switch kind {
	case '#':
		lx.pos = after
		end := strings.Index(lx.src[after:], "#}")
		if end < 0 {
			lx.fail("a comment is not closed by '#}'")
		}
		lx.pos = after + end
		lx.closeTag(end > 0, '#')
	case '{':
		lx.emit(tokVarBegin, "")
		lx.pos = after
		lx.expression('}')
	default:
		if body := lx.rawBegin(after); body >= 0 {
			lx.raw(body)
			return
		}
		lx.emit(tokBlockBegin, "")
		lx.pos = after
		lx.expression('%')
	}
}

func nextTag(src string, from int) int {
	for i := from; i+1 < len(src); i++ {
		if src[i] == '{' && (src[i+1] == '{' || src[i+1] == '%' || src[i+1] == '#') {
			return i
		}
	}
	return -1
}

// data emits text that a tag with this sign follows.
func (lx *lexer) data(text string, sign byte, lstrip bool) {
	if sign == '-' {
		text = strings.TrimRightFunc(text, isSpace)
	} else if sign != '+' && lstrip {
		at := strings.LastIndexByte(text, '\n') + 1
		if (at > 0 || lx.lineStart) && strings.TrimLeftFunc(text[at:], isSpace) == "" {
			text = text[:at]
		}
	}
	if text != "" {
		lx.emit(tokData, text)
	}
}

// closeTag stands on the two closing characters; a sign may precede them.
func (lx *lexer) closeTag(signed bool, kind byte) {
	sign := byte(0)
	if signed {
		sign = lx.src[lx.pos-1]
	}
	lx.pos += 2
	begin := lx.pos
	switch {
	case sign == '-':
		rest := lx.src[lx.pos:]
		lx.pos += len(rest) - len(strings.TrimLeftFunc(rest, isSpace))
	case sign != '+' && kind != '}' && strings.HasPrefix(lx.src[lx.pos:], "\n"):
		lx.pos++
	}
	lx.lineStart = lx.pos > begin && lx.src[lx.pos-1] == '\n'
}

// rawBegin returns where the text of {% raw %} begins, -1 for another tag.
func (lx *lexer) rawBegin(at int) int {
	rest := strings.TrimLeftFunc(lx.src[at:], isSpace)
	rest, ok := strings.CutPrefix(rest, "raw")
	if !ok {
		return -1
	}
	rest = strings.TrimLeftFunc(rest, isSpace)
	if r, ok := strings.CutPrefix(rest, "-%}"); ok {
		return len(lx.src) - len(strings.TrimLeftFunc(r, isSpace))
	}
	if r, ok := strings.CutPrefix(rest, "%}"); ok {
		return len(lx.src) - len(r)
	}
	return -1
}

func (lx *lexer) raw(body int) {
	for i := body; ; i += 2 {
		n := strings.Index(lx.src[i:], "{%")
		if n < 0 {
			lx.fail("'raw' is not closed by 'endraw'")
		}
		i += n
		at, sign := i+2, byte(0)
		if at < len(lx.src) && (lx.src[at] == '-' || lx.src[at] == '+') {
			sign = lx.src[at]
			at++
		}
		rest, ok := strings.CutPrefix(strings.TrimLeftFunc(lx.src[at:], isSpace), "endraw")
		if !ok {
			continue
		}
		rest = strings.TrimLeftFunc(rest, isSpace)
		signed := strings.HasPrefix(rest, "-") || strings.HasPrefix(rest, "+")
		if signed {
			rest = rest[1:]
		}
		if !strings.HasPrefix(rest, "%}") {
			continue
		}
		lx.lineStart = lx.src[body-1] == '\n'
		lx.data(lx.src[body:i], sign, true)
		lx.pos = len(lx.src) - len(rest)
		lx.closeTag(signed, '%')
		return
	}
}

const operators2 = "==!=>=<=//**"

// expression emits tokens up to the end of the tag; close is '}' or '%'.
func (lx *lexer) expression(close byte) {
	var open []byte // brackets; inside them "}}" is two braces
	for {
		rest := lx.src[lx.pos:]
		trimmed := strings.TrimLeftFunc(rest, isSpace)
		lx.pos += len(rest) - len(trimmed)
		rest = trimmed
		if rest == "" {
			lx.fail("a tag is not closed by '%c}'", close)
		}
		if len(open) == 0 {
			signed := rest[0] == '-' || (rest[0] == '+' && close == '%')
			end := rest
			if signed {
				end = rest[1:]
			}
			if len(end) >= 2 && end[0] == close && end[1] == '}' {
				kind := tokBlockEnd
				if close == '}' {
					kind = tokVarEnd
				}
				lx.emit(kind, "")
				lx.pos = len(lx.src) - len(end)
				lx.closeTag(signed, close)
				return
			}
		}
		switch c := rest[0]; {
		case c == '\'' || c == '"':
			lx.quoted(c)
		case c >= '0' && c <= '9':
			lx.digits()
		case c == '_' || c >= utf8.RuneSelf || unicode.IsLetter(rune(c)):
			lx.name()
		case len(rest) > 1 && isOperator2(rest[:2]):
			lx.emit(tokOp, rest[:2])
			lx.pos += 2
		case strings.IndexByte("+-/*%~[](){}><=.:|,;", c) >= 0:
			switch c {
			case '(', '[', '{':
				open = append(open, c)
			case ')', ']', '}':
				if len(open) == 0 || open[len(open)-1] != opening(c) {
					lx.fail("unexpected '%c'", c)
				}
				open = open[:len(open)-1]
			}
			lx.emit(tokOp, rest[:1])
			lx.pos++
		default:
			lx.fail("unexpected character %q", c)
		}
	}
}

func opening(c byte) byte {
	if c == ')' {
		return '('
	}
	return c - 2 // ']' and '}' in ASCII
}

func isOperator2(s string) bool {
	for i := 0; i < len(operators2); i += 2 {
		if operators2[i:i+2] == s {
			return true
		}
	}
	return false
}

func (lx *lexer) name() {
	rest := lx.src[lx.pos:]
	end := strings.IndexFunc(rest, func(r rune) bool {
		return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) && !unicode.Is(unicode.Mn, r)
	})
	if end < 0 {
		end = len(rest)
	}
	if end == 0 {
		r, _ := utf8.DecodeRuneInString(rest)
		lx.fail("unexpected character %q", r)
	}
	lx.emit(tokName, rest[:end])
	lx.pos += end
}
