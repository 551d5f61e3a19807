package api

import (
	"strconv"
	"strings"

	"github.com/shoal-llm/shoal/internal/text/toolcall"
)

// madeCall is a call that the model made, or, without a name, more arguments of one.
type madeCall struct {
	name      string
	arguments []byte
	index     int
	id        string
	at        int // bytes of its delta's text that come before it
}

// ToolCall is one in OpenAI's words.
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

func (c madeCall) toolCall() ToolCall {
	out := ToolCall{ID: c.id}
	if c.name != "" {
		out.Type = "function"
	}
	out.Function.Name, out.Function.Arguments = c.name, string(c.arguments)
	return out
}

// finishCalls is the finish_reason of an answer with calls that its limit did not cut. A
// client's stop may have ended it, but not within the arguments of a call.
const finishCalls = "tool_calls"

// parts takes the text of one choice apart. Ids of calls follow from the request's.
type parts struct {
	think  *toolcall.Thinker
	spoke  bool // the answer has text that is no blank
	parser *toolcall.Parser
	tok    Tokenizer // nil: control tokens are shown
	id     func(n int) string
	calls  int
	single bool
}

func (s *Service) newParts(g *generation, index int) *parts {
	if g.tools == nil && !g.thinking.on {
		return nil
	}
	p := &parts{}
	if !g.keepSpecial {
		p.tok = s.tok
	}
	if t := g.thinking; t.on {
		late := !t.closed && g.sampling.Grammar == nil && (!g.stream || s.dialect(g.tools).late)
		p.think = toolcall.NewThinker(t.inside, late)
	}
	if g.tools == nil {
		return p
	}
	family := s.family
	if family == toolcall.None || g.tools.forced && family != toolcall.Hermes {
		family = toolcall.JSON
	}
	p.parser, p.single = toolcall.New(family, g.tools.known), g.tools.single
	p.id = func(n int) string {
		text := g.sequenceID(index) + "-" + strconv.Itoa(n)
		if s.family == toolcall.Mistral {
			return hashed(text, 9)
		}
		return "call_" + hashed(text, 24)
	}
	return p
}

// mark is the text of a control token that is hidden otherwise, if it is a mark of a call or of
// a thought: the model may write those as text or as tokens. before is the text that comes with it.
func (p *parts) mark(id int32, before string) string {
	if p == nil || p.tok == nil {
		return ""
	}
	t := ""
	if p.tok.IsSpecial(id) {
		t = p.tok.Token(id)
	}
	p.spoke = p.spoke || strings.TrimSpace(before) != ""
	switch {
	case t == "":
	case t == toolcall.ThinkOpen && p.think != nil && !p.spoke, t == toolcall.ThinkClose && p.think.Open(), p.parser != nil && p.parser.Marks(t):
		return t
	}
	return ""
}

// take puts the text of a delta where it belongs.
func (p *parts) take(d *delta) {
	text := d.text
	d.text = ""
	if p.think != nil {
		d.thought, text = p.think.Push(text)
		if d.finish != "" {
			thought, rest := p.think.Flush()
			d.thought, text = d.thought+thought, text+rest
		}
	}
	if p.parser == nil {
		d.text = text
		return
	}
	pieces := p.parser.Push(text)
	if d.finish != "" {
		pieces = append(pieces, p.parser.Flush(d.finish == FinishLength || d.reason != nil)...)
	}
	for _, x := range pieces {
		d.text += x.Text
		if x.Call != nil {
			if p.calls++; !p.single || p.calls == 1 {
				d.call(madeCall{name: x.Call.Name, arguments: []byte(x.Call.Arguments), index: p.calls - 1, id: p.id(p.calls - 1), at: len(d.text)})
			}
		}
		if x.Arguments != "" && (!p.single || p.calls == 1) {
			d.call(madeCall{arguments: []byte(x.Arguments), index: p.calls - 1, at: len(d.text)})
		}
	}
	whole := !p.parser.Open() || p.single && p.calls > 1
	if d.finish == FinishStop && p.calls > 0 && whole {
		d.finish = finishCalls
	}
}

// inOrder passes on the text and the calls of a delta in the order in which the model wrote them.
func (d *delta) inOrder(text func(string), call func(madeCall)) {
	from := 0
	for _, c := range d.calls {
		if c.at > from {
			text(d.text[from:c.at])
			from = c.at
		}
		call(c)
	}
	if from < len(d.text) {
		text(d.text[from:])
	}
}

// add joins what the shapes of OpenAI's chats show of another delta. They keep calls and text
// apart, so places within the text are not kept.
func (d *delta) add(o delta) {
	d.tokens = append(d.tokens, o.tokens...)
	for _, c := range o.calls {
		d.call(c)
	}
	d.thought += o.thought
}

// call adds a call, or to the newest one.
func (d *delta) call(c madeCall) {
	if n := len(d.calls); c.name == "" && n > 0 {
		d.calls[n-1].arguments = append(d.calls[n-1].arguments, c.arguments...)
		return
	}
	d.calls = append(d.calls, c)
}
