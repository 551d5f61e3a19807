package jinja

import (
	"math"
	"math/big"
	"strconv"
	"strings"

	"github.com/shoal-llm/shoal/internal/text/jinja/python"
)

// Operator precedence as in jinja2's parser, from the loosest: if-else; or; and; not; comparisons
// (chained); + -; ~; * / // %; **; unary and postfix; filters and tests. Three are unusual: ~ binds
// tighter than +, ** is left associative, and a filter after a signed number applies to the negated
// value.
var binding = map[string]int{"or": 1, "and": 2, "+": 5, "-": 5, "~": 6, "*": 7, "/": 7, "//": 7, "%": 7, "**": 8}

const (
	bindNot     = 3
	bindCompare = 4
)

// node wraps an expression so that it counts a step and records its line.
func (p *parser) node(line int, e expr) expr {
	p.call = nil
	return func(in *interp, sc *scope) python.Value {
		in.Enter()
		defer in.Leave()
		in.Line = line
		return e(in, sc)
	}
}

func (p *parser) constant(line int, v python.Value) expr {
	return p.node(line, func(*interp, *scope) python.Value { return v })
}

func (p *parser) list(line int, items []expr, kind python.ListKind) expr {
	return p.node(line, func(in *interp, sc *scope) python.Value {
		l := &python.List{Kind: kind}
		in.Charge(16 * len(items))
		for _, x := range items {
			l.Items = append(l.Items, x(in, sc))
		}
		return l
	})
}

// tuple parses a comma-separated list; a single expression stays itself. Without cond, an inline
// "if" is not parsed: "for x in y if z".
func (p *parser) tuple(cond bool) expr {
	line := p.cur().line
	parse := p.expression
	if !cond {
		parse = func() expr { return p.binary(0) }
	}
	items := []expr{parse()}
	if !p.isOp(",") {
		return items[0]
	}
	for p.skipOp(",") {
		if k := p.cur().kind; k == tokVarEnd || k == tokBlockEnd || p.isOp(")") {
			break
		}
		items = append(items, parse())
	}
	return p.list(line, items, python.KindTuple)
}

func (p *parser) expression() expr {
	p.enter()
	defer p.leave()
	known := len(p.unknown)
	e := p.binary(0)
	for p.isName("if") {
		line, yes, test := p.next().line, e, p.binary(0)
		no := func(*interp, *scope) python.Value {
			return &python.Undefined{Message: "the inline if-expression evaluated to false and no else section was defined"}
		}
		if p.skipName("else") {
			no = p.expression()
		}
		p.unknown = p.unknown[:known]
		e = p.node(line, func(in *interp, sc *scope) python.Value {
			if python.Truth(test(in, sc)) {
				return yes(in, sc)
			}
			return no(in, sc)
		})
	}
	return e
}

// binary parses operators that bind at least as tightly as min.
func (p *parser) binary(min int) expr {
	p.enter()
	defer p.leave()
	var left expr
	limit := math.MaxInt
	if line := p.cur().line; min <= bindNot && p.skipName("not") {
		left = p.prefix(line, "not", p.binary(bindNot))
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
		operands := []expr{left}
		for p.next(); ; p.next() {
			operands = append(operands, p.binary(b+1))
			if t.text != "~" || !p.isOp("~") {
				break
			}
		}
		left = p.operator(t, operands)
	}
}

func (p *parser) prefix(line int, op string, of expr) expr {
	return p.node(line, func(in *interp, sc *scope) python.Value {
		v := of(in, sc)
		in.Line = line
		return in.unary(op, v)
	})
}

// operator joins two operands, or for ~ any number.
func (p *parser) operator(t token, of []expr) expr {
	return p.node(t.line, func(in *interp, sc *scope) python.Value {
		if t.text == "~" {
			var b python.Builder
			for _, x := range of {
				b.Add(in.Made(in.Str(x(in, sc))))
			}
			return b.Str()
		}
		a := of[0](in, sc)
		if t.text == "and" || t.text == "or" {
			if python.Truth(a) == (t.text == "or") {
				return a
			}
			return of[1](in, sc)
		}
		b := of[1](in, sc)
		in.Line = t.line
		return in.arithmetic(t.text, a, b)
	})
}

// compare parses a chain of comparisons after first; nil if there is none.
func (p *parser) compare(first expr) expr {
	line := p.cur().line
	var ops []string // == != < <= > >= in notin
	var rest []expr
	for {
		switch t := p.cur(); {
		case t.kind == tokOp && (t.text == "==" || t.text == "!=" || t.text == "<" || t.text == "<=" || t.text == ">" || t.text == ">="):
			p.next()
			ops = append(ops, t.text)
		case p.skipName("in"):
			ops = append(ops, "in")
		case p.isName("not") && p.tokens[p.i+1].kind == tokName && p.tokens[p.i+1].text == "in":
			p.i += 2
			ops = append(ops, "notin")
		case len(ops) == 0:
			return nil
		default:
			return p.node(line, func(in *interp, sc *scope) python.Value {
				left := first(in, sc)
				for i, op := range ops {
					right := rest[i](in, sc)
					in.Line = line
					if !in.compare(op, left, right) {
						return false
					}
					left = right
				}
				return true
			})
		}
		rest = append(rest, p.binary(bindCompare+1))
	}
}

func (p *parser) unary(withFilter bool) expr {
	p.enter()
	defer p.leave()
	var e expr
	if t := p.cur(); t.kind == tokOp && (t.text == "-" || t.text == "+") {
		p.next()
		e = p.prefix(t.line, t.text, p.unary(false))
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
	switch t.kind {
	case tokName:
		return p.name(t)
	case tokString:
		s := t.text
		for p.cur().kind == tokString {
			s += p.next().text
		}
		return p.constant(t.line, python.Trusted(s))
	case tokInt:
		return p.constant(t.line, p.integer(t))
	case tokFloat:
		f, err := strconv.ParseFloat(t.text, 64)
		if err != nil && f == 0 {
			p.fail("not a number: %s", t.text)
		}
		return p.constant(t.line, f)
	case tokOp:
		switch t.text {
		case "(":
			if p.skipOp(")") {
				return p.list(t.line, nil, python.KindTuple)
			}
			e := p.tuple(true)
			p.expectOp(")")
			return e
		case "[":
			return p.list(t.line, p.items("]", nil), python.KindList)
		case "{":
			var keys []expr
			values := p.items("}", func() {
				keys = append(keys, p.expression())
				p.expectOp(":")
			})
			return p.node(t.line, func(in *interp, sc *scope) python.Value {
				d := python.NewDict()
				in.Charge(64 * len(keys))
				for i := range keys {
					k := keys[i](in, sc)
					d.Put(in.Key(k), k, values[i](in, sc))
				}
				return d
			})
		}
	}
	p.i--
	p.fail("expected an expression, found %s", t.describe())
	return nil
}

func (p *parser) name(t token) expr {
	switch t.text {
	case "true", "True":
		return p.constant(t.line, true)
	case "false", "False":
		return p.constant(t.line, false)
	case "none", "None":
		return p.constant(t.line, nil)
	}
	if m := p.macro; m != nil {
		m.usesVarargs = m.usesVarargs || t.text == "varargs"
		m.usesKwargs = m.usesKwargs || t.text == "kwargs"
		m.usesCaller = m.usesCaller || t.text == "caller"
	}
	return p.variable(t.line, t.text)
}

func (p *parser) variable(line int, name string) expr {
	return p.node(line, func(_ *interp, sc *scope) python.Value {
		if v, ok := sc.get(name); ok {
			return v
		}
		if v, ok := globals[name]; ok {
			return v
		}
		return python.UndefinedName(name)
	})
}

func (p *parser) integer(t token) python.Value {
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
		if b, ok := new(big.Int).SetString(s, base); ok && len(s) <= python.MaxIntDigits {
			return b
		}
		p.fail("not an integer: %s", t.text)
	}
	return i
}

// items parses expressions up to the closing bracket. key parses the text before each.
func (p *parser) items(close string, key func()) (out []expr) {
	for !p.skipOp(close) {
		if len(out) > 0 {
			p.expectOp(",")
			if p.skipOp(close) {
				break
			}
		}
		if key != nil {
			key()
		}
		out = append(out, p.expression())
	}
	return out
}

// postfix parses .name, .0, [index], [a:b:c] and (arguments).
func (p *parser) postfix(e expr) expr {
	for n := 0; ; n++ {
		p.chain(n)
		line, of := p.cur().line, e
		switch {
		case p.skipOp("."):
			switch t := p.next(); t.kind {
			case tokName:
				e = p.node(line, func(in *interp, sc *scope) python.Value {
					v := of(in, sc)
					in.Line = line
					return in.getattr(v, t.text)
				})
			case tokInt:
				e = p.index(line, of, p.constant(line, p.integer(t)))
			default:
				p.i--
				p.fail("expected a name after '.', found %s", t.describe())
			}
		case p.skipOp("["):
			e = p.subscript(line, of)
		case p.isOp("("):
			e = p.called(line, of)
		default:
			return e
		}
	}
}

func (p *parser) called(line int, fn expr) expr {
	c := &call{fn, p.arguments()}
	e := p.node(line, func(in *interp, sc *scope) python.Value {
		fn, a := c.fn(in, sc), in.args(&c.args, sc)
		in.Line = line
		return in.call(fn, a)
	})
	p.call = c
	return e
}

func (p *parser) index(line int, of, index expr) expr {
	return p.node(line, func(in *interp, sc *scope) python.Value {
		v, i := of(in, sc), index(in, sc)
		in.Line = line
		return in.getitem(v, i)
	})
}

// chain limits the length of a.b.c..., because the evaluator recurses for each part.
func (p *parser) chain(n int) {
	if n > maxNested {
		panic(&python.Error{Line: p.cur().line, Message: "a chain of attributes, calls or filters is too long", Cause: python.ErrLimit})
	}
}

// subscript parses the text between [ and ].
func (p *parser) subscript(line int, of expr) expr {
	var items []expr
	for !p.skipOp("]") {
		if len(items) > 0 {
			p.expectOp(",")
		}
		at := p.cur().line
		i, s := p.subscribed()
		if s != nil && len(items) == 0 && p.skipOp("]") {
			return p.node(line, func(in *interp, sc *scope) python.Value { return in.slice(at, of(in, sc), s, sc) })
		}
		if s != nil {
			i = p.node(at, func(in *interp, _ *scope) python.Value {
				in.Fail("a slice is only possible as an index")
				return nil
			})
		}
		items = append(items, i)
	}
	switch len(items) {
	case 0:
		p.fail("expected an index between '[' and ']'")
	case 1:
		return p.index(line, of, items[0])
	}
	return p.index(line, of, p.list(line, items, python.KindTuple))
}

// subscribed parses an index or a slice.
func (p *parser) subscribed() (expr, *slicing) {
	s := &slicing{}
	for i := range 3 {
		if !p.isOp(":") && !p.isOp("]") && !p.isOp(",") {
			s[i] = p.expression()
		}
		if i == 2 {
			break
		}
		if !p.skipOp(":") {
			if i == 0 {
				if s[0] == nil {
					p.fail("expected an index, found %s", p.cur().describe())
				}
				return s[0], nil
			}
			break
		}
	}
	return nil, s
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

// filters parses "|name(args)", "is [not] test" and calls after these. With bare, the first bar is
// omitted, as in {% filter name %}.
func (p *parser) filters(e expr, bare bool) expr {
	for n := 0; ; n++ {
		p.chain(n)
		line := p.cur().line
		switch {
		case bare || p.skipOp("|"):
			bare = false
			name, list := p.dotted(), argList{}
			if filters[name] == nil {
				p.unknownName("filter", name)
			}
			if p.isOp("(") {
				list = p.arguments()
			}
			e = p.applied(line, e, list, func(in *interp, v python.Value, a *args) python.Value { return in.filter(name, v, a) })
		case p.skipName("is"):
			e = p.test(e, line)
		case p.isOp("("):
			e = p.called(line, e)
		default:
			return e
		}
	}
}

// applied applies a filter or a test to a value.
func (p *parser) applied(line int, of expr, list argList, f func(in *interp, v python.Value, a *args) python.Value) expr {
	return p.node(line, func(in *interp, sc *scope) python.Value {
		v, a := of(in, sc), in.args(&list, sc)
		in.Line = line
		return f(in, v, a)
	})
}

func (p *parser) dotted() string {
	parts := []string{p.expectName()}
	for p.skipOp(".") {
		parts = append(parts, p.expectName())
	}
	return strings.Join(parts, ".")
}

func (p *parser) test(e expr, line int) expr {
	negated, name, list := p.skipName("not"), p.dotted(), argList{}
	if tests[name] == nil && compareTests[name] == "" {
		p.unknownName("test", name)
	}
	switch c := p.cur(); {
	case p.isOp("("):
		list = p.arguments()
	case c.kind == tokString || c.kind == tokInt || c.kind == tokFloat || p.isOp("[") || p.isOp("{"),
		c.kind == tokName && c.text != "else" && c.text != "or" && c.text != "and":
		if c.kind == tokName && c.text == "is" {
			p.fail("tests cannot be chained with 'is'")
		}
		list.pos = []expr{p.postfix(p.primary())}
	}
	t := p.applied(line, e, list, func(in *interp, v python.Value, a *args) python.Value { return in.test(name, v, a) })
	if negated {
		return p.prefix(line, "not", t)
	}
	return t
}
