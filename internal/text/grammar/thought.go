package grammar

// Values of Spec.Thought.
const (
	ThoughtBegun = "begun" // the prompt has opened a thought: the text begins inside of it
	ThoughtMay   = "may"   // the text may begin with a thought
)

// The marks of a thought.
const (
	thoughtOpen  = "<think>"
	thoughtClose = "</think>"
)

// ThoughtMarks are the texts between which a model thinks. A vocabulary may have them as
// control tokens, see Vocabulary.Mark.
func ThoughtMarks() []string { return []string{thoughtOpen, thoughtClose} }

// blanksAfter bounds the white space between a thought and what a grammar asks for.
const blanksAfter = 8

// afterThought lets a thought come before a grammar of any kind: it is any text up to the
// first closing mark, and no part of the grammar.
func (m *machine) afterThought(how string, top eid) eid {
	name, rest := m.rule()
	m.rules[name] = m.seq(m.lex(m.repeat(m.set(blanks()), 0, blanksAfter)), top)
	m.thought = m.frame(rest, noFrame)
	end := m.literal(thoughtClose)
	thought := m.seq(m.lex(m.until(end, end)), rest)
	if how == ThoughtBegun {
		return thought
	}
	return m.alt(m.seq(m.text(thoughtOpen), thought), top)
}

// mark is the text that a control token means after a state: the opening mark at the start,
// the closing one inside of a thought. "": the token may not come.
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
			if t.k == m.thought && m.step(t.r, thoughtClose[0]) != rEmpty {
				return thoughtClose
			}
		}
	}
	return ""
}
