package toolcall

import (
	"encoding/json"
	"strings"
)

// match parses the start of a text that may continue.
type match struct {
	s     string
	at    int
	short bool // the text ended before the parse was decided
	final bool // no more text follows
}

// blank skips white space and returns true.
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
	m.short = m.short || !m.final && strings.HasPrefix(word, left)
	return false
}

// until returns the text before a mark, and skips the mark.
func (m *match) until(mark string) (string, bool) {
	before, _, ok := strings.Cut(m.s[m.at:], mark)
	if m.short = !ok && !m.final; ok {
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
	m.short = !m.final
	return "", false
}

// separators skips the text that is allowed before and between calls, and returns the rest.
func (m *match) separators(p *Parser) string {
	marks, set := []string{fence, pythonTag, pythonStart, pythonEnd}, blanks+",;[]"
	switch p.family {
	case Hermes, Mistral, Phi, Nemotron, Cohere, CommandR:
		if marks = nil; p.block {
			marks = []string{fence}
		}
		if p.made && p.family == Hermes {
			marks = append(marks, functionEnd)
		}
	case DeepSeek, Kimi:
		marks, set = []string{fence, p.marks.callEnd}, blanks
	}
	if p.made {
		set += "}" // one too many
	}
	for again := true; again && !m.short; {
		for again = false; m.at < len(m.s) && strings.IndexByte(set, m.s[m.at]) >= 0 && !m.begins(p.open); m.at++ {
		}
		for _, mark := range marks {
			if again = m.lit(mark); again && mark == fence {
				m.language()
			}
			if again || m.short {
				break
			}
		}
	}
	return m.s[m.at:]
}

const fence = "```"

// language skips the language name after a fence, up to the end of its line.
func (m *match) language() {
	left := m.s[m.at:]
	word := strings.TrimLeft(left, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")
	switch {
	case word == "":
		m.short = !m.final
	case strings.IndexByte(blanks, word[0]) >= 0:
		m.at += len(left) - len(word)
	}
}

// begins reports whether a mark starts here, as far as the text shows.
func (m *match) begins(mark string) bool {
	left := m.s[m.at:]
	return mark != "" && (strings.HasPrefix(left, mark) || !m.final && strings.HasPrefix(mark, left))
}

// object parses a JSON object up to its arguments, if the name comes first.
func (m *match) object() (name string) {
	if !m.lit("{") {
		return ""
	}
	if m.blank(); m.lit(`"tool_call_id"`) {
		if !(m.blank() && m.lit(":") && m.blank()) {
			return ""
		}
		if _, ok := m.str(); !ok || !(m.lit(",") && m.blank()) {
			return ""
		}
	}
	if !((m.lit(`"name"`) || m.lit(`"tool_name"`)) && m.blank() && m.lit(":") && m.blank()) {
		return ""
	}
	name, ok := m.str()
	if ok && m.blank() && m.lit(",") && m.blank() && (m.lit(`"arguments"`) || m.lit(`"parameters"`)) && m.blank() && m.lit(":") && m.blank() {
		return name
	}
	return ""
}

// mistral parses name[CALL_ID]id[ARGS]; both marks are optional.
func (m *match) mistral() string {
	at := strings.IndexAny(m.s[m.at:], "[{ \t\r\n")
	if at < 0 && !m.final {
		m.short = true
		return ""
	}
	if at < 0 {
		at = len(m.s) - m.at
	}
	name := m.s[m.at : m.at+at]
	m.at += at
	if m.lit("[CALL_ID]") {
		if _, ok := m.until("[ARGS]"); !ok {
			return ""
		}
	} else if !m.lit("[ARGS]") && m.short && m.at < len(m.s) {
		return "" // an incomplete mark
	}
	m.blank()
	return name
}

// sectionMarks surround calls, each call, and separate a call's name from its arguments.
type sectionMarks struct{ open, end, call, name, callEnd string }

var (
	deepSeekMarks = sectionMarks{"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"}
	kimiMarks     = sectionMarks{"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
		"<|tool_call_argument_begin|>", "<|tool_call_end|>"}
)

// inSection parses a mark, a name, and another mark. DeepSeek V3 and R1 write the kind in place of
// the name, followed by the name and a code block. Kimi writes functions.NAME:NUMBER.
func (m *match) inSection(marks sectionMarks) string {
	if !m.lit(marks.call) {
		return ""
	}
	name, ok := m.until(marks.name)
	if !ok {
		return ""
	}
	if marks == kimiMarks {
		m.blank()
		name, _, _ = strings.Cut(strings.TrimPrefix(strings.TrimSpace(name), "functions."), ":")
		return strings.TrimSpace(name)
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

// scalar parses a value that is not an object in the place of a call's arguments.
func (m *match) scalar(p *Parser) (args string, ok bool) {
	left := m.s[m.at:]
	if left == "" {
		m.short = !m.final
		return "{}", m.final && !p.cut
	}
	if v := startsWith(left, append(p.ends[:len(p.ends):len(p.ends)], p.opens...), m.final); v != no {
		m.short = v == unsure
		return "{}", v == yes
	}
	for _, word := range []string{"null", "None", "[]"} {
		if m.lit(word) {
			return "{}", true
		}
	}
	if left[0] != '"' {
		return "", false
	}
	if text, ok := m.str(); ok {
		return object(quoted(text))
	}
	return "", false
}
