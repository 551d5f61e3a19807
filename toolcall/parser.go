package toolcall

import (
	"encoding/json"
	"strings"
)

// Parser finds the calls of one answer. A call begins as soon as its name is known and its
// arguments begin as an object; they are passed on as they come. The zero value is not ready.
type Parser struct {
	family Family
	tools  map[string]Tool
	open   string // what begins calls; "": they are the whole answer
	end    string // what ends them; "": the end of the answer does

	at    place
	buf   string // text whose meaning is not certain yet
	blank string // blanks that are dropped when a call follows
	fresh bool   // no call has been found since open
	calls int

	span  span  // of the arguments, then of the object that they stand in
	after place // where the arguments end
	keys  int   // parameters of the call, of those that are not JSON
	name  string
}

// place is where in an answer the parser stands.
type place uint8

const (
	outside    place = iota // in text
	between                 // where a call, or the end of calls, is to come
	arguments               // in the arguments of a call
	rest                    // behind them, in the object that they stand in
	parameters              // in Qwen3-Coder's parameters
	odd                     // in what may be a call when it is whole
	over                    // in text to the end
)

// New is a parser for the calls of some tools.
func New(f Family, tools map[string]Tool) *Parser {
	p := &Parser{family: f, tools: tools, fresh: true}
	switch f {
	case Hermes:
		p.open, p.end = "<tool_call>", "</tool_call>"
	case Mistral:
		p.open = "[TOOL_CALLS]"
	case DeepSeek:
		p.open, p.end = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
	default:
		p.at = between
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
		return token == pythonTag || token == pythonStart || token == pythonEnd
	}
	return false
}

const (
	pythonTag   = "<|python_tag|>"
	pythonStart = "<|python_start|>"
	pythonEnd   = "<|python_end|>"
)

// Push returns what is certain after more text.
func (p *Parser) Push(text string) (out []Piece) {
	p.buf += text
	for p.step(&out) {
	}
	return out
}

// step goes on as far as one place reaches; false: more text is needed.
func (p *Parser) step(out *[]Piece) bool {
	switch p.at {
	case outside:
		at := strings.Index(p.buf, p.open)
		if at < 0 {
			p.text(out, len(p.buf)-partial(p.buf, p.open))
			return false
		}
		p.text(out, at)
		p.buf, p.at, p.fresh = p.buf[len(p.open):], between, true
		return true
	case between:
		return p.next(out)
	case arguments, rest:
		n, done := p.span.take(p.buf)
		if p.at == arguments && n > 0 {
			*out = append(*out, Piece{Arguments: p.buf[:n]})
		}
		if p.buf = p.buf[n:]; !done {
			return false
		}
		if p.at, p.after = p.after, between; p.at == rest {
			p.span = span{depth: 1}
		}
		return true
	case parameters:
		return p.parameter(out)
	case odd:
		return p.whole(out)
	}
	p.text(out, len(p.buf))
	return false
}

// Flush returns what was held back: nothing more comes.
func (p *Parser) Flush() (out []Piece) {
	switch p.at {
	case parameters:
		if s := strings.TrimSpace(p.buf); s == "" || strings.HasPrefix("</function>", s) {
			p.close(&out)
		}
		p.buf = ""
	case between, odd:
		if calls, _ := p.read(p.buf); calls != nil {
			p.called(&out, calls)
			p.buf = ""
		} else if m := p.matcher(); !p.fresh && m.separators(p) == "" {
			p.buf = "" // brackets that close a list
		}
		p.reopen()
	}
	p.text(&out, len(p.buf))
	if p.blank != "" && p.calls == 0 {
		out = append(out, Piece{Text: p.blank})
	}
	p.blank = ""
	return out
}

// reopen puts back the mark of what is no call.
func (p *Parser) reopen() {
	if p.fresh && p.buf != "" {
		p.buf = p.open + p.buf
	}
}

// text passes on n bytes, but holds blanks back until it is known that text follows them.
func (p *Parser) text(out *[]Piece, n int) {
	s := p.blank + p.buf[:n]
	p.buf = p.buf[n:]
	solid := strings.TrimRight(s, " \t\r\n")
	if p.blank = s[len(solid):]; solid != "" {
		*out = append(*out, Piece{Text: solid})
	}
}

func (p *Parser) called(out *[]Piece, calls []Call) {
	for i := range calls {
		p.blank, p.fresh = "", false
		p.calls++
		*out = append(*out, Piece{Call: &calls[i]})
	}
}

// next finds the beginning of a call, or the end of calls.
func (p *Parser) next(out *[]Piece) bool {
	m := p.matcher()
	left := m.separators(p)
	if p.open == "" && p.fresh && left != "" && strings.IndexByte("{[<`", strings.TrimLeft(p.buf, " \t\r\n")[0]) < 0 {
		p.at = over
		return true
	}
	if p.end != "" && m.lit(p.end) {
		if p.fresh {
			p.buf = p.open + p.buf // there is nothing in it: text
			n := len(p.open) + m.at
			p.text(out, n)
		} else {
			p.buf = p.buf[m.at:]
		}
		p.at = outside
		return true
	}
	name, after := p.head(&m)
	_, known := p.tools[name]
	switch {
	case name != "" && known && after == parameters:
		p.called(out, []Call{{Name: name}})
		p.buf, p.at, p.keys, p.name = p.buf[m.at:], parameters, 0, name
		return true
	case name != "" && known:
		start := m.at
		if m.lit("{") && m.blank() && (m.lit(`"`) || m.lit("}")) {
			p.called(out, []Call{{Name: name}})
			p.buf, p.at, p.after, p.span = p.buf[start:], arguments, after, span{}
			return true
		}
	case name != "":
		m.short = false
	}
	if m.short {
		return false
	}
	p.at = odd
	return true
}

// head reads what stands before the arguments of a call; after is what follows them.
func (p *Parser) head(m *match) (name string, after place) {
	switch p.family {
	case Hermes:
		if m.lit("<function=") {
			if name, ok := m.until(">"); ok {
				return strings.TrimSpace(name), parameters
			}
			return "", 0
		}
	case Mistral:
		if m.lit(p.open) {
			m.blank()
		}
		if m.at < len(m.s) && strings.IndexByte("{[", m.s[m.at]) < 0 {
			return m.mistral(), between
		}
	case DeepSeek:
		return m.deepSeek(), between
	}
	return m.object(), rest
}

// whole waits for the end of what is no call as they are written, and judges it then.
func (p *Parser) whole(out *[]Piece) bool {
	if p.end == "" {
		return false // the end of the answer
	}
	for from := 0; ; {
		at := strings.Index(p.buf[from:], p.end)
		if at < 0 {
			return false
		}
		at += from
		calls, more := p.read(p.buf[:at])
		if more { // the mark stands inside of a string
			from = at + len(p.end)
			continue
		}
		n := at + len(p.end)
		if calls != nil {
			p.called(out, calls)
			p.buf = p.buf[n:]
		} else {
			if p.fresh {
				n += len(p.open)
				p.reopen()
			}
			p.text(out, n)
		}
		p.at = outside
		return true
	}
}

// parameter reads one of Qwen3-Coder's <parameter=key>value</parameter>, or the end.
func (p *Parser) parameter(out *[]Piece) bool {
	m := p.matcher()
	m.blank()
	if m.lit("</function>") {
		p.buf = p.buf[m.at:]
		p.close(out)
		p.at = between
		return true
	}
	if m.lit("<parameter=") {
		key, named := m.until(">")
		value, ok := "", false
		if named {
			value, ok = m.until("</parameter>")
		}
		if ok {
			value = strings.TrimSuffix(strings.TrimPrefix(value, "\n"), "\n")
			if p.tools[p.name].Strings[key] || !json.Valid([]byte(value)) {
				value = quoted(value)
			}
			before := ", "
			if p.keys++; p.keys == 1 {
				before = "{"
			}
			*out = append(*out, Piece{Arguments: before + quoted(key) + ": " + strings.TrimSpace(value)})
			p.buf = p.buf[m.at:]
			return true
		}
	}
	if !m.short {
		p.at = between
	}
	return !m.short
}

func (p *Parser) close(out *[]Piece) {
	end := "}"
	if p.keys == 0 {
		end = "{}"
	}
	*out = append(*out, Piece{Arguments: end})
	p.at = between
}

// read returns the calls of a body that is whole, nil when it is none; more: it may be one
// when more has come.
func (p *Parser) read(body string) (calls []Call, more bool) {
	s := strings.TrimSpace(body)
	switch p.family {
	case DeepSeek:
		return nil, false
	case Hermes, Mistral:
		return p.json(s)
	}
	for _, mark := range [...]string{pythonTag, pythonStart} {
		s = strings.TrimSpace(strings.TrimPrefix(s, mark))
	}
	s = strings.TrimSpace(strings.TrimSuffix(s, pythonEnd))
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

func quoted(s string) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // a string always can be
	return strings.TrimSuffix(b.String(), "\n")
}
