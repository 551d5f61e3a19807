package grammar

import "github.com/shoal-llm/shoal/internal/text/grammar/regex"

// Values of Spec.Thought.
const (
	ThoughtBegun    = "begun" // the prompt has opened a thought: the text starts inside it
	ThoughtOptional = "may"   // the text may start with a thought
)

// Marks of a thought.
const (
	thoughtOpen  = "<think>"
	thoughtClose = "</think>"
)

// Marks returns the marks around a thought, and those of tool calls that grammars contain. A vocabulary
// may have them as control tokens, see Vocabulary.Mark.
func Marks() []string {
	return []string{thoughtOpen, thoughtClose, "<|constrain|>", "<|message|>", "<|END_ACTION|>"}
}

// blanksAfter is the maximum white space between a thought and the grammar's text.
const blanksAfter = 8

// afterThought allows a thought before a grammar of any kind. It is any text up to the first
// closing mark and not part of the grammar.
func (m *machine) afterThought(how string, top exprID) exprID {
	name, rest := m.rule()
	m.rules[name] = m.seq(m.lex(m.Repeat(m.Set(blanks()), 0, blanksAfter)), top)
	m.thought = m.frame(rest, noFrame)
	end := m.Literal(thoughtClose)
	thought := m.seq(m.lex(m.Until(end, end)), rest)
	if how == ThoughtBegun {
		return thought
	}
	return m.alt(m.seq(m.text(thoughtOpen), thought), top)
}

// mark returns the text of a control token after a state: the opening mark of a thought at the start, the
// closing one inside a thought, another one where no other text may follow. "" means that the token is
// not allowed.
func (m *machine) mark(v *Vocabulary, s *state, token int32) string {
	switch text := v.marks[token]; text {
	case "":
	case thoughtOpen:
		if s == m.start && m.thought != noFrame {
			return thoughtOpen
		}
	case thoughtClose:
		if m.thought == noFrame {
			return ""
		}
		for _, t := range s.threads {
			if t.k == m.thought && m.Step(t.r, thoughtClose[0]) != regex.Empty {
				return thoughtClose
			}
		}
	default:
		for c := range 256 {
			if byte(c) != text[0] && m.advance(s, byte(c)) != dead {
				return ""
			}
		}
		return text
	}
	return ""
}
