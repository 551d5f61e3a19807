package jinja

import (
	"fmt"
	"slices"

	"github.com/shoal-llm/shoal/internal/text/jinja/python"
)

const (
	maxSource = 4 << 20 // bytes
	maxNested = 200     // nesting of expressions and blocks
)

// Template is a parsed template. Many goroutines may render it at once.
type Template struct{ body []stmt }

// Parse parses a template. Errors are *Error with the line.
func Parse(src string) (t *Template, err error) {
	p := &parser{}
	line := 0
	defer func() {
		if err != nil {
			t = nil
		}
	}()
	defer python.Catch(&line, &err)
	if len(src) > maxSource {
		return nil, &python.Error{Line: 0, Message: fmt.Sprintf("the template has %d bytes; at most %d are read", len(src), maxSource),
			Cause: python.ErrLimit}
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
	loops  int       // number of enclosing for loops in the current macro
	macro  *macroDef // innermost
	call   *call     // set if the newest node is a call

	// Unknown filters and tests. As in jinja2, one makes the whole template fail, except directly
	// in an if, where it fails only when evaluated.
	unknown []error
	inIf    bool
}

func (p *parser) unknownName(kind, name string) {
	if !p.inIf {
		p.unknown = append(p.unknown, &python.Error{Line: p.cur().line, Message: "No " + kind + " named '" + name + "'", Cause: python.ErrSyntax})
	}
}

// outsideIf runs parse with inIf unset, and restores it.
func (p *parser) outsideIf(parse func()) {
	outer := p.inIf
	p.inIf = false
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
	panic(&python.Error{Line: p.cur().line, Message: fmt.Sprintf(format, a...), Cause: python.ErrSyntax})
}

func (p *parser) enter() {
	if p.depth++; p.depth > maxNested {
		panic(&python.Error{Line: p.cur().line, Message: fmt.Sprintf("nested deeper than %d", maxNested), Cause: python.ErrLimit})
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

// body parses statements up to a block whose name is one of ends, and consumes the name. ends ""
// means the end of the template.
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
			out = append(out, func(in *interp, _ *scope, out *python.Builder) signal {
				in.write(out, python.Trusted(t.text))
				return goOn
			})
		case tokVarBegin:
			e := p.tuple(true)
			p.expect(tokVarEnd)
			out = append(out, func(in *interp, sc *scope, out *python.Builder) signal {
				in.write(out, in.Str(e(in, sc)))
				return goOn
			})
		case tokBlockBegin:
			if slices.ContainsFunc(ends, p.isName) {
				return out
			}
			out = append(out, p.statement())
		}
	}
}

// block parses a body and its closing tag end.
func (p *parser) block(owner, end string) (body []stmt) {
	p.expect(tokBlockEnd)
	p.outsideIf(func() { body = p.body(owner, end) })
	p.next()
	p.expect(tokBlockEnd)
	return body
}

func (p *parser) statement() stmt {
	line := p.cur().line
	switch name := p.expectName(); name {
	case "if":
		return p.ifStatement()
	case "for":
		return p.forStatement(line)
	case "set":
		return p.setStatement(line)
	case "macro":
		m := &macroDef{name: p.expectName()}
		p.expectOp("(")
		p.outsideIf(func() { p.signature(m) })
		p.macroBody(m, "macro", "endmacro")
		return func(in *interp, sc *scope, _ *python.Builder) signal {
			sc.set(m.name, in.macro(m, sc))
			return goOn
		}
	case "call":
		return p.callStatement(line)
	case "filter":
		var filters expr
		p.outsideIf(func() { filters = p.filters(piped, true) })
		body := p.block(name, "endfilter")
		return func(in *interp, sc *scope, out *python.Builder) signal {
			in.write(out, in.Str(in.filtered(body, filters, sc)))
			return goOn
		}
	case "with":
		return p.withStatement()
	case "generation":
		body := p.block(name, "endgeneration")
		return func(in *interp, sc *scope, out *python.Builder) signal { return in.exec(body, sc.inner(), out) }
	case "break", "continue":
		if p.loops == 0 {
			p.fail("'%s' outside of a loop", name)
		}
		p.expect(tokBlockEnd)
		sig := map[string]signal{"break": doBreak, "continue": doContinue}[name]
		return func(*interp, *scope, *python.Builder) signal { return sig }
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
	var tests []expr
	var bodies [][]stmt // one more than tests, for the else branch
	for {
		tests = append(tests, p.tuple(false))
		p.expect(tokBlockEnd)
		bodies = append(bodies, p.body("if", "elif", "else", "endif"))
		var other []stmt
		switch p.next().text {
		case "elif":
			continue
		case "else":
			p.expect(tokBlockEnd)
			other = p.body("if", "endif")
			p.next()
		}
		p.expect(tokBlockEnd)
		bodies = append(bodies, other)
		return func(in *interp, sc *scope, out *python.Builder) signal {
			i := 0
			for i < len(tests) && !python.Truth(tests[i](in, sc)) {
				i++
			}
			return in.exec(bodies[i], sc, out)
		}
	}
}

func (p *parser) forStatement(line int) stmt {
	l := &forLoop{line: line, target: p.target()}
	if !p.skipName("in") {
		p.fail("expected 'in', found %s", p.cur().describe())
	}
	over := p.tuple(false)
	if p.skipName("if") {
		p.outsideIf(func() { l.filter = p.expression() })
	}
	l.recursive = p.skipName("recursive")
	p.expect(tokBlockEnd)
	p.loops++
	p.outsideIf(func() { l.body = p.body("for", "else", "endfor") })
	p.loops--
	if p.next().text == "else" {
		l.other = p.block("for", "endfor")
	} else {
		p.expect(tokBlockEnd)
	}
	return func(in *interp, sc *scope, out *python.Builder) signal { return l.run(in, over(in, sc), sc, out, 0) }
}

func (p *parser) setStatement(line int) stmt {
	to := p.target()
	if p.skipOp("=") {
		value := p.tuple(true)
		p.expect(tokBlockEnd)
		return func(in *interp, sc *scope, _ *python.Builder) signal {
			v := value(in, sc)
			in.Line = line
			to(in, v, sc)
			return goOn
		}
	}
	filters := piped
	if p.isOp("|") {
		p.outsideIf(func() { filters = p.filters(piped, false) })
	}
	body := p.block("set", "endset")
	return func(in *interp, sc *scope, _ *python.Builder) signal {
		to(in, in.filtered(body, filters, sc), sc)
		return goOn
	}
}

func (p *parser) withStatement() stmt {
	var targets []target
	var values []expr
	for p.cur().kind != tokBlockEnd {
		if len(targets) > 0 {
			p.expectOp(",")
		}
		targets = append(targets, p.target())
		p.expectOp("=")
		values = append(values, p.expression())
	}
	body := p.block("with", "endwith")
	return func(in *interp, sc *scope, out *python.Builder) signal {
		inner := sc.inner()
		for i, to := range targets {
			to(in, values[i](in, sc), inner)
		}
		return in.exec(body, inner, out)
	}
}

func (p *parser) callStatement(line int) stmt {
	m := &macroDef{name: "caller"}
	if p.skipOp("(") {
		p.outsideIf(func() { p.signature(m) })
	}
	p.expression()
	c := p.call
	if c == nil {
		p.fail("expected a call after 'call'")
	}
	p.macroBody(m, "call", "endcall")
	return func(in *interp, sc *scope, out *python.Builder) signal {
		fn, a := c.fn(in, sc), in.args(&c.args, sc)
		a.named = append(a.named, named{"caller", in.macro(m, sc)})
		in.Line = line
		in.write(out, in.Str(in.call(fn, a)))
		return goOn
	}
}

func (p *parser) macroBody(m *macroDef, owner, end string) {
	outer, loops := p.macro, p.loops
	p.macro, p.loops = m, 0
	m.body = p.block(owner, end)
	p.macro, p.loops = outer, loops
	if outer != nil { // jinja2 also counts the names in a nested body
		outer.usesVarargs = outer.usesVarargs || m.usesVarargs
		outer.usesKwargs = outer.usesKwargs || m.usesKwargs
		outer.usesCaller = outer.usesCaller || m.usesCaller
	}
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

// target parses an assignment target: names, tuples of names, namespace.attr.
func (p *parser) target() target {
	p.enter()
	defer p.leave()
	one := func() target {
		if p.skipOp("(") {
			t := p.target()
			p.expectOp(")")
			return t
		}
		line, name := p.cur().line, p.expectName()
		switch name {
		case "true", "false", "none", "True", "False", "None":
			p.fail("cannot assign to '%s'", name)
		}
		if !p.skipOp(".") {
			return func(_ *interp, v python.Value, sc *scope) { sc.set(name, v) }
		}
		of, attr := p.variable(line, name), p.expectName()
		return func(in *interp, v python.Value, sc *scope) {
			ns, ok := of(in, sc).(*python.Namespace)
			if !ok {
				in.Fail("cannot assign attribute on non-namespace object")
			}
			ns.Attrs.Set(attr, v)
		}
	}
	all := []target{one()}
	if !p.isOp(",") {
		return all[0]
	}
	for p.skipOp(",") {
		if p.cur().kind != tokName && !p.isOp("(") || p.isName("in") {
			break
		}
		all = append(all, one())
	}
	return func(in *interp, v python.Value, sc *scope) {
		items := in.iterate(v)
		if len(items) != len(all) {
			in.Fail("cannot unpack %d values into %d names", len(items), len(all))
		}
		for i, to := range all {
			to(in, items[i], sc)
		}
	}
}
