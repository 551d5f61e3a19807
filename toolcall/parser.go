package toolcall

import (
	"encoding/json"
	"strings"
)

// Parser finds the calls of one answer. The zero value is not ready.
type Parser struct {
	family Family
	tools  map[string]Tool
	open   string // what begins calls; "": they are the whole answer
	end    string // what ends them; "": the end of the answer does

	held    string // text that may be the beginning of a mark, or a call that is not whole
	blank   string // blanks that are dropped when a call follows
	inside  bool
	decided bool // of whole answers: it is text
	calls   int
}

// New is a parser for the calls of some tools.
func New(f Family, tools map[string]Tool) *Parser {
	p := &Parser{family: f, tools: tools}
	switch f {
	case Hermes:
		p.open, p.end = "<tool_call>", "</tool_call>"
	case Mistral:
		p.open = "[TOOL_CALLS]"
	case DeepSeek:
		p.open, p.end = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
	}
	return p
}

// Calls is how many there were.
func (p *Parser) Calls() int { return p.calls }

// Marks tells whether a control token means something to the parser: its text belongs
// into Push though it is none of the answer's.
func (p *Parser) Marks(token string) bool {
	switch p.family {
	case Hermes:
		return token == p.open || token == p.end
	case Mistral:
		return token == p.open || token == "[ARGS]" || token == "[CALL_ID]"
	case DeepSeek:
		return strings.HasPrefix(token, "<｜tool▁")
	case Llama, Pythonic:
		return token == pythonTag || token == "<|python_start|>" || token == "<|python_end|>"
	}
	return false
}

const pythonTag = "<|python_tag|>"

// Push returns what is certain after more text.
func (p *Parser) Push(text string) (out []Piece) {
	buf := p.held + text
	p.held = ""
	if p.open == "" {
		if !p.decided {
			s := strings.TrimLeft(buf, " \t\r\n")
			if s == "" || s[0] == '{' || s[0] == '[' || s[0] == '<' || s[0] == '`' {
				p.held = buf
				return nil
			}
			p.decided = true
		}
		return p.text(nil, buf)
	}
	for {
		if !p.inside {
			at := strings.Index(buf, p.open)
			if at < 0 {
				keep := len(buf) - partial(buf, p.open)
				p.held = buf[keep:]
				return p.text(out, buf[:keep])
			}
			out = p.text(out, buf[:at])
			p.inside, buf = true, buf[at+len(p.open):]
			continue
		}
		if p.end == "" {
			p.held = buf
			return out
		}
		from, whole := 0, false
		for {
			at := strings.Index(buf[from:], p.end)
			if at < 0 {
				break
			}
			at += from
			calls, more := p.read(buf[:at])
			if more { // the mark stands inside of a string
				from = at + len(p.end)
				continue
			}
			if calls == nil {
				out = p.text(out, p.open+buf[:at]+p.end)
			} else {
				out = p.called(out, calls)
			}
			p.inside, whole, buf = false, true, buf[at+len(p.end):]
			break
		}
		if !whole {
			p.held = buf
			return out
		}
	}
}

// Flush returns what was held back: nothing more comes.
func (p *Parser) Flush() (out []Piece) {
	buf := p.held
	p.held = ""
	if p.open == "" && !p.decided || p.inside {
		if calls, _ := p.read(buf); calls != nil {
			return p.called(nil, calls)
		}
		if p.inside {
			buf = p.open + buf
		}
	}
	out = p.text(nil, buf)
	if p.blank != "" && p.calls == 0 {
		out = append(out, Piece{Text: p.blank})
	}
	p.blank = ""
	return out
}

// text holds blanks back until it is known that text follows them.
func (p *Parser) text(out []Piece, s string) []Piece {
	s = p.blank + s
	solid := strings.TrimRight(s, " \t\r\n")
	p.blank = s[len(solid):]
	if solid == "" {
		return out
	}
	return append(out, Piece{Text: solid})
}

func (p *Parser) called(out []Piece, calls []Call) []Piece {
	p.blank = ""
	for i := range calls {
		p.calls++
		out = append(out, Piece{Call: &calls[i]})
	}
	return out
}

// read returns the calls of a body, nil when it is none; more: it may be one when more
// has come.
func (p *Parser) read(body string) (calls []Call, more bool) {
	switch p.family {
	case Hermes:
		s := strings.TrimSpace(body)
		if strings.HasPrefix(s, "<function=") {
			return p.xml(s), false
		}
		return p.json(s)
	case Mistral:
		return p.mistral(body), false
	case DeepSeek:
		return p.deepSeek(body), false
	}
	s := strings.TrimSpace(body)
	for _, mark := range [...]string{pythonTag, "<|python_start|>"} {
		s = strings.TrimSpace(strings.TrimPrefix(s, mark))
	}
	s = strings.TrimSpace(strings.TrimSuffix(s, "<|python_end|>"))
	if rest, ok := strings.CutPrefix(s, "```"); ok { // a block of code
		_, rest, _ = strings.Cut(rest, "\n")
		s = strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "```"))
	}
	if calls, _ = p.json(s); calls == nil {
		calls = p.pythonic(s)
	}
	return calls, false
}

// json reads a call, a list of calls, or several with semicolons, commas or blanks
// between them.
func (p *Parser) json(s string) (calls []Call, more bool) {
	for rest := s; rest != ""; {
		d := json.NewDecoder(strings.NewReader(rest))
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return nil, strings.Contains(err.Error(), "unexpected EOF")
		}
		list := []json.RawMessage{raw}
		if raw[0] == '[' && json.Unmarshal(raw, &list) != nil {
			return nil, false
		}
		for _, one := range list {
			c, ok := p.one(one)
			if !ok {
				return nil, false
			}
			calls = append(calls, c)
		}
		rest = strings.TrimLeft(rest[d.InputOffset():], " \t\r\n;,")
	}
	return calls, false
}

func (p *Parser) one(raw json.RawMessage) (Call, bool) {
	var c struct {
		Name       string          `json:"name"`
		Arguments  json.RawMessage `json:"arguments"`
		Parameters json.RawMessage `json:"parameters"`
		Function   json.RawMessage `json:"function"`
	}
	if raw[0] != '{' || json.Unmarshal(raw, &c) != nil {
		return Call{}, false
	}
	if c.Name == "" && len(c.Function) > 0 { // {"function": "f", ...}, or as in OpenAI's API
		if json.Unmarshal(c.Function, &c.Name) != nil {
			return p.one(c.Function)
		}
	}
	args := c.Arguments
	if len(args) == 0 {
		args = c.Parameters
	}
	return p.call(c.Name, string(args))
}

// call checks a name and arguments.
func (p *Parser) call(name, args string) (Call, bool) {
	if _, ok := p.tools[name]; !ok {
		return Call{}, false
	}
	if args = strings.TrimSpace(args); args == "" || args == "null" {
		args = "{}"
	}
	var text string
	if args[0] == '"' && json.Unmarshal([]byte(args), &text) == nil {
		args = strings.TrimSpace(text)
	}
	if args == "" || args[0] != '{' || !json.Valid([]byte(args)) {
		return Call{}, false
	}
	return Call{name, args}, true
}

// mistral reads what follows [TOOL_CALLS]: a list, or calls as name[ARGS]{...}.
func (p *Parser) mistral(s string) (calls []Call) {
	if t := strings.TrimSpace(s); strings.HasPrefix(t, "[") || strings.HasPrefix(t, "{") {
		calls, _ := p.json(t)
		return calls
	}
	for _, part := range strings.Split(s, p.open) {
		at := strings.IndexByte(part, '{')
		if at < 0 {
			return nil
		}
		name := strings.TrimSpace(part[:at])
		name = strings.TrimSpace(strings.TrimSuffix(name, "[ARGS]"))
		name, _, _ = strings.Cut(name, "[CALL_ID]")
		c, ok := p.call(strings.TrimSpace(name), part[at:])
		if !ok {
			return nil
		}
		calls = append(calls, c)
	}
	return calls
}

func (p *Parser) deepSeek(s string) (calls []Call) {
	const begin, sep, end = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
	for s = strings.TrimSpace(s); s != ""; s = strings.TrimSpace(s) {
		body, ok := strings.CutPrefix(s, begin)
		if !ok {
			return nil
		}
		body, s, ok = strings.Cut(body, end)
		name, args, split := strings.Cut(body, sep)
		if !ok && s != "" || !split {
			return nil
		}
		if strings.TrimSpace(name) == "function" { // V3 and R1: the kind, then name and a block of code
			var found bool
			if name, args, found = strings.Cut(args, "\n"); !found {
				return nil
			}
			args = strings.TrimSpace(args)
			args = strings.TrimPrefix(strings.TrimPrefix(args, "```json"), "```")
			args = strings.TrimSuffix(args, "```")
		}
		c, valid := p.call(strings.TrimSpace(name), args)
		if !valid {
			return nil
		}
		calls = append(calls, c)
	}
	return calls
}

// xml reads Qwen3-Coder's <function=name><parameter=key>value</parameter></function>.
func (p *Parser) xml(s string) []Call {
	s, ok := strings.CutPrefix(s, "<function=")
	if !ok {
		return nil
	}
	name, s, ok := strings.Cut(s, ">")
	if !ok {
		return nil
	}
	name = strings.TrimSpace(name)
	var args strings.Builder
	args.WriteByte('{')
	for n := 0; ; n++ {
		s = strings.TrimSpace(s)
		if s == "" || s == "</function>" {
			break
		}
		var key, value string
		if s, ok = strings.CutPrefix(s, "<parameter="); !ok {
			return nil
		}
		if key, s, ok = strings.Cut(s, ">"); !ok {
			return nil
		}
		if value, s, ok = strings.Cut(s, "</parameter>"); !ok {
			return nil
		}
		value = strings.TrimSuffix(strings.TrimPrefix(value, "\n"), "\n")
		if n > 0 {
			args.WriteString(", ")
		}
		args.WriteString(quoted(key) + ": ")
		if p.tools[name].Strings[key] || !json.Valid([]byte(value)) {
			args.WriteString(quoted(value))
		} else {
			args.WriteString(strings.TrimSpace(value))
		}
	}
	args.WriteByte('}')
	c, ok := p.call(name, args.String())
	if !ok {
		return nil
	}
	return []Call{c}
}

func quoted(s string) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // a string always can be
	return strings.TrimSuffix(b.String(), "\n")
}
