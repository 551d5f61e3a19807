package toolcall

import (
	"slices"
	"strings"
)

// Parser finds the tool calls of one answer. A call starts as soon as its name is known and its
// arguments start with an object. The arguments are passed on as they arrive. Create one with New.
type Parser struct {
	family Family
	tools  map[string]Tool
	open   string   // starts the calls; "": the calls are the whole answer
	end    string   // ends the calls; "": the end of the answer does
	ends   []string // marks that end the arguments of a call
	opens  []string // marks that start the next call
	marks  sectionMarks

	at    place
	buf   string // text that is not classified yet
	kept  string // text before buf, dropped if it turns out to belong to a call
	blank string // white space that is dropped if a call follows
	block bool   // open was read, and end was not
	made  bool   // a call was found since open
	calls int
	final bool // no more text follows
	cut   bool // the answer was cut: open values stay open

	w     writer // for the arguments, then for the object around them
	after place  // state after the arguments
	body  string // output of w for an object that is read whole
	xml   xmlCall

	other otherParser // reads the answer instead, in families with a parser of their own

	pending string // text that is scanned with a later Push
	scanned int    // bytes that were scanned, for tests
}

// Text that may still turn out to be a call is scanned again when more arrives. A Push scans up to
// heldAtOnce bytes of it at once. More are scanned after 1/heldShare of them has arrived, so the work
// for an answer without end is not quadratic in its length.
const (
	heldAtOnce = 1024
	heldShare  = 16
)

// otherParser parses the answers of one family, as Parser does.
type otherParser interface {
	push(text string) []Piece
	flush(cut bool) []Piece
	marks(token string) bool
	held() int  // bytes that are not classified yet
	made() int  // number of calls
	open() bool // the arguments of the newest call are incomplete
}

// place is the state of the parser.
type place uint8

const (
	outside    place = iota // in text
	between                 // before a call, or the end of the calls
	arguments               // in the arguments of a call
	rest                    // after them, in the object around them
	member                  // in an object that may turn out to be a call
	parameters              // in Qwen3-Coder's parameters
	odd                     // in text that may turn out to be calls at its end
	over                    // in text until the end
)

// New returns a parser for calls of the given tools.
func New(f Family, tools map[string]Tool) *Parser {
	p := &Parser{family: f, tools: tools}
	if form := tagForms[f]; form != nil {
		p.other = &tagged{tagForm: form, tools: tools}
		return p
	}
	switch f {
	case Harmony:
		p.other = &harmony{tools: tools}
	case Liquid:
		p.other = &liquid{python: Parser{tools: tools}}
	case Gemma:
		p.other = &gemmaCalls{tools: tools}
	case Hermes:
		p.open, p.end = hermesOpen, hermesEnd
		p.ends, p.opens = []string{p.end}, hermesOpens
	case Mistral:
		p.open = "[TOOL_CALLS]"
		p.ends, p.opens = []string{p.open}, []string{p.open}
	case DeepSeek:
		p.section(deepSeekMarks)
	case Kimi:
		p.section(kimiMarks)
	case Phi:
		p.list("<|tool_call|>", "<|/tool_call|>")
	case Nemotron:
		p.list(nemotronOpen, "</TOOLCALL>")
	case Cohere:
		p.list(CohereOpen, CohereEnd)
	case CommandR:
		p.open = commandOpen
		p.ends, p.opens = []string{fence}, []string{p.open}
	default:
		p.at = between
	}
	return p
}

const nemotronOpen = "<TOOLCALL>"

// list sets the marks of a family whose calls are a JSON list.
func (p *Parser) list(open, end string) {
	p.open, p.end = open, end
	p.ends, p.opens = []string{end}, []string{open}
}

// section sets the marks of a family whose calls have marks of their own within a section.
func (p *Parser) section(m sectionMarks) {
	p.open, p.end, p.marks = m.open, m.end, m
	p.ends, p.opens = []string{m.callEnd, p.end}, []string{p.open, m.call, p.end}
}

// Calls returns the number of calls so far.
func (p *Parser) Calls() int {
	if p.other != nil {
		return p.other.made()
	}
	return p.calls
}

// Open reports whether the arguments of the newest call are incomplete.
func (p *Parser) Open() bool {
	if p.other != nil {
		return p.other.open()
	}
	return p.at == arguments || p.at == parameters
}

// Thinking reports whether the answer is inside a thought that the parser itself recognizes, as in Harmony.
func (p *Parser) Thinking() bool {
	if p == nil {
		return false
	}
	h, ok := p.other.(*harmony)
	return ok && h.at == harmonyThought
}

// Marks reports whether the parser uses a control token. Its text must then be passed to Push,
// although it is not part of the answer.
func (p *Parser) Marks(token string) bool {
	if p.other != nil {
		return p.other.marks(token)
	}
	switch p.family {
	case Hermes, Phi, Nemotron, Cohere:
		return token == p.open || token == p.end
	case Kimi:
		return strings.HasPrefix(token, "<|tool_call")
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

// Push adds text and returns the pieces that are certain.
func (p *Parser) Push(text string) []Piece {
	p.pending += text
	if held := p.held(); held > heldAtOnce && len(p.pending) < held/heldShare {
		return nil
	}
	return p.scan()
}

// held returns the number of bytes that are not classified yet.
func (p *Parser) held() int {
	if p.other != nil {
		return p.other.held()
	}
	return len(p.kept) + len(p.blank) + len(p.buf)
}

// scan classifies the held and the pending text as far as it can.
func (p *Parser) scan() (out []Piece) {
	text := p.pending
	p.pending = ""
	p.scanned += p.held() + len(text)
	if p.other != nil {
		return p.other.push(text)
	}
	p.buf += text
	for p.step(&out) {
	}
	return out
}

// Flush ends the answer and returns the remaining pieces. It completes open arguments, unless the
// answer was cut by its limit or by a client's stop string.
func (p *Parser) Flush(cut bool) (out []Piece) {
	out = p.scan()
	if p.other != nil {
		return append(out, p.other.flush(cut)...)
	}
	p.final, p.cut = true, cut
	for p.step(&out) {
	}
	p.text(&out, len(p.buf))
	if p.blank != "" && p.calls == 0 {
		out = append(out, Piece{Text: p.blank})
	}
	p.blank = ""
	return out
}

// step advances within one state; false: more text is needed.
func (p *Parser) step(out *[]Piece) bool {
	switch p.at {
	case outside:
		return p.outside(out)
	case between:
		return p.next(out)
	case arguments:
		return p.arguments(out)
	case rest:
		return p.rest()
	case member:
		return p.member(out)
	case parameters:
		return p.parameter(out)
	case odd:
		if !p.final {
			return false
		}
		if calls := p.python(p.buf); calls != nil {
			p.called(out, calls...)
			p.buf = ""
		}
		p.at = over
		return true
	}
	p.text(out, len(p.buf))
	return false
}

// outside emits text up to the start of a call.
func (p *Parser) outside(out *[]Piece) bool {
	for i := range len(p.buf) {
		if p.buf[i] != p.open[0] {
			continue
		}
		m, head := match{s: p.buf, at: i, final: p.final}, match{s: p.buf, at: i, final: p.final}
		switch {
		case m.lit(p.open):
			p.text(out, i)
			p.begin(len(p.open))
			return true
		case p.block && p.made && p.end != "" && m.lit(p.end):
			p.text(out, i)
			p.buf, p.block = p.buf[len(p.end):], false
			return true
		case p.block && p.made && p.marks.callEnd != "" && m.lit(p.marks.callEnd): // after text that a repair left over
			p.text(out, i)
			p.buf = p.buf[len(p.marks.callEnd):]
			return true
		case p.beginsUnmarked(&head):
			p.text(out, i)
			p.at = between
			return true
		case m.short || head.short:
			p.text(out, i)
			return false
		case p.final && p.isMarkPrefix(p.buf[i:]):
			p.text(out, i)
			p.buf = ""
			return false
		}
	}
	p.text(out, len(p.buf))
	return false
}

// begin skips n bytes up to the end of the mark that starts calls.
func (p *Parser) begin(n int) {
	p.buf, p.kept, p.at, p.block, p.made = p.buf[n:], p.open, between, true, false
}

// beginsUnmarked reports whether a call starts here that needs no mark before it.
func (p *Parser) beginsUnmarked(m *match) bool {
	switch {
	case p.family == Hermes:
		name, _ := m.function(p)
		return name != ""
	case p.marks.call != "" && p.block:
		return p.known(m.inSection(p.marks))
	}
	return false
}

func (p *Parser) known(name string) bool {
	_, ok := p.tools[name]
	return ok && name != ""
}

// isMarkPrefix reports whether s, at the end of an answer with calls, is the start of a mark and therefore
// not text.
func (p *Parser) isMarkPrefix(s string) bool {
	begins := func(mark string) bool { return strings.HasPrefix(mark, s) }
	return p.calls > 0 && (p.block && (begins(p.end) || slices.ContainsFunc(p.ends, begins)) || p.cut && slices.ContainsFunc(p.opens, begins))
}

// text emits n bytes, but holds white space back until text follows it.
func (p *Parser) text(out *[]Piece, n int) {
	s := p.blank + p.buf[:n]
	p.buf = p.buf[n:]
	solid := strings.TrimRight(s, blanks)
	if p.blank = s[len(solid):]; solid != "" {
		*out = append(*out, Piece{Text: solid})
	}
}

// restore emits the kept text and n more bytes as text.
func (p *Parser) restore(out *[]Piece, n int) {
	n += len(p.kept)
	p.buf, p.kept = p.kept+p.buf, ""
	p.text(out, n)
}

func (p *Parser) called(out *[]Piece, calls ...Call) {
	for i := range calls {
		p.blank, p.kept, p.made = "", "", true
		p.calls++
		*out = append(*out, Piece{Call: &calls[i]})
	}
}

// next finds the start of a call, or the end of the calls.
func (p *Parser) next(out *[]Piece) bool {
	m := match{s: p.buf, final: p.final}
	left := m.separators(p)
	if p.open == "" && p.calls == 0 && left != "" && strings.IndexByte("{[<`", strings.TrimLeft(p.buf, blanks)[0]) < 0 {
		p.at = over
		return true
	}
	start := m.at
	switch {
	case p.end != "" && m.lit(p.end):
		if p.made {
			p.buf = p.buf[m.at:]
		} else {
			p.restore(out, m.at)
		}
		p.at, p.block = outside, false
		return true
	case p.open != "" && m.lit(p.open):
		p.begin(m.at)
		return true
	}
	switch name, kind := p.head(&m); {
	case !p.known(name):
	case kind == parameters:
		p.called(out, Call{Name: name})
		p.buf, p.at, p.xml = p.buf[m.at:], parameters, xmlCall{name: name}
		return true
	case m.at == len(m.s) && !p.final:
		return false
	case strings.HasPrefix(m.s[m.at:], "{"):
		p.called(out, Call{Name: name})
		p.read(m.at, arguments, writer{})
		p.after = kind
		return true
	case kind == between:
		if args, ok := m.scalar(p); ok {
			p.called(out, Call{name, args})
			p.buf = p.buf[m.at:]
			return true
		}
	}
	switch {
	case m.short:
		return false
	case start < len(p.buf) && p.buf[start] == '{' && p.marks.call == "":
		p.kept += p.buf[:start]
		p.read(start, member, writer{})
	case p.made:
		p.leaveCalls(out, start)
	case p.open == "":
		p.at = odd
	default:
		p.at, p.block = outside, false
		p.restore(out, 0)
	}
	return true
}

// head parses the text before the arguments of a call. It returns where the arguments are: in
// parameters, alone (between), or in an object (rest).
func (p *Parser) head(m *match) (name string, kind place) {
	switch p.family {
	case Hermes:
		if name, kind = m.function(p); name != "" || m.short {
			return name, kind
		}
	case Mistral:
		if m.at < len(m.s) && strings.IndexByte("{[", m.s[m.at]) < 0 {
			return m.mistral(), between
		}
	case DeepSeek, Kimi:
		return m.inSection(p.marks), between
	}
	return m.object(), rest
}

// leaveCalls returns to text after calls. Up to n bytes of brackets and fences that close the calls are
// not text.
func (p *Parser) leaveCalls(out *[]Piece, n int) {
	gap := p.buf[:n]
	if at := strings.IndexByte(gap, '['); at >= 0 {
		gap = gap[:at]
	}
	p.buf = p.buf[strings.LastIndexAny(gap, "]}`>")+1:]
	p.at = outside
	switch left := strings.TrimLeft(p.buf, blanks); {
	case p.open == "":
		if p.at = over; p.final && strings.HasPrefix("```", left) {
			p.buf = ""
		}
	case left != "" && left[0] == p.open[0] && !p.isMarkPrefix(left): // no mark, or it was read before
		p.text(out, len(p.buf)-len(left)+1)
	}
}

// begins reports whether s, which follows a possible end of a call, starts the next call.
func (p *Parser) begins(s string, final bool) verdict {
	if p.family != Hermes {
		return startsWith(s, p.opens, final)
	}
	rest, whole := strings.CutPrefix(s, p.open)
	after := strings.TrimLeft(rest, blanks)
	switch {
	case !whole:
		return startsWith(s, []string{p.open}, final)
	case after == "":
		return atEnd(final, yes)
	case after[0] == '{': // inside a string this would be {\"
		after = strings.TrimLeft(after[1:], blanks)
		if after == "" {
			return atEnd(final, no)
		}
		return is(after[0] == '"' || after[0] == '\'')
	case strings.Contains(rest[:len(rest)-len(after)], "\n"):
		return startsWith(after, []string{functionMark}, final)
	}
	return no
}

// read skips n bytes and starts to copy an object.
func (p *Parser) read(n int, at place, w writer) {
	w.ends, w.opens = p.ends, p.begins
	p.buf, p.at, p.w, p.body = p.buf[n:], at, w, ""
}

// arguments emits the arguments of a call.
func (p *Parser) arguments(out *[]Piece) bool {
	text, n, done := p.w.take(p.buf, p.final)
	p.buf = p.buf[n:]
	if done = done || p.final && !p.cut; done {
		text += p.w.end()
	}
	if text != "" {
		*out = append(*out, Piece{Arguments: text})
	}
	if !done {
		return false
	}
	if p.at = p.after; p.at == rest {
		p.read(0, rest, writer{stack: []byte{'{'}, expect: aComma})
	}
	return true
}

// rest skips the text after the arguments in their object: further members, and its bracket.
func (p *Parser) rest() bool {
	if left := strings.TrimLeft(p.buf, blanks); p.kept == "" && (left == "" || left[0] != ',' && left[0] != '}') {
		if left == "" && !p.final {
			return false
		}
		p.at = between
		return true
	}
	_, n, done := p.w.take(p.buf, p.final)
	p.kept, p.buf = p.kept+p.buf[:n], p.buf[n:]
	if !done && !p.final {
		return false
	}
	if !p.w.closed() && !p.w.marked && !(p.final && p.buf == "") {
		p.buf = p.kept + p.buf // text, not members
	}
	p.kept, p.at = "", between
	return true
}

// member reads an object that may turn out to be a call.
func (p *Parser) member(out *[]Piece) bool {
	text, n, done := p.w.take(p.buf, p.final)
	p.body += text
	p.kept, p.buf = p.kept+p.buf[:n], p.buf[n:]
	if !done && !p.final {
		return false
	}
	whole := p.w.closed() || done || p.w.tidy() && !p.cut
	p.at = between
	if c, ok := p.one([]byte(p.body + p.w.end())); ok && whole {
		p.called(out, c)
		return true
	}
	switch p.restore(out, 0); {
	case p.open == "":
		p.at = over
	default:
		p.at, p.block = outside, p.block && p.made
	}
	return true
}
