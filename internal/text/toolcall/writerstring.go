package toolcall

import (
	"fmt"
	"strings"
)

// verdict is a decision about a text that may continue.
type verdict uint8

const (
	no verdict = iota
	yes
	unsure // more text is needed
)

// mark converts "there is a mark" to "the value continues".
func (w *writer) mark(v verdict) verdict {
	if v == yes {
		w.marked = true
		return no
	}
	return v
}

func (v verdict) not() verdict { return [...]verdict{no: yes, yes: no, unsure: unsure}[v] }

func is(b bool) verdict {
	if b {
		return yes
	}
	return no
}

// atEnd returns v if no text follows, else unsure.
func atEnd(final bool, v verdict) verdict {
	if final {
		return v
	}
	return unsure
}

// startsWith reports whether s starts with one of the marks.
func startsWith(s string, marks []string, final bool) verdict {
	v := no
	for _, mark := range marks {
		if strings.HasPrefix(s, mark) {
			return yes
		}
		if !final && strings.HasPrefix(mark, s) {
			v = unsure
		}
	}
	return v
}

// inString copies the content of a string. no means that the call ends inside it.
func (w *writer) inString(b *strings.Builder, s string, final bool) (n int, goOn verdict) {
	for n < len(s) && s[n] >= ' ' && strings.IndexByte(`"'\<[`, s[n]) < 0 {
		n++
	}
	if n > 0 {
		b.WriteString(s[:n])
		return n, yes
	}
	switch c := s[0]; {
	case c == '\\':
		return escape(b, s, final)
	case c == w.quote:
		switch w.endsString(s[1:], final) {
		case unsure:
			return 0, unsure
		case yes:
			w.endString(b)
		default:
			b.WriteString(escaped(c))
		}
	case c < ' ' || c == '"':
		b.WriteString(escaped(c))
	default:
		if v := w.endsCall(s, final); v != no {
			return 0, w.mark(v)
		}
		b.WriteByte(c)
	}
	return 1, yes
}

func (w *writer) endString(b *strings.Builder) {
	b.WriteByte('"')
	if w.quote, w.expect = 0, aComma; w.name {
		w.expect = aColon
	}
}

// escaped returns a character as written in a JSON string.
func escaped(c byte) string {
	switch c {
	case '"':
		return `\"`
	case '\n':
		return `\n`
	case '\t':
		return `\t`
	case '\r':
		return `\r`
	}
	if c < ' ' {
		return fmt.Sprintf(`\u%04x`, c)
	}
	return string(rune(c))
}

// escape copies a backslash and its character.
func escape(b *strings.Builder, s string, final bool) (n int, goOn verdict) {
	switch {
	case len(s) == 1 && !final:
		return 0, unsure
	case len(s) > 1 && strings.IndexByte(`"\/bfnrt`, s[1]) >= 0:
		b.WriteString(s[:2])
		return 2, yes
	case len(s) > 1 && s[1] == '\'':
		b.WriteByte('\'')
		return 2, yes
	case len(s) > 1 && s[1] == 'u':
		for n = 2; n < len(s) && n < 6 && strings.IndexByte("0123456789abcdefABCDEF", s[n]) >= 0; n++ {
		}
		if n == 6 {
			b.WriteString(s[:6])
			return 6, yes
		}
		if n == len(s) && !final {
			return 0, unsure
		}
	}
	b.WriteString(`\\`)
	return 1, yes
}

// endsString reports whether a quote ends its string, judging by the text after it.
func (w *writer) endsString(s string, final bool) verdict {
	if w.name {
		return yes
	}
	after := strings.TrimLeft(s, blanks)
	if after == "" {
		return atEnd(final, yes)
	}
	gap := s[:len(s)-len(after)]
	switch c := after[0]; {
	case c == '}':
		return yes
	case c == ']':
		return is(strings.IndexByte(string(w.stack), '[') >= 0)
	case c == ',' && w.stack[len(w.stack)-1] == '[':
		return yes
	case c == ',':
		return beginsMember(strings.TrimLeft(after[1:], blanks), final)
	case after == "/" && !final:
		return unsure
	case strings.HasPrefix(after, "//"), strings.HasPrefix(after, "/*"):
		return yes
	case c == '#':
		return is(gap != "")
	case c == '"', c == '\'', c == '`':
		return is(strings.Contains(gap, "\n"))
	}
	return startsWith(after, w.ends, final)
}

// beginsMember reports whether a member of an object, or its closing bracket, may start here.
func beginsMember(s string, final bool) verdict {
	n := 0
	for n < len(s) && wordy(s[n]) {
		n++
	}
	after := strings.TrimLeft(s[n:], blanks)
	switch {
	case s == "" || n > 0 && after == "":
		return atEnd(final, is(s == ""))
	case n > 0:
		return is(after[0] == ':')
	}
	return is(strings.IndexByte(`"'},/#`, s[0]) >= 0)
}

// endsCall reports whether s, inside an open string, starts with a mark that ends the call. A mark
// is text if the string continues after it up to a closing quote.
func (w *writer) endsCall(s string, final bool) verdict {
	for _, mark := range w.ends {
		rest, whole := strings.CutPrefix(s, mark)
		if !whole {
			if !final && strings.HasPrefix(mark, s) {
				return unsure
			}
			continue
		}
		after := strings.TrimLeft(rest, blanks)
		if after == "" {
			return atEnd(final, yes)
		}
		if v := w.opens(after, final); v != no {
			return v
		}
		for i := 0; i < len(rest); i++ {
			switch c := rest[i]; c {
			case '\\':
				i++
			case w.quote:
				if v := w.endsString(rest[i+1:], final); v != no {
					return v.not()
				}
			default:
				if v := w.opens(rest[i:], final); v != no {
					return v
				}
			}
		}
		return atEnd(final, yes)
	}
	return no
}
