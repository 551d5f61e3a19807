package toolcall

import "strings"

// Span is a run of an answer's text. Answer: it is text of a message, or the arguments of a call; not a thought or
// markup.
type Span struct {
	Text   string
	Answer bool
}

// Spans separates the text of an answer from its thought, whose markup belongs to the thought. All spans together are
// the text that was pushed. A nil value has one span for each piece, of the answer.
type Spans struct {
	channels *Channels
	think    *ThoughtParser
	held     string // may be the beginning of a thought's opening tag
	begun    bool   // a thought has begun
	over     bool   // the answer has begun
}

// SpansOfChannels returns the spans of an answer of Harmony, which begins after head.
func SpansOfChannels(head string) *Spans {
	s := &Spans{channels: new(Channels)}
	s.channels.Push(head)
	return s
}

// SpansOfThought returns the spans of an answer that may begin with a thought.
func SpansOfThought(think *ThoughtParser) *Spans { return &Spans{think: think} }

// Push adds text and returns the spans that are certain.
func (s *Spans) Push(piece string) []Span {
	if s != nil && s.channels != nil {
		return s.channels.Push(piece)
	}
	if s == nil || s.over {
		return []Span{{piece, true}}
	}
	some, answer := s.think.Push(piece)
	buf := s.held + piece
	s.held, s.begun = "", s.begun || some != "" || s.think.Inside()
	switch {
	case answer != "":
		s.over = true
		return []Span{{strings.TrimSuffix(buf, answer), false}, {answer, true}}
	case s.begun:
		return []Span{{buf, false}}
	}
	s.held = buf
	return nil
}

// Flush ends the answer and returns the held text. No thought began with it.
func (s *Spans) Flush() []Span {
	if s != nil && s.channels != nil {
		return s.channels.Flush()
	}
	if s == nil || s.held == "" {
		return nil
	}
	text := s.held
	s.held = ""
	return []Span{{text, true}}
}
