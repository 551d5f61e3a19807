package jinja

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/shoal-llm/shoal/internal/text/jinja/python"
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
	text string // data, name, decoded string, digits or operator
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

// lexer splits a template into data and tags. It applies whitespace control like Jinja with
// trim_blocks and lstrip_blocks. The newline after a block or comment is removed, and so is white
// space between the start of a line and a block or comment. "-" inside a delimiter strips all white
// space on that side; "+" strips none.
type lexer struct {
	src       string
	pos, line int
	counted   int  // bytes of src whose newlines are counted in line
	lineStart bool // only a newline precedes pos
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
	panic(&python.Error{Line: lx.line, Message: fmt.Sprintf(format, a...), Cause: python.ErrSyntax})
}

func (lx *lexer) count() {
	lx.line += strings.Count(lx.src[lx.counted:lx.pos], "\n")
	lx.counted = lx.pos
}

func (lx *lexer) emit(k tokenKind, text string) {
	lx.count()
	lx.out = append(lx.out, token{k, text, lx.line})
}

// root processes the data before the next tag, and the tag.
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

// data emits text before a tag with this sign.
func (lx *lexer) data(text string, sign byte, lstrip bool) {
	if sign == '-' {
		text = strings.TrimRightFunc(text, python.IsSpace)
	} else if sign != '+' && lstrip {
		at := strings.LastIndexByte(text, '\n') + 1
		if (at > 0 || lx.lineStart) && strings.TrimLeftFunc(text[at:], python.IsSpace) == "" {
			text = text[:at]
		}
	}
	if text != "" {
		lx.emit(tokData, text)
	}
}

// closeTag processes the two closing characters, after an optional sign.
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
		lx.pos += len(rest) - len(strings.TrimLeftFunc(rest, python.IsSpace))
	case sign != '+' && kind != '}' && strings.HasPrefix(lx.src[lx.pos:], "\n"):
		lx.pos++
	}
	lx.lineStart = lx.pos > begin && lx.src[lx.pos-1] == '\n'
}

// rawBegin returns the start of the text of {% raw %}, or -1 for another tag.
func (lx *lexer) rawBegin(at int) int {
	rest := strings.TrimLeftFunc(lx.src[at:], python.IsSpace)
	rest, ok := strings.CutPrefix(rest, "raw")
	if !ok {
		return -1
	}
	rest = strings.TrimLeftFunc(rest, python.IsSpace)
	if r, ok := strings.CutPrefix(rest, "-%}"); ok {
		return len(lx.src) - len(strings.TrimLeftFunc(r, python.IsSpace))
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
		rest, ok := strings.CutPrefix(strings.TrimLeftFunc(lx.src[at:], python.IsSpace), "endraw")
		if !ok {
			continue
		}
		rest = strings.TrimLeftFunc(rest, python.IsSpace)
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

// tokens matches a name, an integer in another base, a number, a string, or an operator.
var tokens = regexp.MustCompile(`(?s)^(?:([\pL_][\pL\p{Nd}\p{Mn}_]*)` +
	`|(0[xXoObB][0-9a-fA-F_]*)|(\d(?:_?\d)*(?:\.\d(?:_?\d)*)?(?:[eE][+-]?\d(?:_?\d)*)?)` +
	`|('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")` +
	`|(==|!=|>=|<=|//|\*\*|[-+/*%~\[\](){}><=.:|,;]))`)

const (
	openBrackets  = "([{"
	closeBrackets = ")]}"
)

// expression emits tokens up to the end of the tag; close is '}' or '%'.
func (lx *lexer) expression(close byte) {
	var open []int // open brackets; inside them "}}" is two braces
	for {
		rest := strings.TrimLeftFunc(lx.src[lx.pos:], python.IsSpace)
		lx.pos = len(lx.src) - len(rest)
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
		m := tokens.FindStringSubmatch(rest)
		switch {
		case m == nil && (rest[0] == '\'' || rest[0] == '"'):
			lx.fail("a string is not closed by %c", rest[0])
		case m == nil:
			r, _ := utf8.DecodeRuneInString(rest)
			lx.fail("unexpected character %q", r)
		case m[1] != "":
			lx.emit(tokName, m[1])
		case m[2] != "":
			lx.emit(tokInt, strings.ReplaceAll(m[2], "_", ""))
		case m[3] != "":
			kind := tokInt
			if strings.ContainsAny(m[3], ".eE") {
				kind = tokFloat
			}
			lx.emit(kind, strings.ReplaceAll(m[3], "_", ""))
		case m[4] != "":
			lx.emit(tokString, lx.unescape(m[4][1:len(m[4])-1]))
		default:
			if i := strings.Index(openBrackets, m[5]); i >= 0 {
				open = append(open, i)
			} else if i := strings.Index(closeBrackets, m[5]); i >= 0 {
				if len(open) == 0 || open[len(open)-1] != i {
					lx.fail("unexpected '%s'", m[5])
				}
				open = open[:len(open)-1]
			}
			lx.emit(tokOp, m[5])
		}
		lx.pos += len(m[0])
	}
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// unescape decodes Python's escapes.
func (lx *lexer) unescape(s string) string {
	var b strings.Builder
	for {
		plain, rest, ok := strings.Cut(s, `\`)
		b.WriteString(plain)
		if !ok {
			return b.String()
		}
		text, n := lx.escape(rest)
		b.WriteString(text)
		s = rest[n:]
	}
}

// escape decodes the characters after a backslash. An unknown escape keeps its backslash.
func (lx *lexer) escape(s string) (string, int) {
	const plain, meant = `\'"abfnrtv`, "\\'\"\a\b\f\n\r\t\v"
	if i := strings.IndexByte(plain, s[0]); i >= 0 {
		return meant[i : i+1], 1
	}
	digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}[s[0]]
	switch {
	case s[0] == '\n':
		return "", 1
	case s[0] == 'N': // requires a name in Python
		name, _, _ := strings.Cut(s, "}")
		lx.fail("the escape \\%.60s} is not implemented: write \\u and four hexadecimal digits", name)
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
