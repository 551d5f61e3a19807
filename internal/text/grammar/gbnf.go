package grammar

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/shoal-llm/shoal/internal/attempt"
)

// gbnfParser parses llama.cpp's GBNF (its grammars/README.md).
type gbnfParser struct {
	cursor
	b *rulebook
}

func (m *machine) compileGBNF(text string) exprID {
	p := &gbnfParser{cursor{s: text}, newRulebook(m, "GBNF: ")}
	if !utf8.ValidString(text) {
		panic(attempt.Failure{Err: &Error{Message: "GBNF: not valid UTF-8"}})
	}
	for p.blank(true); p.at < len(p.s); p.blank(true) {
		name := p.name()
		if name == "" {
			panic(p.fail("expected the name of a rule"))
		}
		p.blank(false)
		if !p.eat("::=") {
			panic(p.fail("expected '::=' after %q", name))
		}
		p.blank(true)
		p.b.add(name, p.alts(false))
		if p.at < len(p.s) && p.s[p.at] != '\n' && p.s[p.at] != '\r' {
			panic(p.fail("expected the end of the rule %q, found %q", name, p.s[p.at]))
		}
	}
	return p.b.compile("root")
}

func (p *gbnfParser) fail(format string, args ...any) attempt.Failure {
	return attempt.Failure{Err: &Error{Message: fmt.Sprintf("GBNF, line %d: %s", p.line(), fmt.Sprintf(format, args...))}}
}

func (p *gbnfParser) blank(lines bool) { p.blanks(lines, "#") }

func (p *gbnfParser) name() string {
	return p.while(func(b byte) bool { return isWord(b) || b == '-' || b == '_' })
}

func (p *gbnfParser) alts(nested bool) *part {
	if p.depth++; p.depth > maxPatternDepth {
		panic(p.fail("nested deeper than %d", maxPatternDepth))
	}
	defer func() { p.depth-- }()
	out := part{kind: xAlt}
	for {
		seq := p.seq(nested)
		out.list = append(out.list, seq)
		if !p.eat("|") {
			return p.b.part(out)
		}
		p.blank(true)
	}
}

func (p *gbnfParser) seq(nested bool) *part {
	out := part{kind: xSeq}
	for p.at < len(p.s) {
		var item *part
		switch c := p.s[p.at]; {
		case c == '"':
			s := p.literal()
			item = p.b.part(part{kind: xLex, r: p.b.m.literal(s)})
		case c == '[':
			set := p.class()
			item = p.b.part(part{kind: xLex, r: p.b.m.utf8(set)})
		case c == '.':
			p.at++
			item = p.b.part(part{kind: xLex, r: p.b.m.utf8(anyRune)})
		case c == '(':
			p.at++
			p.blank(true)
			inner := p.alts(true)
			if !p.eat(")") {
				panic(p.fail("a group does not end"))
			}
			item = inner
		case c == '<' || c == '!':
			panic(p.fail("tokens in a grammar (%q) are not supported", c))
		default:
			name := p.name()
			if name == "" {
				return p.b.part(out)
			}
			item = p.b.part(part{kind: xRule, name: name})
		}
		p.blank(nested)
		for p.at < len(p.s) && strings.IndexByte("*+?{", p.s[p.at]) >= 0 {
			lo, hi := 0, -1
			switch p.s[p.at] {
			case '+':
				lo = 1
			case '?':
				hi = 1
			case '{':
				q := &patternParser{cursor: cursor{s: p.s, at: p.at}}
				var ok bool
				if lo, hi, ok = q.bounds(); !ok || hi >= 0 && lo > hi || lo > maxPatternRepeat || hi > maxPatternRepeat {
					panic(p.fail("a repetition is out of range"))
				}
				p.at = q.at - 1
			}
			p.at++
			item = p.b.part(part{kind: xRepeat, lo: lo, hi: hi, list: []*part{item}})
			p.blank(nested)
		}
		out.list = append(out.list, item)
	}
	return p.b.part(out)
}

func (p *gbnfParser) char(end byte) rune {
	if p.at >= len(p.s) || p.s[p.at] == '\n' && end != 0 {
		panic(p.fail("expected %q", end))
	}
	if p.s[p.at] != '\\' {
		c, n := utf8.DecodeRuneInString(p.s[p.at:])
		p.at += n
		return c
	}
	q := &patternParser{cursor: cursor{s: p.s, at: p.at + 1}}
	c, err := attempt.At(q.escaped)
	if err != nil {
		panic(p.fail("%v", err))
	}
	p.at = q.at
	return c
}

func (p *gbnfParser) literal() string {
	var out []byte
	for p.at++; p.at < len(p.s) && p.s[p.at] != '"'; {
		c := p.char('"')
		out = utf8.AppendRune(out, c)
	}
	if !p.eat(`"`) {
		panic(p.fail("a text does not end"))
	}
	return string(out)
}

func (p *gbnfParser) class() runes {
	p.at++
	not := p.eat("^")
	var out runes
	for !p.eat("]") {
		if !p.more() {
			panic(p.fail("a class does not end"))
		}
		lo := p.char(']')
		hi := lo
		if p.at+1 < len(p.s) && p.s[p.at] == '-' && p.s[p.at+1] != ']' {
			p.at++
			hi = p.char(']')
			if hi < lo {
				panic(p.fail("the range %q-%q is backwards", lo, hi))
			}
		}
		out = append(out, runeRange{lo, hi})
	}
	if out = out.normal(); not {
		out = anyRune.except(out)
	}
	return out
}
