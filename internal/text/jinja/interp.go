package jinja

import (
	"fmt"
	"strings"
	"time"
)

// Limits bounds the cost of one rendering. Zero fields take their defaults.
type Limits struct {
	Steps  int // evaluated nodes, loop iterations, compared values; default 10 million
	Bytes  int // of all strings and lists created; default 256 MiB
	Output int // bytes of the result; default 64 MiB
	Depth  int // nesting of expressions, blocks, macros and values; default 1000
}

func (l Limits) withDefaults() Limits {
	set := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	set(&l.Steps, 10_000_000)
	set(&l.Bytes, 256<<20)
	set(&l.Output, 64<<20)
	set(&l.Depth, 1000)
	return l
}

type Options struct {
	Limits Limits
	Now    time.Time // for strftime_now; a parameter, so that rendering is pure
}

// Render renders the template with the variables. Errors are *Error.
func (t *Template) Render(vars *Dict, o Options) (text Str, err error) {
	in := &interp{lim: o.Limits.withDefaults(), now: o.Now}
	defer catch(&in.line, &err)
	root := &scope{vars: make(map[string]Value)}
	if vars != nil {
		for _, e := range vars.entries {
			if name, ok := e.key.(Str); ok {
				root.vars[name.s] = e.value
			}
		}
	}
	out := &builder{}
	in.main = out
	in.exec(t.body, &scope{vars: make(map[string]Value), outer: root}, out)
	return out.str(), nil
}

type interp struct {
	lim                 Limits
	now                 time.Time
	line                int
	steps, bytes, depth int
	main                *builder // the output itself, as opposed to captured text
}

// scope holds names. Inner blocks see outer names, including those set later.
type scope struct {
	vars  map[string]Value
	outer *scope
}

func (s *scope) inner() *scope { return &scope{outer: s} }

func (s *scope) set(name string, v Value) {
	if s.vars == nil {
		s.vars = make(map[string]Value, 4)
	}
	s.vars[name] = v
}

func (s *scope) get(name string) (Value, bool) {
	for ; s != nil; s = s.outer {
		if v, ok := s.vars[name]; ok {
			return v, true
		}
	}
	return nil, false
}

func (in *interp) fail(format string, a ...any) {
	panic(&Error{in.line, fmt.Sprintf(format, a...), ErrRuntime})
}

func (in *interp) limit(what string, n int) {
	panic(&Error{in.line, fmt.Sprintf("%s: at most %d", what, n), ErrLimit})
}

// step charges n units of work.
func (in *interp) step(n int) {
	if in.steps += n; in.steps > in.lim.Steps {
		in.limit("too many steps", in.lim.Steps)
	}
}

// scan charges a pass over a string.
func (in *interp) scan(s Str) { in.step(len(s.s) >> 8) }

// charge accounts for n bytes before they are allocated.
func (in *interp) charge(n int) {
	if n < 0 || n > in.lim.Bytes-in.bytes {
		in.limit("too many bytes of intermediate values", in.lim.Bytes)
	}
	in.bytes += n
}

// made charges a new string. The sizes of its inputs have bounded its size.
func (in *interp) made(s Str) Str {
	in.charge(len(s.s) + 16*len(s.lit))
	return s
}

func (in *interp) enter() {
	in.step(1)
	if in.depth++; in.depth > in.lim.Depth {
		in.limit("nested too deeply", in.lim.Depth)
	}
}

func (in *interp) leave() { in.depth-- }

func (in *interp) write(out *builder, s Str) {
	if out == in.main {
		if len(s.s) > in.lim.Output-out.len() {
			in.limit("too many bytes of output", in.lim.Output)
		}
	} else {
		in.made(s)
	}
	out.add(s)
}

// signal tells an enclosing loop the effect of a statement: break or continue.
type signal uint8

const (
	goOn signal = iota
	doBreak
	doContinue
)

func (in *interp) exec(body []stmt, sc *scope, out *builder) signal {
	in.enter()
	defer in.leave()
	for _, s := range body {
		in.step(1)
		if sig := s(in, sc, out); sig != goOn {
			return sig
		}
	}
	return goOn
}

// filtered captures the output of a body and applies the filters to it.
func (in *interp) filtered(body []stmt, filters expr, sc *scope) Value {
	var b builder
	inner := sc.inner()
	in.exec(body, inner, &b)
	inner.set("", b.str())
	return filters(in, inner)
}

// macro returns the macro's function, which sees the names around its definition.
func (in *interp) macro(m *macroDef, sc *scope) *callable {
	return &callable{name: m.name, macro: true, call: func(in *interp, a *args) Value {
		inner := in.bindMacro(m, a, sc)
		var b builder
		in.exec(m.body, inner, &b)
		return b.str()
	}}
}

func (in *interp) bindMacro(m *macroDef, a *args, sc *scope) *scope {
	inner := sc.inner()
	given := make([]bool, len(a.named))
	first := len(m.params) - len(m.defaults)
	for i, p := range m.params {
		if i < len(a.pos) {
			inner.set(p, a.pos[i])
			continue
		}
		if j := a.find(p); j >= 0 {
			inner.set(p, a.named[j].value)
			given[j] = true
		} else if i >= first {
			inner.set(p, m.defaults[i-first](in, inner))
		} else {
			inner.set(p, &Undefined{"parameter '" + p + "' was not provided"})
		}
	}
	if m.usesCaller {
		if _, ok := inner.vars["caller"]; !ok {
			inner.set("caller", &Undefined{"No caller defined"})
			if j := a.find("caller"); j >= 0 {
				inner.set("caller", a.named[j].value)
				given[j] = true
			}
		}
	}
	in.step(len(m.params) * len(a.named) / 8)
	surplus := NewDict()
	for j, n := range a.named {
		if !given[j] {
			surplus.Set(n.name, n.value)
		}
	}
	extra := a.pos[min(len(m.params), len(a.pos)):]
	switch {
	case m.usesKwargs:
		inner.set("kwargs", surplus)
	case surplus.Len() > 0:
		in.fail("macro '%s' takes no keyword argument '%s'", m.name, surplus.entries[0].key)
	}
	switch {
	case m.usesVarargs:
		inner.set("varargs", tuple(extra...))
	case len(extra) > 0:
		in.fail("macro '%s' takes not more than %d argument(s)", m.name, len(m.params))
	}
	return inner
}

// iterate returns the items of any value that a for loop accepts.
func (in *interp) iterate(v Value) []Value {
	switch v := v.(type) {
	case *List:
		in.step(len(v.items))
		items := v.items
		if v.kind == kindIter {
			v.items = nil
		}
		return items
	case *Dict:
		in.charge(16 * v.Len())
		return v.keys()
	case Str:
		in.charge(40 * len(v.s))
		chars := v.chars()
		items := make([]Value, len(chars))
		for i, c := range chars {
			items[i] = c
		}
		return items
	case *Undefined:
		return nil
	}
	in.fail("'%s' object is not iterable", typeName(v))
	return nil
}

// oneLine shortens a value for an error message.
func oneLine(s string) string {
	s = strings.ToValidUTF8(s, "?")
	if len(s) > 60 {
		s = strings.ToValidUTF8(s[:57], "") + "..."
	}
	return s
}
