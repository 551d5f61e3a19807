package toolcall

import (
	"cmp"
	"strings"
)

// writer copies a JSON object or list as it arrives, and repairs typical mistakes of models. The
// joined output of take and end is valid JSON. Valid input is copied unchanged. Repairs:
//
//   - control characters in strings are escaped, and the backslash of an unknown escape is doubled;
//   - a quote in a string that cannot end it, judging by the text after it, is escaped;
//   - single quotes, unquoted names and words, numbers and words of Python and JavaScript;
//   - comments, extra commas, missing commas, colons and values;
//   - strings and brackets that are open at the end of the call.
//
// Anything else ends the value and is left to the caller.
type writer struct {
	ends  []string                           // marks that end a call
	opens func(s string, final bool) verdict // reports whether s starts the next one

	stack  []byte // open brackets
	expect expect
	quote  byte   // quote of the string being copied; 0: none
	name   bool   // the string is a member name
	comma  bool   // read, but written only if a value follows
	blanks string // read but not written

	marked bool // the value ended at a mark
}

type expect uint8

const (
	aValue expect = iota
	aName
	aColon
	aComma // or a closing bracket
)

// maxNesting limits the nesting of brackets. Go's decoder allows 10,000, Python's about 1,000.
const maxNesting = 500

const blanks = " \t\r\n"

// take copies the n bytes of s that belong to the value. It leaves bytes whose meaning depends on later text,
// unless final is set: then no text follows. done: the value ended, by its own bracket or because
// the rest of s is not part of it.
func (w *writer) take(s string, final bool) (out string, n int, done bool) {
	var b strings.Builder
	for n < len(s) && !done {
		step := w.structure
		if w.quote != 0 {
			step = w.inString
		}
		size, v := step(&b, s[n:], final)
		if n += size; v == unsure {
			break
		}
		done = v == no
	}
	return b.String(), n, done || w.closed()
}

// closed reports whether the value has its last bracket.
func (w *writer) closed() bool { return len(w.stack) == 0 && w.expect == aComma }

// tidy reports whether only closing brackets are missing.
func (w *writer) tidy() bool { return w.quote == 0 && (w.expect == aComma || w.expect == aName) }

// end returns the text that completes the value.
func (w *writer) end() string {
	var b strings.Builder
	if w.quote != 0 {
		w.endString(&b)
	}
	for len(w.stack) > 0 {
		w.pop(&b)
	}
	return b.String()
}

// structure copies text outside strings. no means that it is not part of the value.
func (w *writer) structure(b *strings.Builder, s string, final bool) (n int, goOn verdict) {
	c := s[0]
	switch {
	case w.closed():
		return 0, no
	case strings.IndexByte(blanks, c) >= 0:
		w.blanks += s[:1]
		return 1, yes
	case c == '#' || c == '/':
		if n, is := w.comment(s, final); is != no {
			return n, is
		}
	}
	if v := startsWith(s, w.ends, final); v != no {
		return 0, w.mark(v)
	}
	list := len(w.stack) > 0 && w.stack[len(w.stack)-1] == '['
	begins := strings.IndexByte(`"'{[`, c) >= 0 || wordy(c)
	if w.expect == aColon && begins {
		w.colon(b)
	}
	if w.expect == aComma && begins && (list || c == '"' || c == '\'') {
		w.comma, w.blanks = true, cmp.Or(w.blanks, " ")
		w.next()
	}
	switch {
	case len(w.stack) == 0 && c != '{' && c != '[':
		return 0, no
	case c == '"' || c == '\'':
		w.separate(b)
		b.WriteByte('"')
		w.quote, w.name = c, w.expect == aName
	case (c == '{' || c == '[') && w.expect == aValue && len(w.stack) < maxNesting:
		w.separate(b)
		b.WriteByte(c)
		w.stack = append(w.stack, c)
		w.next()
	case c == '}' || c == ']':
		for open := c - 2; strings.IndexByte(string(w.stack), open) >= 0 && w.stack[len(w.stack)-1] != open; {
			w.pop(b)
		}
		if !w.comma {
			w.separate(b)
		}
		w.pop(b) // a bracket without a match closes the innermost one
	case c == ',':
		w.complete(b)
		if w.expect == aComma {
			w.separate(b)
			w.comma = true
			w.next()
		}
	case (c == ':' || c == '=') && w.expect == aColon:
		w.separate(b)
		w.colon(b)
	case wordy(c) && (w.expect == aName || w.expect == aValue):
		return w.word(b, s, final)
	default:
		return 0, no
	}
	return 1, yes
}

// word copies a number, a word, or text without its quotes.
func (w *writer) word(b *strings.Builder, s string, final bool) (n int, goOn verdict) {
	for n < len(s) && wordy(s[n]) {
		n++
	}
	if n == len(s) && !final {
		return 0, unsure
	}
	w.separate(b)
	if w.expect == aName {
		b.WriteString(quoted(s[:n]))
		w.expect = aColon
	} else {
		b.WriteString(literal(s[:n]))
		w.expect = aComma
	}
	return n, yes
}

func wordy(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80 || strings.IndexByte("_.+-$/@%", c) >= 0
}

// comment skips a JavaScript or Python comment. no means that there is none.
func (w *writer) comment(s string, final bool) (n int, is verdict) {
	end := "\n"
	switch {
	case s[0] == '#' || strings.HasPrefix(s, "//"):
	case strings.HasPrefix(s, "/*"):
		end = "*/"
	case s == "/" && !final:
		return 0, unsure
	default:
		return 0, no
	}
	n = strings.Index(s, end)
	for _, mark := range w.ends {
		if at := strings.Index(s, mark); at >= 0 && (n < 0 || at < n) {
			return at, yes
		}
	}
	switch {
	case n >= 0 && end == "*/":
		n += len(end)
	case n < 0 && !final:
		return 0, unsure
	case n < 0:
		n = len(s)
	}
	return n, yes
}

// next sets the elements that may follow a bracket or a comma.
func (w *writer) next() {
	w.expect = aValue
	if w.stack[len(w.stack)-1] == '{' {
		w.expect = aName
	}
}

// separate writes the pending comma and white space.
func (w *writer) separate(b *strings.Builder) {
	if w.comma {
		b.WriteByte(',')
	}
	b.WriteString(w.blanks)
	w.comma, w.blanks = false, ""
}

func (w *writer) colon(b *strings.Builder) {
	b.WriteByte(':')
	w.expect = aValue
}

// complete adds a value to a member that only has its name.
func (w *writer) complete(b *strings.Builder) {
	if w.stack[len(w.stack)-1] == '[' || w.expect != aColon && w.expect != aValue {
		return
	}
	if w.expect == aColon {
		b.WriteByte(':')
	} else {
		w.separate(b)
	}
	b.WriteString("null")
	w.expect = aComma
}

// pop closes the innermost bracket.
func (w *writer) pop(b *strings.Builder) {
	w.complete(b)
	w.comma, w.blanks = false, ""
	last := len(w.stack) - 1
	b.WriteByte(w.stack[last] + 2) // the codes of "}" and "]" are those of "{" and "[" plus 2
	w.stack, w.expect = w.stack[:last], aComma
}
