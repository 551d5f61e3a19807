package jinja

import "fmt"

// Bounds of a template.
const (
	maxSource = 4 << 20 // bytes
	maxNested = 200     // expressions and blocks inside each other
)

// Template is parsed and can be rendered by many goroutines at once.
type Template struct{ body []stmt }

// Parse reads a template. Errors are *Error with the line.
func Parse(src string) (t *Template, err error) {
	p := &parser{}
	line := 0
	defer func() {
		if err != nil {
			t = nil
		}
	}()
	defer catch(&line, &err)
	if len(src) > maxSource {
		return nil, &Error{0, fmt.Sprintf("the template has %d bytes; at most %d are read", len(src), maxSource), ErrLimit}
	}
	p.tokens = lex(src)
	body := p.body("")
	if len(p.unknown) > 0 {
		return nil, p.unknown[0]
	}
	return &Template{body}, nil
}

type parser struct {
	tokens []token
	i      int
	depth  int
	loops  int       // for loops around the current place, within the macro
	macro  *macroDef // innermost

	// Filters and tests that do not exist. As in jinja2, one stands in the way of the
	// whole template, but directly in an if it fails only when it is reached.
	unknown []error
	inIf    bool
}

func (p *parser) unknownName(kind, name string) {
	if !p.inIf {
		p.unknown = append(p.unknown, &Error{p.cur().line, "No " + kind + " named '" + name + "'", ErrSyntax})
	}
}

// within parses with inIf set, and sets it back.
func (p *parser) within(inIf bool, parse func()) {
	outer := p.inIf
	p.inIf = inIf
	parse()
	p.inIf = outer
}

func (p *parser) cur() token { return p.tokens[p.i] }

func (p *parser) next() token {
	t := p.tokens[p.i]
	if t.kind != tokEOF {
		p.i++
	}
	return t
}

func (p *parser) fail(format string, a ...any) {
	panic(&Error{p.cur().line, fmt.Sprintf(format, a...), ErrSyntax})
}

func (p *parser) enter() {
	if p.depth++; p.depth > maxNested {
		panic(&Error{p.cur().line, fmt.Sprintf("nested deeper than %d", maxNested), ErrLimit})
	}
}

func (p *parser) leave() { p.depth-- }

func (p *parser) isOp(op string) bool { return p.cur().kind == tokOp && p.cur().text == op }

func (p *parser) isName(name string) bool { return p.cur().kind == tokName && p.cur().text == name }

func (p *parser) skipOp(op string) bool {
	if p.isOp(op) {
		p.i++
		return true
	}
	return false
}

func (p *parser) skipName(name string) bool {
	if p.isName(name) {
		p.i++
		return true
	}
	return false
}

func (p *parser) expectOp(op string) {
	if !p.skipOp(op) {
		p.fail("expected '%s', found %s", op, p.cur().describe())
	}
}

func (p *parser) expectName() string {
	if p.cur().kind != tokName {
		p.fail("expected a name, found %s", p.cur().describe())
	}
	return p.next().text
}

func (p *parser) expect(k tokenKind) {
	if p.cur().kind != k {
		p.fail("expected %s, found %s", token{kind: k}.describe(), p.cur().describe())
	}
	p.next()
}

// body parses statements up to a block whose name is one of ends, leaving the
// stream after that name; ends "" is the whole template.
func (p *parser) body(owner string, ends ...string) []stmt {
	p.enter()
	defer p.leave()
	var out []stmt
	for {
		switch t := p.next(); t.kind {
		case tokEOF:
			if owner != "" {
				p.fail("'%s' is not closed by '%s'", owner, ends[len(ends)-1])
			}
			return out
		case tokData:
			out = append(out, &textStmt{t.text})
		case tokVarBegin:
			out = append(out, &printStmt{p.tuple(true)})
			p.expect(tokVarEnd)
		case tokBlockBegin:
			for _, e := range ends {
				if p.isName(e) {
					return out
				}
			}
			out = append(out, p.statement())
		}
	}
}

// block parses a body and the closing tag that must be end.
func (p *parser) block(owner, end string) (body []stmt) {
	p.expect(tokBlockEnd)
	p.within(false, func() { body = p.body(owner, end) })
	p.next()
	p.expect(tokBlockEnd)
	return body
}

func (p *parser) statement() stmt {
	line := pos(p.cur().line)
	switch name := p.expectName(); name {
	case "if":
		return p.ifStatement()
	case "for":
		return p.forStatement(line)
	case "set":
		return p.setStatement(line)
	case "macro":
		return p.macroStatement(line)
	case "call":
		return p.callStatement(line)
	case "filter":
		var f expr
		p.within(false, func() { f = p.filters(nil, true) })
		return &filterStmt{line, f, p.block(name, "endfilter")}
	case "with":
		return p.withStatement(line)
	case "generation":
		return &scopeStmt{p.block(name, "endgeneration")}
	case "break", "continue":
		if p.loops == 0 {
			p.fail("'%s' outside of a loop", name)
		}
		p.expect(tokBlockEnd)
		if name == "break" {
			return breakStmt{}
		}
		return continueStmt{}
	case "include", "import", "from", "extends", "block":
		p.fail("'%s' is not supported: a chat template is one file", name)
	default:
		p.fail("unknown tag '%s'", name)
	}
	return nil
}

func (p *parser) ifStatement() stmt {
	outer := p.inIf
	p.inIf = true
	defer func() { p.inIf = outer }()
	s := &ifStmt{}
	for {
		s.tests = append(s.tests, p.tuple(false))
		p.expect(tokBlockEnd)
		s.bodies = append(s.bodies, p.body("if", "elif", "else", "endif"))
		switch p.next().text {
		case "elif":
			continue
		case "else":
			p.expect(tokBlockEnd)
			s.other = p.body("if", "endif")
			p.next()
		}
		p.expect(tokBlockEnd)
		return s
	}
}

func (p *parser) forStatement(line pos) stmt {
	s := &forStmt{pos: line, target: p.target()}
	if !p.skipName("in") {
		p.fail("expected 'in', found %s", p.cur().describe())
	}
	s.over = p.tuple(false)
	if p.skipName("if") {
		p.within(false, func() { s.filter = p.expression() })
	}
	s.recursive = p.skipName("recursive")
	p.expect(tokBlockEnd)
	p.loops++
	p.within(false, func() { s.body = p.body("for", "else", "endfor") })
	p.loops--
	if p.next().text == "else" {
		s.other = p.block("for", "endfor")
	} else {
		p.expect(tokBlockEnd)
	}
	return s
}

func (p *parser) setStatement(line pos) stmt {
	target := p.target()
	if p.skipOp("=") {
		v := p.tuple(true)
		p.expect(tokBlockEnd)
		return &setStmt{line, target, v}
	}
	var filters expr
	if p.isOp("|") {
		p.within(false, func() { filters = p.filters(nil, false) })
	}
	return &setBlockStmt{line, target, filters, p.block("set", "endset")}
}

func (p *parser) withStatement(line pos) stmt {
	s := &withStmt{pos: line}
	for p.cur().kind != tokBlockEnd {
		if len(s.targets) > 0 {
			p.expectOp(",")
		}
		s.targets = append(s.targets, p.target())
		p.expectOp("=")
		s.values = append(s.values, p.expression())
	}
	s.body = p.block("with", "endwith")
	return s
}

func (p *parser) macroStatement(line pos) stmt {
	m := &macroDef{name: p.expectName()}
	p.expectOp("(")
	p.within(false, func() { p.signature(m) })
	p.macroBody(m, "macro", "endmacro")
	return &macroStmt{line, m}
}

func (p *parser) callStatement(line pos) stmt {
	m := &macroDef{name: "caller"}
	if p.skipOp("(") {
		p.within(false, func() { p.signature(m) })
	}
	call, ok := p.expression().(*callExpr)
	if !ok {
		p.fail("expected a call after 'call'")
	}
	p.macroBody(m, "call", "endcall")
	return &callStmt{line, call, m}
}

func (p *parser) macroBody(m *macroDef, owner, end string) {
	outer, loops := p.macro, p.loops
	p.macro, p.loops = m, 0
	m.body = p.block(owner, end)
	p.macro, p.loops = outer, loops
}

// signature parses "a, b=1)".
func (p *parser) signature(m *macroDef) {
	for !p.skipOp(")") {
		if len(m.params) > 0 {
			p.expectOp(",")
			if p.skipOp(")") {
				return
			}
		}
		m.params = append(m.params, p.expectName())
		if p.skipOp("=") {
			m.defaults = append(m.defaults, p.expression())
		} else if len(m.defaults) > 0 {
			p.fail("parameter '%s' without a default follows one with a default", m.params[len(m.params)-1])
		}
	}
}

// target parses what can be assigned to: names, tuples of names, namespace.attr.
func (p *parser) target() expr {
	line := pos(p.cur().line)
	one := func() expr {
		if p.skipOp("(") {
			t := p.target()
			p.expectOp(")")
			return t
		}
		n := &nameExpr{pos(p.cur().line), p.expectName()}
		switch n.name {
		case "true", "false", "none", "True", "False", "None":
			p.fail("cannot assign to '%s'", n.name)
		}
		if p.skipOp(".") {
			return &attrExpr{n.pos, n, p.expectName()}
		}
		return n
	}
	p.enter()
	defer p.leave()
	first := one()
	if !p.isOp(",") {
		return first
	}
	t := &listExpr{line, []expr{first}, kindTuple}
	for p.skipOp(",") {
		if p.cur().kind != tokName && !p.isOp("(") || p.isName("in") {
			break
		}
		t.items = append(t.items, one())
	}
	return t
}
