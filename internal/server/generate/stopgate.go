package generate

import (
	"strings"

	"github.com/shoal-llm/shoal/internal/text/toolcall"
)

// stopGate keeps stop strings from being found in a thought: Anthropic's stop sequences are of
// the text alone. It has one of the parsers. A nil gate lets all text through.
type stopGate struct {
	channels *toolcall.Channels
	think    *toolcall.ThoughtParser
	held     string // may be the beginning of a thought's opening tag
	begun    bool   // a thought has begun
	over     bool   // the answer has begun
}

// newStopGate returns the gate for the answer to a request; nil: it needs none.
func (s *Service) newStopGate(g *Request) *stopGate {
	if !g.StopsInAnswer || len(g.stop) == 0 {
		return nil
	}
	if s.dialect(g.Tools).family == toolcall.Harmony {
		gate := &stopGate{channels: new(toolcall.Channels)}
		gate.channels.Push(g.callHead)
		return gate
	}
	if !g.separatesThoughts() {
		return nil
	}
	return &stopGate{think: toolcall.NewThoughtParser(g.thinking.tags, g.thinking.inside, false)}
}

// split takes more text. It returns spans of thoughts, markup included, and of the answer, in which stop strings
// are searched.
func (g *stopGate) split(piece string) []toolcall.Span {
	if g != nil && g.channels != nil {
		return g.channels.Push(piece)
	}
	if g == nil || g.over {
		return []toolcall.Span{{Text: piece, Answer: true}}
	}
	some, answer := g.think.Push(piece)
	buf := g.held + piece
	g.held, g.begun = "", g.begun || some != "" || g.think.Inside()
	switch {
	case answer != "":
		g.over = true
		return []toolcall.Span{{Text: strings.TrimSuffix(buf, answer)}, {Text: answer, Answer: true}}
	case g.begun:
		return []toolcall.Span{{Text: buf}}
	}
	g.held = buf
	return nil
}

// flush returns the held text. No thought began with it.
func (g *stopGate) flush() []toolcall.Span {
	if g != nil && g.channels != nil {
		return g.channels.Flush()
	}
	if g == nil || g.held == "" {
		return nil
	}
	text := g.held
	g.held = ""
	return []toolcall.Span{{Text: text, Answer: true}}
}
