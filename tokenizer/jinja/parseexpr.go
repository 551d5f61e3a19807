package jinja

import (
	"math"
	"math/big"
	"strconv"
	"strings"
)

// Binding, loosest first, as in jinja2's parser: if-else; or; and; not;
// comparisons (chained); + -; ~; * / // %; **; unary and postfix; filters and
// tests. Unusual: ~ binds tighter than +, ** is left associative, and a filter
// after a signed number applies to the negated value.
var binding = map[string]int{"or": 1, "and": 2, "+": 5, "-": 5, "~": 6, "*": 7, "/": 7, "//": 7, "%": 7, "**": 8}

const (
	bindNot     = 3
	bindCompare = 4
)

// tuple parses a comma separated list; a single expression is itself. Without
// inline if (cond) where the caller needs the word: "for x in y if z".
func (p *parser) tuple(cond bool) expr {
	line := pos(p.cur().line)
	parse := p.expression
	if !cond {
		parse = func() expr { return p.binary(0) }
	}
	first := parse()
	if !p.isOp(",") {
		return first
	}
	t := &listExpr{line, []expr{first}, kindTuple}
	for p.skipOp(",") {
		if k := p.cur().kind; k == tokVarEnd || k == tokBlockEnd || p.isOp(")") {
			break
		}
		t.items = append(t.items, parse())
	}
	return t
}

func (p *parser) expression() expr {
	p.enter()
	defer p.leave()
	known := len(p.unknown)
	e := p.binary(0)
	for p.isName("if") {
		line := pos(p.next().line)
		c := &condExpr{pos: line, test: p.binary(0), yes: e}
		if p.skipName("else") {
			c.no = p.expression()
		}
		p.unknown = p.unknown[:known]
		e = c
	}
	return e
}

// binary parses operators that bind at least as tightly as min.
func (p *parser) binary(min int) expr {
	p.enter()
	defer p.leave()
	var left expr
	limit := math.MaxInt
	if line := pos(p.cur().line); min <= bindNot && p.skipName("not") {
		left = &unaryExpr{line, "not", p.binary(bindNot)}
		limit = bindNot // only "and" and "or" can follow a negation
	} else {
		left = p.unary(true)
	}
	for {
		t := p.cur()
		if min <= bindCompare && bindCompare < limit {
			if c := p.compare(left); c != nil {
				left = c
				continue
			}
		}
		b, ok := binding[t.text]
		if !ok || (t.kind != tokOp && t.kind != tokName) || b < min || b >= limit {
			return left
		}
		p.next()
		right := p.binary(b + 1)
		if t.text != "~" {
			left = &binaryExpr{pos(t.line), t.text, left, right}
		} else if c, ok := left.(*concatExpr); ok {
			c.items = append(c.items, right)
		} else {
			left = &concatExpr{pos(t.line), []expr{left, right}}
		}
	}
}

// compare parses a chain of comparisons after first, nil if there is none.
func (p *parser) compare(first expr) expr {
	c := &compareExpr{pos: pos(p.cur().line), first: first}
	for {
		switch t := p.cur(); {
		case t.kind == tokOp && (t.text == "==" || t.text == "!=" || t.text == "<" || t.text == "<=" || t.text == ">" || t.text == ">="):
			p.next()
			c.ops = append(c.ops, t.text)
		case p.skipName("in"):
			c.ops = append(c.ops, "in")
		case p.isName("not") && p.tokens[p.i+1].kind == tokName && p.tokens[p.i+1].text == "in":
			p.i += 2
			c.ops = append(c.ops, "notin")
		default:
			if len(c.ops) == 0 {
				return nil
			}
			return c
		}
		c.rest = append(c.rest, p.binary(bindCompare+1))
	}
}

func (p *parser) unary(withFilter bool) expr {
	p.enter()
	defer p.leave()
	var e expr
	if t := p.cur(); t.kind == tokOp && (t.text == "-" || t.text == "+") {
		p.next()
		e = &unaryExpr{pos(t.line), t.text, p.unary(false)}
	} else {
		e = p.primary()
	}
	e = p.postfix(e)
	if withFilter {
		e = p.filters(e, false)
	}
	return e
}

func (p *parser) primary() expr {
	t := p.next()
	line := pos(t.line)
	switch t.kind {
	case tokName:
		return p.name(t)
	case tokString:
		s := t.text
		for p.cur().kind == tokString {
			s += p.next().text
		}
		return &constExpr{line, Trusted(s)}
	case tokInt:
		return &constExpr{line, p.integer(t)}
	case tokFloat:
		f, err := strconv.ParseFloat(t.text, 64)
		if err != nil && f == 0 {
			p.fail("not a number: %s", t.text)
		}
		return &constExpr{line, f}
	case tokOp:
		switch t.text {
		case "(":
			if p.skipOp(")") {
				return &listExpr{line, nil, kindTuple}
			}
			e := p.tuple(true)
			p.expectOp(")")
			return e
		case "[":
			return &listExpr{line, p.items("]"), kindList}
		case "{":
			return p.dict(line)
		}
	}
	p.i--
	p.fail("expected an expression, found %s", t.describe())
	return nil
}

func (p *parser) name(t token) expr {
	line := pos(t.line)
	switch t.text {
	case "true", "True":
		return &constExpr{line, true}
	case "false", "False":
		return &constExpr{line, false}
	case "none", "None":
		return &constExpr{line, nil}
	}
	if m := p.macro; m != nil {
		m.usesVarargs = m.usesVarargs || t.text == "varargs"
		m.usesKwargs = m.usesKwargs || t.text == "kwargs"
		m.usesCaller = m.usesCaller || t.text == "caller"
	}
	return &nameExpr{line, t.text}
}

func (p *parser) integer(t token) Value {
	base, s := 10, t.text
	if len(s) > 2 && s[0] == '0' {
		base = map[byte]int{'x': 16, 'o': 8, 'b': 2}[s[1]|0x20]
		if base == 0 {
			base = 10
		} else {
			s = s[2:]
		}
	}
	i, err := strconv.ParseInt(s, base, 64)
	if err != nil {
		if b, ok := new(big.Int).SetString(s, base); ok && len(s) <= maxIntDigits {
			return b
		}
		p.fail("not an integer: %s", t.text)
	}
	return i
}

// items parses expressions up to the closing bracket.
func (p *parser) items(close string) []expr {
	var out []expr
	for !p.skipOp(close) {
		if len(out) > 0 {
			p.expectOp(",")
			if p.skipOp(close) {
				break
			}
		}
		out = append(out, p.expression())
	}
	return out
}

func (p *parser) dict(line pos) expr {
	d := &dictExpr{pos: line}
	for !p.skipOp("}") {
		if len(d.keys) > 0 {
			p.expectOp(",")
			if p.skipOp("}") {
				break
			}
		}
		d.keys = append(d.keys, p.expression())
		p.expectOp(":")
		d.values = append(d.values, p.expression())
	}
	return d
}

// postfix parses .name, .0, [index], [a:b:c] and (arguments).
func (p *parser) postfix(e expr) expr {
	for n := 0; ; n++ {
		p.chain(n)
		line := pos(p.cur().line)
		switch {
		case p.skipOp("."):
			switch t := p.next(); t.kind {
			case tokName:
				e = &attrExpr{line, e, t.text}
			case tokInt:
				e = &indexExpr{line, e, &constExpr{line, p.integer(t)}}
			default:
				p.i--
				p.fail("expected a name after '.', found %s", t.describe())
			}
		case p.skipOp("["):
			e = &indexExpr{line, e, p.subscript(line)}
		case p.isOp("("):
			e = &callExpr{line, e, p.arguments()}
		default:
			return e
		}
	}
}

// chain bounds a.b.c...: the evaluator descends one level for each.
func (p *parser) chain(n int) {
	if n > maxNested {
		panic(&Error{p.cur().line, "a chain of attributes, calls or filters is too long", ErrLimit})
	}
}

func (p *parser) subscript(line pos) expr {
	var items []expr
	for !p.skipOp("]") {
		if len(items) > 0 {
			p.expectOp(",")
		}
		items = append(items, p.subscribed())
	}
	switch len(items) {
	case 0:
		p.fail("expected an index between '[' and ']'")
	case 1:
		return items[0]
	}
	return &listExpr{line, items, kindTuple}
}

func (p *parser) subscribed() expr {
	s := &sliceExpr{pos: pos(p.cur().line)}
	for i := range 3 {
		if !p.isOp(":") && !p.isOp("]") && !p.isOp(",") {
			s.parts[i] = p.expression()
		}
		if i == 2 {
			break
		}
		if !p.skipOp(":") {
			if i == 0 {
				if s.parts[0] == nil {
					p.fail("expected an index, found %s", p.cur().describe())
				}
				return s.parts[0]
			}
			break
		}
	}
	return s
}

func (p *parser) arguments() (a argList) {
	p.expectOp("(")
	for n := 0; !p.skipOp(")"); n++ {
		if n > 0 {
			p.expectOp(",")
			if p.skipOp(")") {
				return a
			}
		}
		switch {
		case p.skipOp("**"):
			if a.starStar != nil {
				p.fail("'**' is given twice")
			}
			a.starStar = p.expression()
		case p.skipOp("*"):
			if a.star != nil || a.starStar != nil {
				p.fail("'*' must come once, and before '**'")
			}
			a.star = p.expression()
		case p.cur().kind == tokName && p.tokens[p.i+1].kind == tokOp && p.tokens[p.i+1].text == "=":
			a.names = append(a.names, p.next().text)
			p.next()
			a.named = append(a.named, p.expression())
		default:
			if len(a.names) > 0 || a.starStar != nil {
				p.fail("a positional argument follows a named one")
			}
			a.pos = append(a.pos, p.expression())
		}
	}
	return a
}

// filters parses "|name(args)", "is [not] test" and calls after these. In
// {% filter name %} the first bar is left out (bare).
func (p *parser) filters(e expr, bare bool) expr {
	for n := 0; ; n++ {
		p.chain(n)
		line := pos(p.cur().line)
		switch {
		case bare || p.skipOp("|"):
			bare = false
			f := &filterExpr{pos: line, of: e, name: p.dotted()}
			if filters[f.name] == nil {
				p.unknownName("filter", f.name)
			}
			if p.isOp("(") {
				f.args = p.arguments()
			}
			e = f
		case e != nil && p.skipName("is"):
			e = p.test(e, line)
		case e != nil && p.isOp("("):
			e = &callExpr{line, e, p.arguments()}
		default:
			return e
		}
	}
}

func (p *parser) dotted() string {
	parts := []string{p.expectName()}
	for p.skipOp(".") {
		parts = append(parts, p.expectName())
	}
	return strings.Join(parts, ".")
}

func (p *parser) test(e expr, line pos) expr {
	negated := p.skipName("not")
	t := &testExpr{pos: line, of: e, name: p.dotted()}
	if tests[t.name] == nil && compareTests[t.name] == "" {
		p.unknownName("test", t.name)
	}
	switch c := p.cur(); {
	case p.isOp("("):
		t.args = p.arguments()
	case c.kind == tokString || c.kind == tokInt || c.kind == tokFloat || p.isOp("[") || p.isOp("{"),
		c.kind == tokName && c.text != "else" && c.text != "or" && c.text != "and":
		if c.kind == tokName && c.text == "is" {
			p.fail("tests cannot be chained with 'is'")
		}
		t.args.pos = []expr{p.postfix(p.primary())}
	}
	if negated {
		return &unaryExpr{line, "not", t}
	}
	return t
}
