package notation

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/shoal-llm/shoal/internal/attempt"
	"github.com/shoal-llm/shoal/internal/text/grammar/regex"
)

// larkParser parses the part of Lark's language that llguidance supports (its docs/syntax.md):
// rules and terminals, strings, regular expressions, ranges, repetitions, %ignore, %import of
// common terminals, and %json. An extension is %until "text": any text up to and including the
// first occurrence of "text". Consecutive terminals need no separator, because there is no
// longest-match lexer. Two words may therefore match a text that Lark would read as one name.
type larkParser struct {
	regex.Cursor
	b      *rulebook
	terms  map[string]*Part
	skip   []*Part
	opened map[string]bool
	done   map[string]regex.ID
}

// larkCommon has the terminals of Lark's common library.
var larkCommon = map[string]string{
	"DIGIT": `[0-9]`, "HEXDIGIT": `[a-fA-F0-9]`, "INT": `[0-9]+`, "SIGNED_INT": `[+-]?[0-9]+`, "DECIMAL": `[0-9]+\.[0-9]*|\.[0-9]+`,
	"FLOAT":         `[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?`,
	"NUMBER":        `(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(?:[eE][+-]?[0-9]+)?`,
	"SIGNED_FLOAT":  `[+-]?(?:[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)`,
	"SIGNED_NUMBER": `[+-]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(?:[eE][+-]?[0-9]+)?`,
	"LCASE_LETTER":  `[a-z]`, "UCASE_LETTER": `[A-Z]`, "LETTER": `[A-Za-z]`, "WORD": `[A-Za-z]+`, "CNAME": `[_A-Za-z][_A-Za-z0-9]*`,
	"WS_INLINE": `[ \t]+`, "WS": `[ \t\f\r\n]+`, "CR": `\r`, "LF": `\n`, "NEWLINE": `(?:\r?\n)+`,
	"ESCAPED_STRING": `"(?:[^"\\\n\r]|\\[^\n\r])*"`, "SH_COMMENT": `#[^\n]*`, "CPP_COMMENT": `//[^\n]*`, "SQL_COMMENT": `--[^\n]*`,
}

// Lark reads a grammar in the dialect of larkParser. Its terminals become expressions of the store.
// It panics with regex.TooLarge at the limits.
func Lark(store *regex.Store, text string) (*Rules, error) {
	p := &larkParser{
		Cursor: regex.Cursor{Text: text}, b: newRulebook(store, "Lark: "),
		terms: map[string]*Part{}, opened: map[string]bool{}, done: map[string]regex.ID{},
	}
	return attempt.At(p.run)
}

func (p *larkParser) fail(format string, args ...any) attempt.Failure {
	return attempt.Failure{Err: fmt.Errorf("Lark: line %d: %s", p.Line(), fmt.Sprintf(format, args...))}
}

// blank skips spaces and comments. A line that starts with '|' continues the previous one.
func (p *larkParser) blank(lines bool) {
	p.Blanks(lines, "//", "#")
	if rest := p.At; !lines && strings.IndexByte("\r\n", p.Peek()) >= 0 {
		if p.blank(true); p.Peek() != '|' {
			p.At = rest
		}
	}
}

func (p *larkParser) name() string {
	return p.While(func(b byte) bool { return regex.IsWord(b) || b == '_' })
}

func isTerminal(name string) bool {
	s := strings.TrimLeft(name, "_")
	return s != "" && s[0] >= 'A' && s[0] <= 'Z'
}

func (p *larkParser) run() *Rules {
	if !utf8.ValidString(p.Text) {
		panic(p.b.refused("not valid UTF-8"))
	}
	var rules []string
	bodies := map[string]*Part{}
	for p.blank(true); p.At < len(p.Text); p.blank(true) {
		switch {
		case p.Eat("%ignore"):
			p.blank(false)
			x := p.alts(false)
			p.skip = append(p.skip, x)
			continue
		case p.Eat("%import"):
			p.imports()
			continue
		case p.Eat("%llguidance"):
			p.blank(false)
			var options map[string]json.RawMessage
			if err := json.Unmarshal(p.value(), &options); err != nil || len(options) > 0 {
				panic(p.fail("options of %%llguidance are not supported"))
			}
			continue
		case p.Text[p.At] == '%':
			panic(p.fail("the directive %.20q is not supported", p.Text[p.At:]))
		}
		p.Eat("?")
		p.Eat("!")
		name := p.name()
		if name == "" {
			panic(p.fail("expected the name of a rule, found %.20q", p.Text[p.At:]))
		}
		if p.At < len(p.Text) && p.Text[p.At] == '[' {
			panic(p.fail("attributes of a rule (%q) are not supported", name))
		}
		if p.Eat(".") {
			p.name() // a priority, which only matters to a lexer
		}
		p.blank(false)
		if !p.Eat(":") {
			panic(p.fail("expected ':' after %q", name))
		}
		p.blank(false)
		body := p.alts(false)
		if isTerminal(name) {
			if p.terms[name] != nil {
				panic(p.fail("the terminal %q is defined twice", name))
			}
			p.terms[name] = body
		} else {
			if bodies[name] != nil {
				panic(p.fail("the rule %q is defined twice", name))
			}
			bodies[name] = body
			rules = append(rules, name)
		}
	}
	skip := regex.Epsilon
	if len(p.skip) > 0 {
		var list []regex.ID
		for _, x := range p.skip {
			r := p.terminal(x)
			list = append(list, r)
		}
		skip = p.b.store.Star(p.b.store.Or(list...))
	}
	for _, n := range rules {
		p.b.add(n, p.resolve(bodies[n], skip))
	}
	r := p.b.finish("start")
	r.Before = skip
	return r
}

func (p *larkParser) imports() {
	p.blank(false)
	if !p.Eat("common") || !p.Eat(".") {
		panic(p.fail("only terminals of 'common' can be imported"))
	}
	var names []string
	if p.Eat("(") {
		for !p.Eat(")") {
			p.blank(true)
			n := p.name()
			if n == "" {
				panic(p.fail("expected the name of a terminal"))
			}
			names = append(names, n)
			p.blank(true)
			p.Eat(",")
			p.blank(true)
		}
	} else {
		names = append(names, p.name())
	}
	as := ""
	p.blank(false)
	if p.Eat("->") {
		p.blank(false)
		as = p.name()
	}
	for _, n := range names {
		text, ok := larkCommon[n]
		if !ok {
			panic(p.fail("common.%.40s is not known", n))
		}
		r := p.regex(text, "")
		if as != "" {
			n = as
		}
		p.terms[n] = p.b.part(Part{Kind: Lex, Lex: r})
	}

}

func (p *larkParser) regex(text, flags string) regex.ID {
	r, err := p.b.store.Pattern(text, flags, regex.RawText(p.b.store), true)
	if err != nil {
		panic(p.fail("%v", err))
	}
	return r
}

func (p *larkParser) alts(nested bool) *Part {
	if p.Depth++; p.Depth > regex.MaxDepth {
		panic(p.fail("nested deeper than %d", regex.MaxDepth))
	}
	defer func() { p.Depth-- }()
	out := Part{Kind: Alt}
	p.blank(nested)
	p.Eat("|")
	for {
		seq := p.seq(nested)
		out.List = append(out.List, seq)
		p.blank(nested)
		if !p.Eat("|") {
			return p.b.part(out)
		}
		p.blank(true)
	}
}

func (p *larkParser) seq(nested bool) *Part {
	out := Part{Kind: Seq}
	for {
		p.blank(nested)
		if p.At >= len(p.Text) || strings.IndexByte("|)]\r\n", p.Text[p.At]) >= 0 {
			return p.b.part(out)
		}
		if p.Eat("->") { // an alias, which only names a tree node
			p.blank(nested)
			p.name()
			continue
		}
		item := p.atom()
		for {
			lo, hi := 0, -1
			if rest := strings.TrimLeft(p.Text[p.At:], " \t"); strings.HasPrefix(rest, "~") {
				p.At = len(p.Text) - len(rest)
			}
			switch {
			case p.Eat("*"):
			case p.Eat("+"):
				lo = 1
			case p.Eat("?"):
				hi = 1
			case p.Eat("~"):
				p.blank(false)
				lo, hi = p.counts()
			case p.At < len(p.Text) && p.Text[p.At] == '{':
				q := regex.ParserAt(p.Text, p.At)
				var ok bool
				if lo, hi, ok = q.Bounds(); !ok {
					panic(p.fail("a repetition is not {n}, {n,} or {n,m}"))
				}
				p.At = q.At
			default:
				lo = -1
			}
			if lo < 0 {
				break
			}
			if hi >= 0 && lo > hi || lo > regex.MaxRepeat || hi > regex.MaxRepeat {
				panic(p.fail("a repetition is out of range"))
			}
			item = p.b.part(Part{Kind: Repeat, Lo: lo, Hi: hi, List: []*Part{item}})
		}
		out.List = append(out.List, item)
	}
}

func (p *larkParser) counts() (lo, hi int) {
	read := func() (n int, ok bool) {
		for p.At < len(p.Text) && p.Text[p.At] >= '0' && p.Text[p.At] <= '9' {
			n, ok = min(n*10+int(p.Text[p.At]-'0'), regex.MaxRepeat+1), true
			p.At++
		}
		return n, ok
	}
	lo, ok := read()
	hi = lo
	if ok && p.Eat("..") {
		hi, ok = read()
	}
	if !ok {
		panic(p.fail("expected a number after '~'"))
	}
	return lo, hi
}

func (p *larkParser) text() (string, bool) {
	start := p.At
	for p.At++; p.At < len(p.Text) && p.Text[p.At] != '"'; p.At++ {
		if p.Text[p.At] == '\\' {
			p.At++
		}
	}
	if p.At >= len(p.Text) {
		panic(p.fail("a text does not end"))
	}
	p.At++
	q := regex.ParserAt(p.Text[start+1:p.At-1], 0)
	var out []byte
	for q.More() {
		if q.Peek() != '\\' {
			out = utf8.AppendRune(out, q.Rune())
			continue
		}
		q.At++
		c, err := attempt.At(q.Escaped)
		if err != nil {
			panic(p.fail("%v", err))
		}
		out = utf8.AppendRune(out, c)
	}
	fold := p.Eat("i")
	return string(out), fold
}

func (p *larkParser) value() json.RawMessage {
	d := json.NewDecoder(strings.NewReader(p.Text[p.At:]))
	var raw json.RawMessage
	if err := d.Decode(&raw); err != nil {
		panic(p.fail("expected JSON: %v", err))
	}
	p.At += int(d.InputOffset())
	return raw
}

func (p *larkParser) atom() *Part {
	switch c := p.Text[p.At]; {
	case c == '(' || c == '[':
		p.At++
		inner := p.alts(true)
		p.blank(true)
		if c == '(' && !p.Eat(")") || c == '[' && !p.Eat("]") {
			panic(p.fail("a group does not end"))
		}
		if c == '[' {
			return p.b.part(Part{Kind: Repeat, Hi: 1, List: []*Part{inner}})
		}
		return inner
	case c == '"':
		s, fold := p.text()
		if p.Eat("..") {
			if p.At >= len(p.Text) || p.Text[p.At] != '"' {
				panic(p.fail("expected a text after '..'"))
			}
			to, _ := p.text()
			lo, n := utf8.DecodeRuneInString(s)
			hi, k := utf8.DecodeRuneInString(to)
			if n != len(s) || k != len(to) || n == 0 || k == 0 || lo > hi {
				panic(p.fail("a range is of two characters, the lower one first"))
			}
			return p.b.part(Part{Kind: Lex, Lex: p.b.store.UTF8(regex.Between(lo, hi))})
		}
		if !fold {
			return p.b.part(Part{Kind: Lex, Lex: p.b.store.Literal(s)})
		}
		r := regex.Epsilon
		for i := len(s); i > 0; {
			c, n := utf8.DecodeLastRuneInString(s[:i])
			i -= n
			r = p.b.store.Concat(p.b.store.UTF8(regex.Between(c, c).Folded()), r)
		}
		return p.b.part(Part{Kind: Lex, Lex: r})
	case c == '/':
		start := p.At + 1
		class := false
		for p.At++; p.At < len(p.Text) && (p.Text[p.At] != '/' || class) && p.Text[p.At] != '\n'; p.At++ {
			switch p.Text[p.At] {
			case '\\':
				p.At++
			case '[':
				class = true
			case ']':
				class = false
			}
		}
		if p.At >= len(p.Text) || p.Text[p.At] != '/' {
			panic(p.fail("a regular expression does not end"))
		}
		text := p.Text[start:p.At]
		p.At++
		flags := p.While(func(b byte) bool { return strings.IndexByte("imslux", b) >= 0 })
		r := p.regex(strings.ReplaceAll(text, `\/`, `/`), flags)
		return p.b.part(Part{Kind: Lex, Lex: r})
	case p.Eat("%json"):
		p.blank(true)
		line := p.Line()
		return p.b.part(Part{Kind: Schema, Schema: string(p.value()), Line: line})
	case p.Eat("%until"):
		p.blank(true)
		if p.At >= len(p.Text) || p.Text[p.At] != '"' {
			panic(p.fail("expected a text after %%until"))
		}
		s, _ := p.text()
		return p.b.part(Part{Kind: Lex, Lex: p.b.store.Until(p.b.store.Literal(s), p.b.store.Literal(s))})
	case c == '<':
		panic(p.fail("tokens in a grammar are not supported"))
	case c == '&' || c == '%' || c == '~':
		panic(p.fail("%.12q is not supported", p.Text[p.At:]))
	}
	name := p.name()
	if name == "" {
		panic(p.fail("%q is not expected here", p.Text[p.At]))
	}
	return p.b.part(Part{Kind: Rule, Name: name})
}

// terminal returns the regular expression of a part that may only use terminals.
func (p *larkParser) terminal(x *Part) regex.ID {
	m := p.b.store
	list := make([]regex.ID, len(x.List))
	for i, l := range x.List {
		list[i] = p.terminal(l)
	}
	switch x.Kind {
	case Lex:
		return x.Lex
	case Seq:
		return m.Concat(list...)
	case Alt:
		return m.Or(list...)
	case Repeat:
		return m.Repeat(list[0], x.Lo, x.Hi)
	case Schema:
		panic(p.b.refused("%%json is allowed in rules only"))
	}
	if !isTerminal(x.Name) {
		panic(p.b.refused("a terminal uses the rule %q", x.Name))
	}
	if r, ok := p.done[x.Name]; ok {
		return r
	}
	body := p.terms[x.Name]
	if body == nil {
		panic(p.b.refused("the terminal %q is not defined", x.Name))
	}
	if p.opened[x.Name] {
		panic(p.b.refused("the terminal %q uses itself", x.Name))
	}
	p.opened[x.Name] = true
	r := p.terminal(body)
	p.done[x.Name] = r
	return r
}

// resolve appends the ignored text to every terminal of a rule.
func (p *larkParser) resolve(x *Part, skip regex.ID) *Part {
	lex := func(r regex.ID) *Part { return p.b.part(Part{Kind: Lex, Lex: p.b.store.Concat(r, skip)}) }
	switch x.Kind {
	case Lex:
		return lex(x.Lex)
	case Schema:
		if skip == regex.Epsilon {
			return x
		}
		return p.b.part(Part{Kind: Seq, List: []*Part{x, p.b.part(Part{Kind: Lex, Lex: skip})}})
	case Rule:
		if !isTerminal(x.Name) {
			return x
		}
		r := p.terminal(x)
		return lex(r)
	}
	out := *x
	out.List = make([]*Part, len(x.List))
	for i, l := range x.List {
		out.List[i] = p.resolve(l, skip)
	}
	return p.b.part(out)
}
