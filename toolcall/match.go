package toolcall

import (
	"encoding/json"
	"strings"
)

// match reads the beginning of a text that may go on.
type match struct {
	s     string
	at    int
	short bool // the text ended before it was known what it says
}

func (p *Parser) matcher() match { return match{s: p.buf} }

// blank skips blanks; it always is true.
func (m *match) blank() bool {
	for m.at < len(m.s) && strings.IndexByte(" \t\r\n", m.s[m.at]) >= 0 {
		m.at++
	}
	return true
}

func (m *match) lit(word string) bool {
	left := m.s[m.at:]
	if strings.HasPrefix(left, word) {
		m.at, m.short = m.at+len(word), false
		return true
	}
	m.short = m.short || strings.HasPrefix(word, left)
	return false
}

// until reads what stands before a mark, and the mark.
func (m *match) until(mark string) (string, bool) {
	before, _, ok := strings.Cut(m.s[m.at:], mark)
	if m.short = !ok; ok {
		m.at += len(before) + len(mark)
	}
	return before, ok
}

func (m *match) str() (text string, ok bool) {
	if !m.lit(`"`) {
		return "", false
	}
	for i := m.at; i < len(m.s); i++ {
		switch m.s[i] {
		case '\\':
			i++
		case '"':
			ok = json.Unmarshal([]byte(m.s[m.at-1:i+1]), &text) == nil
			m.at = i + 1
			return text, ok
		}
	}
	m.short = true
	return "", false
}

// separators skips what may stand before and between calls, and returns what is left.
func (m *match) separators(p *Parser) string {
	marks, set := []string{"```json", "```python", "```", pythonTag, pythonStart, pythonEnd}, " \t\r\n,;[]"
	switch p.family {
	case Hermes, Mistral:
		marks = nil
	case DeepSeek:
		marks, set = []string{"```", callEnd}, " \t\r\n"
	}
	for again := true; again; {
		for again = false; m.at < len(m.s) && strings.IndexByte(set, m.s[m.at]) >= 0 && !m.begins(p.open); m.at++ {
		}
		for _, mark := range marks {
			again = again || m.lit(mark)
		}
	}
	return m.s[m.at:]
}

// begins tells whether a mark stands here, as far as the text goes.
func (m *match) begins(mark string) bool {
	left := m.s[m.at:]
	return mark != "" && (strings.HasPrefix(left, mark) || strings.HasPrefix(mark, left))
}

// object reads a JSON object up to the arguments, where the name comes first.
func (m *match) object() (name string) {
	if !(m.lit("{") && m.blank() && m.lit(`"name"`) && m.blank() && m.lit(":") && m.blank()) {
		return ""
	}
	name, ok := m.str()
	if ok && m.blank() && m.lit(",") && m.blank() && (m.lit(`"arguments"`) || m.lit(`"parameters"`)) && m.blank() && m.lit(":") && m.blank() {
		return name
	}
	return ""
}

// mistral reads name[CALL_ID]id[ARGS], the marks if they are there.
func (m *match) mistral() string {
	at := strings.IndexAny(m.s[m.at:], "[{ \t\r\n")
	if at < 0 {
		m.short = true
		return ""
	}
	name := m.s[m.at : m.at+at]
	m.at += at
	if m.lit("[CALL_ID]") {
		if _, ok := m.until("[ARGS]"); !ok {
			return ""
		}
	} else if !m.lit("[ARGS]") && m.short && m.at < len(m.s) {
		return "" // a mark that is not whole
	}
	m.blank()
	return name
}

const callEnd = "<｜tool▁call▁end｜>"

// deepSeek reads a mark, a name, another mark; V3 and R1 put the kind there, then the name
// and a block of code.
func (m *match) deepSeek() string {
	if !m.lit("<｜tool▁call▁begin｜>") {
		return ""
	}
	name, ok := m.until("<｜tool▁sep｜>")
	if !ok {
		return ""
	}
	if strings.TrimSpace(name) == "function" {
		if name, ok = m.until("\n"); !ok {
			return ""
		}
		m.blank()
		if m.lit("```") && !m.lit("json") && m.short && m.at < len(m.s) {
			return ""
		}
	}
	m.blank()
	return strings.TrimSpace(name)
}

// span follows a JSON object through its brackets and strings.
type span struct {
	depth           int
	quoted, escaped bool
}

// take is how many bytes of s belong to the object; over: it ends there, or what follows
// can stand in no JSON.
func (x *span) take(s string) (n int, over bool) {
	for i := range len(s) {
		c := s[i]
		switch {
		case x.escaped:
			x.escaped = false
		case x.quoted:
			if c < ' ' {
				return i, true
			}
			x.escaped, x.quoted = c == '\\', c != '"'
		case c == '"':
			x.quoted = true
		case c == '{', c == '[':
			x.depth++
		case c == '}', c == ']':
			if x.depth--; x.depth == 0 {
				return i + 1, true
			}
		case strings.IndexByte(" \t\r\n,:+-.0123456789truefalsnE", c) < 0:
			return i, true
		}
	}
	return len(s), false
}
