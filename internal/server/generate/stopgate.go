package generate

import (
	"strings"

	"github.com/shoal-llm/shoal/internal/text/toolcall"
)

// stopGate keeps stop strings from being found in a thought: Anthropic's stop sequences are of
// the text alone. A nil gate lets all text through.
type stopGate struct {
	think *toolcall.ThoughtParser
	held  string // may be the beginning of a thought's opening tag
	begun bool   // a thought has begun
	over  bool   // the answer has begun
}

// split takes more text. It returns text of the thought, markup included, and text of the answer,
// in which stop strings are searched.
func (g *stopGate) split(piece string) (thought, text string) {
	if g == nil || g.over {
		return "", piece
	}
	some, answer := g.think.Push(piece)
	buf := g.held + piece
	g.held, g.begun = "", g.begun || some != "" || g.think.Inside()
	switch {
	case answer != "":
		g.over = true
		return strings.TrimSuffix(buf, answer), answer
	case g.begun:
		return buf, ""
	}
	g.held = buf
	return "", ""
}

// flush returns the held text: no thought began with it.
func (g *stopGate) flush() (text string) {
	if g != nil {
		text, g.held = g.held, ""
	}
	return text
}
