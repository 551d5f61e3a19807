package notation

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/shoal-llm/shoal/internal/attempt"
	"github.com/shoal-llm/shoal/internal/text/grammar/regex"
)

// gbnfParser parses llama.cpp's GBNF (its grammars/README.md).
type gbnfParser struct {
	regex.Cursor
	b *rulebook
}

// GBNF reads a grammar of llama.cpp. Its literals and classes become expressions of the store.
// It panics with regex.TooLarge at the limits.
func GBNF(store *regex.Store, text string) (*Rules, error) {
	p := &gbnfParser{regex.Cursor{Text: text}, newRulebook(store, "GBNF: ")}
	return attempt.At(p.run)
}

func (p *gbnfParser) run() *Rules {
	if !utf8.ValidString(p.Text) {
		panic(p.b.refused("not valid UTF-8"))
	}
	for p.blank(true); p.At < len(p.Text); p.blank(true) {
		name := p.name()
		if name == "" {
			panic(p.fail("expected the name of a rule"))
		}
		p.blank(false)
		if !p.Eat("::=") {
			panic(p.fail("expected '::=' after %q", name))
		}
		p.blank(true)
		p.b.add(name, p.alts(false))
		if p.At < len(p.Text) && p.Text[p.At] != '\n' && p.Text[p.At] != '\r' {
			panic(p.fail("expected the end of the rule %q, found %q", name, p.Text[p.At]))
		}
	}
	return p.b.finish("root")
}

func (p *gbnfParser) fail(format string, args ...any) attempt.Failure {
	return attempt.Failure{Err: fmt.Errorf("GBNF, line %d: %s", p.Line(), fmt.Sprintf(format, args...))}
}

func (p *gbnfParser) blank(lines bool) { p.Blanks(lines, "#") }

func (p *gbnfParser) name() string {
	return p.While(func(b byte) bool { return regex.IsWord(b) || b == '-' || b == '_' })
}

func (p *gbnfParser) alts(nested bool) *Part {
	if p.Depth++; p.Depth > regex.MaxDepth {
		panic(p.fail("nested deeper than %d", regex.MaxDepth))
	}
	defer func() { p.Depth-- }()
	out := Part{Kind: Alt}
	for {
		seq := p.seq(nested)
		out.List = append(out.List, seq)
		if !p.Eat("|") {
			return p.b.part(out)
		}
		p.blank(true)
	}
}

func (p *gbnfParser) seq(nested bool) *Part {
	out := Part{Kind: Seq}
	for p.At < len(p.Text) {
		var item *Part
		switch c := p.Text[p.At]; {
		case c == '"':
			s := p.literal()
			item = p.b.part(Part{Kind: Lex, Lex: p.b.store.Literal(s)})
		case c == '[':
			set := p.class()
			item = p.b.part(Part{Kind: Lex, Lex: p.b.store.UTF8(set)})
		case c == '.':
			p.At++
			item = p.b.part(Part{Kind: Lex, Lex: p.b.store.UTF8(regex.AnyRune)})
		case c == '(':
			p.At++
			p.blank(true)
			inner := p.alts(true)
			if !p.Eat(")") {
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
			item = p.b.part(Part{Kind: Rule, Name: name})
		}
		p.blank(nested)
		for p.At < len(p.Text) && strings.IndexByte("*+?{", p.Text[p.At]) >= 0 {
			lo, hi := 0, -1
			switch p.Text[p.At] {
			case '+':
				lo = 1
			case '?':
				hi = 1
			case '{':
				q := regex.ParserAt(p.Text, p.At)
				var ok bool
				if lo, hi, ok = q.Bounds(); !ok || hi >= 0 && lo > hi || lo > regex.MaxRepeat || hi > regex.MaxRepeat {
					panic(p.fail("a repetition is out of range"))
				}
				p.At = q.At - 1
			}
			p.At++
			item = p.b.part(Part{Kind: Repeat, Lo: lo, Hi: hi, List: []*Part{item}})
			p.blank(nested)
		}
		out.List = append(out.List, item)
	}
	return p.b.part(out)
}

func (p *gbnfParser) char(end byte) rune {
	if p.At >= len(p.Text) || p.Text[p.At] == '\n' && end != 0 {
		panic(p.fail("expected %q", end))
	}
	if p.Text[p.At] != '\\' {
		c, n := utf8.DecodeRuneInString(p.Text[p.At:])
		p.At += n
		return c
	}
	q := regex.ParserAt(p.Text, p.At+1)
	c, err := attempt.At(q.Escaped)
	if err != nil {
		panic(p.fail("%v", err))
	}
	p.At = q.At
	return c
}

func (p *gbnfParser) literal() string {
	var out []byte
	for p.At++; p.At < len(p.Text) && p.Text[p.At] != '"'; {
		c := p.char('"')
		out = utf8.AppendRune(out, c)
	}
	if !p.Eat(`"`) {
		panic(p.fail("a text does not end"))
	}
	return string(out)
}

func (p *gbnfParser) class() regex.Runes {
	p.At++
	not := p.Eat("^")
	var out regex.Runes
	for !p.Eat("]") {
		if !p.More() {
			panic(p.fail("a class does not end"))
		}
		lo := p.char(']')
		hi := lo
		if p.At+1 < len(p.Text) && p.Text[p.At] == '-' && p.Text[p.At+1] != ']' {
			p.At++
			hi = p.char(']')
			if hi < lo {
				panic(p.fail("the range %q-%q is backwards", lo, hi))
			}
		}
		out = append(out, regex.Between(lo, hi)...)
	}
	if out = out.Normal(); not {
		out = regex.AnyRune.Except(out)
	}
	return out
}
