package generate

import (
	"strconv"
	"strings"

	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/text/toolcall"
)

// Call is a call that the model made, or, without a name, more arguments of one.
type Call struct {
	Name      string
	Arguments []byte
	Index     int
	Id        string
	at        int // bytes of its delta's text that come before it
}

// ToolCall is a tool call with OpenAI's field names.
type ToolCall struct {
	ID       string `json:"id,omitempty"`
	Type     string `json:"type,omitempty"`
	Function struct {
		Name      string `json:"name,omitempty"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

// CallDelta is one in a stream, or more of its arguments.
type CallDelta struct {
	Index int `json:"index"`
	ToolCall
}

func (c Call) ToolCall() ToolCall {
	out := ToolCall{ID: c.Id}
	if c.Name != "" {
		out.Type = "function"
	}
	out.Function.Name, out.Function.Arguments = c.Name, string(c.Arguments)
	return out
}

// FinishCalls is the finish_reason of an answer with calls that its limit did not cut. A
// client's stop may have ended it, but not within the arguments of a call.
const FinishCalls = "tool_calls"

// parts takes the text of one choice apart. The ids of calls are derived from the request's id.
type parts struct {
	think  *toolcall.ThoughtParser
	spoke  bool // the answer has text other than blanks
	parser *toolcall.Parser
	tok    engine.Tokenizer // nil: control tokens are shown
	id     func(n int) string
	calls  int
	single bool
}

func (s *Service) newParts(g *Request, index int) *parts {
	framed := s.dialect(g.Tools).family == toolcall.Harmony // every answer, also without tools
	if g.Tools == nil && !g.thinking.on && !framed {
		return nil
	}
	p := &parts{}
	if !g.KeepSpecial {
		p.tok = s.Tokenizer
	}
	if t := g.thinking; g.separatesThoughts() {
		late := !t.closed && g.Sampling.Grammar == nil && (!g.Stream || s.dialect(g.Tools).late)
		p.think = toolcall.NewThoughtParser(t.tags, t.inside, late)
	}
	if g.Tools == nil {
		if framed {
			p.parser = toolcall.New(toolcall.Harmony, nil)
		}
		return p
	}
	family := s.family
	if family == toolcall.None || g.Tools.forced && family != toolcall.Hermes && g.callHead == "" {
		family = toolcall.JSON
	}
	p.parser, p.single = toolcall.New(family, g.Tools.Known), g.Tools.Single
	p.parser.Push(g.callHead)
	p.id = func(n int) string {
		text := g.sequenceID(index) + "-" + strconv.Itoa(n)
		if s.family == toolcall.Mistral {
			return hashed(text, 9)
		}
		return "call_" + hashed(text, 24)
	}
	return p
}

// separatesThoughts reports whether the answer may have a thought in tags. A grammar supports no tags but the default
// ones.
func (g *Request) separatesThoughts() bool {
	return g.thinking.on && (g.thinking.tags == toolcall.DefaultTags || g.Sampling.Grammar == nil)
}

// marks reports whether a token is a control token that is hidden otherwise, and is a mark of a call or of
// a thought: the model may write those as text or as tokens.
func (p *parts) marks(id int32) bool {
	if p == nil || p.tok == nil || !p.tok.IsSpecial(id) {
		return false
	}
	t := p.tok.Token(id)
	return t != "" && (p.think.Begins(t) && !p.spoke || p.think.Ends(t) && p.think.Open() || p.parser != nil && p.parser.Marks(t))
}

// note takes the text of a token that is no such mark.
func (p *parts) note(text string) {
	if p != nil {
		p.spoke = p.spoke || strings.TrimSpace(text) != ""
	}
}

// take puts the text of a delta where it belongs.
func (p *parts) take(d *Delta) {
	text := d.Text
	d.Text = ""
	if p.think != nil {
		d.Thought, text = p.think.Push(text)
		if d.Finish != "" {
			thought, rest := p.think.Flush()
			d.Thought, text = d.Thought+thought, text+rest
		}
	}
	if p.parser == nil {
		d.Text = text
		return
	}
	pieces := p.parser.Push(text)
	if d.Finish != "" {
		pieces = append(pieces, p.parser.Flush(d.Finish == engine.FinishLength || d.Reason != nil)...)
	}
	for _, x := range pieces {
		d.Text, d.Thought = d.Text+x.Text, d.Thought+x.Thought
		if x.Call != nil {
			if p.calls++; !p.single || p.calls == 1 {
				d.call(Call{Name: x.Call.Name, Arguments: []byte(x.Call.Arguments), Index: p.calls - 1, Id: p.id(p.calls - 1), at: len(d.Text)})
			}
		}
		if x.Arguments != "" && (!p.single || p.calls == 1) {
			d.call(Call{Arguments: []byte(x.Arguments), Index: p.calls - 1, at: len(d.Text)})
		}
	}
	whole := !p.parser.Open() || p.single && p.calls > 1
	if d.Finish == engine.FinishStop && p.calls > 0 && whole {
		d.Finish = FinishCalls
	}
}

// InOrder passes on the text and the calls of a delta in the order in which the model wrote them.
func (d *Delta) InOrder(text func(string), call func(Call)) {
	from := 0
	for _, c := range d.Calls {
		if c.at > from {
			text(d.Text[from:c.at])
			from = c.at
		}
		call(c)
	}
	if from < len(d.Text) {
		text(d.Text[from:])
	}
}

// Add joins another delta. OpenAI's answers keep calls and text apart, so places within the text
// are dropped.
func (d *Delta) Add(o Delta) {
	d.Tokens = append(d.Tokens, o.Tokens...)
	for _, c := range o.Calls {
		d.call(c)
	}
	d.Thought += o.Thought
}

// call adds a call, or to the newest one.
func (d *Delta) call(c Call) {
	if n := len(d.Calls); c.Name == "" && n > 0 {
		d.Calls[n-1].Arguments = append(d.Calls[n-1].Arguments, c.Arguments...)
		return
	}
	d.Calls = append(d.Calls, c)
}
