package toolcall

import "strings"

// Gemma 4's form: <|tool_call>call:NAME{key:<|"|>text<|"|>,n:3,list:[1,2]}<tool_call|>. Names of
// members are bare, and strings stand between marks without escapes. Arguments become JSON as they
// arrive.
const (
	gemmaOpen     = "<|tool_call>"
	gemmaEnd      = "<tool_call|>"
	gemmaQuote    = `<|"|>`
	gemmaResponse = "<|tool_response>" // with which the model waits for results
	gemmaHead     = "call:"
)

// gemmaCalls reads an answer.
type gemmaCalls struct {
	tools map[string]Tool
	at    gemmaPlace
	buf   string
	blank string // white space that is dropped if a call follows
	calls int
	final bool
	cut   bool
	args  gemmaArgs
}

type gemmaPlace uint8

const (
	gemmaText  gemmaPlace = iota
	gemmaName             // between the mark and the arguments
	gemmaIn               // in the arguments
	gemmaAfter            // after them, before the mark that ends the call
)

func (g *gemmaCalls) marks(token string) bool {
	return token == gemmaOpen || token == gemmaEnd || token == gemmaQuote || token == gemmaResponse
}

func (g *gemmaCalls) held() int { return len(g.blank) + len(g.buf) }

func (g *gemmaCalls) push(text string) (out []Piece) {
	g.buf += text
	for g.step(&out) {
	}
	return out
}

func (g *gemmaCalls) flush(cut bool) []Piece {
	g.final, g.cut = true, cut
	out := g.push("")
	switch {
	case g.at == gemmaIn && !cut:
		out = append(out, Piece{Arguments: g.args.end()})
	case g.at == gemmaName:
		g.text(&out, gemmaOpen+g.buf)
	}
	g.buf = ""
	if g.blank != "" && g.calls == 0 {
		out = append(out, Piece{Text: g.blank})
	}
	return out
}

func (g *gemmaCalls) made() int { return g.calls }

func (g *gemmaCalls) open() bool { return g.at == gemmaIn }

// text emits text, but holds white space back until more text follows.
func (g *gemmaCalls) text(out *[]Piece, s string) {
	s = g.blank + s
	solid := strings.TrimRight(s, blanks)
	if g.blank = s[len(solid):]; solid != "" {
		*out = append(*out, Piece{Text: solid})
	}
}

// step advances within one state; false: more text is needed.
func (g *gemmaCalls) step(out *[]Piece) bool {
	switch g.at {
	case gemmaText:
		return g.outside(out)
	case gemmaName:
		return g.head(out)
	case gemmaIn:
		text, n, done := g.args.take(g.buf, g.final)
		if g.buf = g.buf[n:]; text != "" {
			*out = append(*out, Piece{Arguments: text})
		}
		if done {
			g.at = gemmaAfter
		}
		return done
	}
	left := strings.TrimLeft(g.buf, blanks)
	switch startsWith(left, []string{gemmaEnd}, g.final) {
	case unsure:
		return false
	case yes:
		left = left[len(gemmaEnd):]
	}
	g.buf, g.at = left, gemmaText
	return true
}

// outside emits text up to the next mark.
func (g *gemmaCalls) outside(out *[]Piece) bool {
	marks := []string{gemmaOpen}
	if g.calls > 0 {
		marks = append(marks, gemmaResponse, gemmaEnd)
	}
	for i := range len(g.buf) {
		if g.buf[i] != '<' {
			continue
		}
		switch left := g.buf[i:]; startsWith(left, marks, g.final) {
		case yes:
			g.text(out, g.buf[:i])
			for _, mark := range marks {
				left = strings.TrimPrefix(left, mark)
			}
			if strings.HasPrefix(g.buf[i:], gemmaOpen) {
				g.at = gemmaName
			}
			g.buf = left
			return true
		case unsure:
			g.text(out, g.buf[:i])
			g.buf = left
			return false
		}
	}
	g.text(out, g.buf)
	g.buf = ""
	return false
}

// head reads the name of a call, up to its arguments. Anything else is text.
func (g *gemmaCalls) head(out *[]Piece) bool {
	m := match{s: g.buf, final: g.final}
	if m.blank(); m.lit(gemmaHead) {
		name, ok := m.until("{")
		if _, known := g.tools[strings.TrimSpace(name)]; ok && known {
			g.calls++
			g.blank = ""
			*out = append(*out, Piece{Call: &Call{Name: strings.TrimSpace(name)}})
			g.buf, g.at, g.args = g.buf[m.at-1:], gemmaIn, gemmaArgs{}
			return true
		}
	}
	if m.short && len(g.buf) < maxGemmaName {
		return false
	}
	if g.final && g.cut && m.at == len(g.buf) { // nothing of the call is known
		return false
	}
	g.at = gemmaText
	g.text(out, gemmaOpen)
	return true
}

// maxGemmaName bounds the text that is held while a name has no end.
const maxGemmaName = 1 << 10

// gemmaArgs turns arguments into JSON.
type gemmaArgs struct {
	stack  []byte // open brackets
	expect expect
	quote  string // mark that ends the string being copied; "": none
	name   bool   // the string is a member name
	comma  bool   // a value came before in the innermost bracket
}

// take converts the n bytes of s that are certain. done: the value or the call ended.
func (a *gemmaArgs) take(s string, final bool) (out string, n int, done bool) {
	var b strings.Builder
	for n < len(s) && !done {
		step := a.structure
		if a.quote != "" {
			step = a.inString
		}
		size, v := step(&b, s[n:], final)
		if n += size; v == unsure {
			break
		}
		done = v == no
	}
	return b.String(), n, done
}

// inString copies a string. no means that the call ends inside it.
func (a *gemmaArgs) inString(b *strings.Builder, s string, final bool) (n int, goOn verdict) {
	for n < len(s) {
		left := s[n:]
		switch {
		case strings.HasPrefix(left, a.quote):
			n += len(a.quote)
			a.endString(b)
			return n, yes
		case a.quote == `"` && left[0] == '\\':
			size, v := escape(b, left, final)
			if n += size; v == unsure {
				return n, unsure
			}
			continue
		}
		switch startsWith(left, []string{a.quote, gemmaEnd}, final) {
		case unsure:
			return n, unsure
		case yes:
			b.WriteString(a.end())
			return n, no
		}
		if c := left[0]; c < ' ' || c == '"' {
			b.WriteString(escaped(c))
		} else if c == '\\' {
			b.WriteString(`\\`)
		} else {
			b.WriteByte(c)
		}
		n++
	}
	return n, yes
}

func (a *gemmaArgs) endString(b *strings.Builder) {
	b.WriteByte('"')
	if a.quote, a.expect = "", aComma; a.name {
		a.expect = aColon
	}
}

// structure converts text outside strings. no means that the value or the call has ended.
func (a *gemmaArgs) structure(b *strings.Builder, s string, final bool) (n int, goOn verdict) {
	switch v := startsWith(s, []string{gemmaQuote, gemmaEnd}, final); {
	case v == unsure:
		return 0, unsure
	case strings.HasPrefix(s, gemmaQuote):
		a.begin(b, gemmaQuote)
		return len(gemmaQuote), yes
	case v == yes:
		b.WriteString(a.end())
		return 0, no
	}
	switch c := s[0]; {
	case c == '"':
		a.begin(b, `"`)
	case (c == '{' || c == '[') && len(a.stack) < maxNesting:
		if len(a.stack) > 0 {
			a.lead(b, true)
		}
		b.WriteByte(c)
		a.stack, a.comma = append(a.stack, c), false
		a.next()
	case c == '}' || c == ']':
		a.pop(b)
		if len(a.stack) == 0 {
			return 1, no
		}
	case c == ',':
		a.complete(b)
		a.next()
	case c == ':' && a.expect == aColon:
		b.WriteByte(':')
		a.expect = aValue
	case strings.IndexByte(blanks, c) >= 0 || c == ':' || c == '{' || c == '[':
	default:
		return a.word(b, s, final)
	}
	return 1, yes
}

// word converts a bare name, number or word.
func (a *gemmaArgs) word(b *strings.Builder, s string, final bool) (n int, goOn verdict) {
	n = strings.IndexAny(s[1:], `,:{}[]"<`) + 1
	if n == 0 {
		if n = len(s); !final {
			return 0, unsure
		}
	}
	word := strings.TrimRight(s[:n], blanks)
	if a.lead(b, false) {
		b.WriteString(quoted(word))
		a.expect = aColon
	} else {
		b.WriteString(literal(word))
		a.expect = aComma
	}
	return n, yes
}

// begin starts a string.
func (a *gemmaArgs) begin(b *strings.Builder, quote string) {
	a.name = a.lead(b, false)
	b.WriteByte('"')
	a.quote = quote
}

// lead writes the punctuation before a value, and reports whether the value is the name of a member.
// With member it must not be: a member without a name gets an empty one.
func (a *gemmaArgs) lead(b *strings.Builder, member bool) (name bool) {
	if a.expect == aColon { // a value without a colon
		b.WriteByte(':')
		a.expect = aValue
		return false
	}
	if a.expect == aComma { // a value without a comma
		a.next()
	}
	inList := a.stack[len(a.stack)-1] == '['
	if a.comma && (inList || a.expect == aName) {
		b.WriteByte(',')
	}
	if a.comma = true; a.expect != aName {
		return false
	}
	if member {
		b.WriteString(`"":`)
	}
	return !member
}

// next sets the elements that may follow a bracket or a comma.
func (a *gemmaArgs) next() {
	a.expect = aValue
	if len(a.stack) > 0 && a.stack[len(a.stack)-1] == '{' {
		a.expect = aName
	}
}

// complete adds a value to a member that only has its name.
func (a *gemmaArgs) complete(b *strings.Builder) {
	if len(a.stack) == 0 || a.stack[len(a.stack)-1] != '{' {
		return
	}
	switch a.expect {
	case aColon:
		b.WriteString(":null")
	case aValue:
		b.WriteString("null")
	}
}

// pop closes the innermost bracket.
func (a *gemmaArgs) pop(b *strings.Builder) {
	a.complete(b)
	last := len(a.stack) - 1
	b.WriteByte(a.stack[last] + 2) // the codes of "}" and "]" are those of "{" and "[" plus 2
	a.stack, a.expect, a.comma = a.stack[:last], aComma, true
}

// end returns the text that completes the value.
func (a *gemmaArgs) end() string {
	var b strings.Builder
	if a.quote != "" {
		a.endString(&b)
	}
	for len(a.stack) > 0 {
		a.pop(&b)
	}
	return b.String()
}
