package grammar

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
// longest-match lexer. Two words may therefore match what Lark would read as one name.
type larkParser struct {
	regex.Cursor
	b      *rulebook
	spec   Spec
	terms  map[string]*part
	skip   []*part
	opened map[string]bool
	done   map[string]regex.ID
}

// larkCommon has the terminals of Lark's common library.
var larkCommon = map[string]string{
	"DIGIT": `[0-9]`, "HEXDIGIT": `[a-fA-F0-9]`, "INT": `[0-9]+`, "SIGNED_INT": `[+-]?[0-9]+`, "DECIMAL": `[0-9]+\.[0-9]*|\.[0-9]+`,
	"FLOAT": `[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?`, "NUMBER": `(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(?:[eE][+-]?[0-9]+)?`,
	"SIGNED_FLOAT":  `[+-]?(?:[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)`,
	"SIGNED_NUMBER": `[+-]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(?:[eE][+-]?[0-9]+)?`,
	"LCASE_LETTER":  `[a-z]`, "UCASE_LETTER": `[A-Z]`, "LETTER": `[A-Za-z]`, "WORD": `[A-Za-z]+`, "CNAME": `[_A-Za-z][_A-Za-z0-9]*`,
	"WS_INLINE": `[ \t]+`, "WS": `[ \t\f\r\n]+`, "CR": `\r`, "LF": `\n`, "NEWLINE": `(?:\r?\n)+`,
	"ESCAPED_STRING": `"(?:[^"\\\n\r]|\\[^\n\r])*"`, "SH_COMMENT": `#[^\n]*`, "CPP_COMMENT": `//[^\n]*`, "SQL_COMMENT": `--[^\n]*`,
}

func (m *machine) compileLark(s Spec) exprID {
	p := &larkParser{Cursor: regex.Cursor{Text: s.Text}, b: newRulebook(m, "Lark: "), spec: s, terms: map[string]*part{}, opened: map[string]bool{}, done: map[string]regex.ID{}}
	if !utf8.ValidString(s.Text) {
		panic(attempt.Failure{Err: &Error{Message: "Lark: not valid UTF-8"}})
	}
	return p.run()
}

func (p *larkParser) fail(format string, args ...any) attempt.Failure {
	return attempt.Failure{Err: &Error{Message: fmt.Sprintf("Lark: line %d: %s", p.Line(), fmt.Sprintf(format, args...))}}
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

func (p *larkParser) run() exprID {
	var rules []string
	bodies := map[string]*part{}
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
			raw := p.value()
			if len(raw.keys) > 0 {
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
		skip = p.b.m.Star(p.b.m.Or(list...))
	}
	for _, n := range rules {
		p.b.add(n, p.resolve(bodies[n], skip))
	}
	e := p.b.compile("start")
	return p.b.m.seq(p.b.m.lex(skip), e)
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
		p.terms[n] = p.b.part(part{kind: xLex, r: r})
	}

}

func (p *larkParser) regex(text, flags string) regex.ID {
	r, err := p.b.m.Pattern(text, flags, regex.RawText(p.b.m.Store), true)
	if err != nil {
		panic(p.fail("%v", err))
	}
	return r
}

func (p *larkParser) alts(nested bool) *part {
	if p.Depth++; p.Depth > regex.MaxDepth {
		panic(p.fail("nested deeper than %d", regex.MaxDepth))
	}
	defer func() { p.Depth-- }()
	out := part{kind: xAlt}
	p.blank(nested)
	p.Eat("|")
	for {
		seq := p.seq(nested)
		out.list = append(out.list, seq)
		p.blank(nested)
		if !p.Eat("|") {
			return p.b.part(out)
		}
		p.blank(true)
	}
}

func (p *larkParser) seq(nested bool) *part {
	out := part{kind: xSeq}
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
			item = p.b.part(part{kind: xRepeat, lo: lo, hi: hi, list: []*part{item}})
		}
		out.list = append(out.list, item)
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

func (p *larkParser) value() *jsonValue {
	d := json.NewDecoder(strings.NewReader(p.Text[p.At:]))
	var raw json.RawMessage
	if err := d.Decode(&raw); err != nil {
		panic(p.fail("expected JSON: %v", err))
	}
	p.At += int(d.InputOffset())
	v, err := parseJSON(string(raw))
	if err != nil {
		panic(p.fail("%v", err))
	}
	return v
}

func (p *larkParser) atom() *part {
	switch c := p.Text[p.At]; {
	case c == '(' || c == '[':
		p.At++
		inner := p.alts(true)
		p.blank(true)
		if c == '(' && !p.Eat(")") || c == '[' && !p.Eat("]") {
			panic(p.fail("a group does not end"))
		}
		if c == '[' {
			return p.b.part(part{kind: xRepeat, hi: 1, list: []*part{inner}})
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
			return p.b.part(part{kind: xLex, r: p.b.m.UTF8(regex.Between(lo, hi))})
		}
		if !fold {
			return p.b.part(part{kind: xLex, r: p.b.m.Literal(s)})
		}
		r := regex.Epsilon
		for i := len(s); i > 0; {
			c, n := utf8.DecodeLastRuneInString(s[:i])
			i -= n
			r = p.b.m.Concat(p.b.m.UTF8(regex.Between(c, c).Folded()), r)
		}
		return p.b.part(part{kind: xLex, r: r})
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
		return p.b.part(part{kind: xLex, r: r})
	case p.Eat("%json"):
		p.blank(true)
		v := p.value()
		e := p.b.m.schema(v, Spec{Whitespace: p.spec.Whitespace, Compact: p.spec.Compact, AnyOrder: p.spec.AnyOrder, Open: p.spec.Open})
		return p.b.part(part{kind: xDone, e: e})
	case p.Eat("%until"):
		p.blank(true)
		if p.At >= len(p.Text) || p.Text[p.At] != '"' {
			panic(p.fail("expected a text after %%until"))
		}
		s, _ := p.text()
		return p.b.part(part{kind: xLex, r: p.b.m.until(p.b.m.Literal(s), p.b.m.Literal(s))})
	case c == '<':
		panic(p.fail("tokens in a grammar are not supported"))
	case c == '&' || c == '%' || c == '~':
		panic(p.fail("%.12q is not supported", p.Text[p.At:]))
	}
	name := p.name()
	if name == "" {
		panic(p.fail("%q is not expected here", p.Text[p.At]))
	}
	return p.b.part(part{kind: xRule, name: name})
}

// terminal returns the regular expression of a part that may only use terminals.
func (p *larkParser) terminal(x *part) regex.ID {
	m := p.b.m
	list := make([]regex.ID, len(x.list))
	for i, l := range x.list {
		list[i] = p.terminal(l)
	}
	switch x.kind {
	case xLex:
		return x.r
	case xSeq:
		return m.Concat(list...)
	case xAlt:
		return m.Or(list...)
	case xRepeat:
		return m.Repeat(list[0], x.lo, x.hi)
	case xDone:
		panic(p.b.refused("%%json is allowed in rules only"))
	}
	if !isTerminal(x.name) {
		panic(p.b.refused("a terminal uses the rule %q", x.name))
	}
	if r, ok := p.done[x.name]; ok {
		return r
	}
	body := p.terms[x.name]
	if body == nil {
		panic(p.b.refused("the terminal %q is not defined", x.name))
	}
	if p.opened[x.name] {
		panic(p.b.refused("the terminal %q uses itself", x.name))
	}
	p.opened[x.name] = true
	r := p.terminal(body)
	p.done[x.name] = r
	return r
}

// resolve appends the ignored text to every terminal of a rule.
func (p *larkParser) resolve(x *part, skip regex.ID) *part {
	lex := func(r regex.ID) *part { return p.b.part(part{kind: xLex, r: p.b.m.Concat(r, skip)}) }
	switch x.kind {
	case xLex:
		return lex(x.r)
	case xDone:
		if skip == regex.Epsilon {
			return x
		}
		return p.b.part(part{kind: xSeq, list: []*part{x, p.b.part(part{kind: xLex, r: skip})}})
	case xRule:
		if !isTerminal(x.name) {
			return x
		}
		r := p.terminal(x)
		return lex(r)
	}
	out := *x
	out.list = make([]*part, len(x.list))
	for i, l := range x.list {
		out.list[i] = p.resolve(l, skip)
	}
	return p.b.part(out)
}
