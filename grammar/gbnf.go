package grammar

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// gbnfParser reads llama.cpp's GBNF (grammars/README.md there).
type gbnfParser struct {
	cursor
	b *rulebook
}

func (m *machine) compileGBNF(text string) (eid, error) {
	p := &gbnfParser{cursor{s: text}, newRulebook(m)}
	if !utf8.ValidString(text) {
		return eFail, &Error{Message: "GBNF: not valid UTF-8"}
	}
	for p.blank(true); p.at < len(p.s); p.blank(true) {
		name := p.name()
		if name == "" {
			return eFail, p.fail("expected the name of a rule")
		}
		p.blank(false)
		if !strings.HasPrefix(p.s[p.at:], "::=") {
			return eFail, p.fail("expected '::=' after %q", name)
		}
		p.at += 3
		p.blank(true)
		body, err := p.alts(false)
		if err == nil {
			err = p.b.add(name, body)
		}
		if err != nil {
			return eFail, p.wrap(err)
		}
		if p.at < len(p.s) && p.s[p.at] != '\n' && p.s[p.at] != '\r' {
			return eFail, p.fail("expected the end of the rule %q, found %q", name, p.s[p.at])
		}
	}
	e, err := p.b.compile("root")
	if err != nil {
		return eFail, p.wrap(err)
	}
	return e, nil
}

func (p *gbnfParser) wrap(err error) error {
	var known *Error
	if errors.As(err, &known) {
		return known
	}
	return &Error{Message: "GBNF: " + err.Error()}
}

func (p *gbnfParser) fail(format string, args ...any) error {
	return &Error{Message: fmt.Sprintf("GBNF, line %d: %s", p.line(), fmt.Sprintf(format, args...))}
}

func (p *gbnfParser) blank(lines bool) { p.blanks(lines, "#") }

func (p *gbnfParser) name() string {
	return p.while(func(b byte) bool { return isWord(b) || b == '-' || b == '_' })
}

func (p *gbnfParser) alts(nested bool) (*part, error) {
	if p.depth++; p.depth > maxPatternDepth {
		return nil, p.fail("nested deeper than %d", maxPatternDepth)
	}
	defer func() { p.depth-- }()
	out := part{kind: xAlt}
	for {
		seq, err := p.seq(nested)
		if err != nil {
			return nil, err
		}
		out.list = append(out.list, seq)
		if p.at >= len(p.s) || p.s[p.at] != '|' {
			return p.b.part(out), nil
		}
		p.at++
		p.blank(true)
	}
}

func (p *gbnfParser) seq(nested bool) (*part, error) {
	out := part{kind: xSeq}
	for p.at < len(p.s) {
		var item *part
		switch c := p.s[p.at]; {
		case c == '"':
			s, err := p.literal()
			if err != nil {
				return nil, err
			}
			item = p.b.part(part{kind: xLex, r: p.b.m.literal(s)})
		case c == '[':
			set, err := p.class()
			if err != nil {
				return nil, err
			}
			item = p.b.part(part{kind: xLex, r: p.b.m.utf8(set)})
		case c == '.':
			p.at++
			item = p.b.part(part{kind: xLex, r: p.b.m.utf8(anyRune)})
		case c == '(':
			p.at++
			p.blank(true)
			inner, err := p.alts(true)
			if err != nil {
				return nil, err
			}
			if p.at >= len(p.s) || p.s[p.at] != ')' {
				return nil, p.fail("a group does not end")
			}
			p.at++
			item = inner
		case c == '<' || c == '!':
			return nil, p.fail("tokens in a grammar (%q) are not supported", c)
		default:
			name := p.name()
			if name == "" {
				return p.b.part(out), nil
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
					return nil, p.fail("a repetition is out of range")
				}
				p.at = q.at - 1
			}
			p.at++
			item = p.b.part(part{kind: xRepeat, lo: lo, hi: hi, list: []*part{item}})
			p.blank(nested)
		}
		out.list = append(out.list, item)
	}
	return p.b.part(out), nil
}

func (p *gbnfParser) char(end byte) (rune, error) {
	if p.at >= len(p.s) || p.s[p.at] == '\n' && end != 0 {
		return 0, p.fail("expected %q", end)
	}
	if p.s[p.at] != '\\' {
		c, n := utf8.DecodeRuneInString(p.s[p.at:])
		p.at += n
		return c, nil
	}
	q := &patternParser{cursor: cursor{s: p.s, at: p.at + 1}}
	c, err := q.escaped()
	if err != nil {
		return 0, p.fail("%v", err)
	}
	p.at = q.at
	return c, nil
}

func (p *gbnfParser) literal() (string, error) {
	var out []byte
	for p.at++; p.at < len(p.s) && p.s[p.at] != '"'; {
		c, err := p.char('"')
		if err != nil {
			return "", err
		}
		out = utf8.AppendRune(out, c)
	}
	if p.at >= len(p.s) {
		return "", p.fail("a text does not end")
	}
	p.at++
	return string(out), nil
}

func (p *gbnfParser) class() (runes, error) {
	p.at++
	not := strings.HasPrefix(p.s[p.at:], "^")
	if not {
		p.at++
	}
	var out runes
	for {
		if p.at >= len(p.s) {
			return nil, p.fail("a class does not end")
		}
		if p.s[p.at] == ']' {
			p.at++
			break
		}
		lo, err := p.char(']')
		if err != nil {
			return nil, err
		}
		hi := lo
		if p.at+1 < len(p.s) && p.s[p.at] == '-' && p.s[p.at+1] != ']' {
			p.at++
			if hi, err = p.char(']'); err != nil {
				return nil, err
			}
			if hi < lo {
				return nil, p.fail("the range %q-%q is backwards", lo, hi)
			}
		}
		out = append(out, runeRange{lo, hi})
	}
	if out = out.normal(); not {
		out = anyRune.except(out)
	}
	return out, nil
}
