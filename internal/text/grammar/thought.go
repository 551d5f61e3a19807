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

// ThoughtMarks returns the marks around a thought. A vocabulary may have them as control tokens,
// see Vocabulary.Mark.
func ThoughtMarks() []string { return []string{thoughtOpen, thoughtClose} }

// blanksAfter is the maximum white space between a thought and the grammar's text.
const blanksAfter = 8

// afterThought allows a thought before a grammar of any kind. It is any text up to the first
// closing mark and not part of the grammar.
func (m *machine) afterThought(how string, top exprID) exprID {
	name, rest := m.rule()
	m.rules[name] = m.seq(m.lex(m.Repeat(m.Set(blanks()), 0, blanksAfter)), top)
	m.thought = m.frame(rest, noFrame)
	end := m.Literal(thoughtClose)
	thought := m.seq(m.lex(m.until(end, end)), rest)
	if how == ThoughtBegun {
		return thought
	}
	return m.alt(m.seq(m.text(thoughtOpen), thought), top)
}

// mark returns the text of a control token after a state: the opening mark at the start, the
// closing one inside a thought. "" means that the token is not allowed.
func (m *machine) mark(v *Vocabulary, s *state, token int32) string {
	if m.thought == noFrame {
		return ""
	}
	switch v.marks[token] {
	case thoughtOpen:
		if s == m.start {
			return thoughtOpen
		}
	case thoughtClose:
		for _, t := range s.threads {
			if t.k == m.thought && m.Step(t.r, thoughtClose[0]) != regex.Empty {
				return thoughtClose
			}
		}
	}
	return ""
}
