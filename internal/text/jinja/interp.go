package jinja

import (
	"strings"
	"time"

	"github.com/shoal-llm/shoal/internal/text/jinja/python"
)

type Options struct {
	Limits python.Limits
	Now    time.Time // for strftime_now; a parameter, so that rendering is pure
}

// Render renders the template with the variables. Errors are *Error.
func (t *Template) Render(vars *python.Dict, o Options) (text python.Str, err error) {
	in := &interp{Meter: python.NewMeter(o.Limits), now: o.Now}
	defer python.Catch(&in.Line, &err)
	root := &scope{vars: make(map[string]python.Value)}
	if vars != nil {
		for _, e := range vars.Entries {
			if name, ok := e.Key.(python.Str); ok {
				root.vars[name.Text] = e.Value
			}
		}
	}
	out := &python.Builder{}
	in.main = out
	in.exec(t.body, &scope{vars: make(map[string]python.Value), outer: root}, out)
	return out.Str(), nil
}

type interp struct {
	*python.Meter
	now  time.Time
	main *python.Builder // the output itself, as opposed to captured text
}

// scope holds names. Inner blocks have access to outer names, including those set later.
type scope struct {
	vars  map[string]python.Value
	outer *scope
}

func (s *scope) inner() *scope { return &scope{outer: s} }

func (s *scope) set(name string, v python.Value) {
	if s.vars == nil {
		s.vars = make(map[string]python.Value, 4)
	}
	s.vars[name] = v
}

func (s *scope) get(name string) (python.Value, bool) {
	for ; s != nil; s = s.outer {
		if v, ok := s.vars[name]; ok {
			return v, true
		}
	}
	return nil, false
}

func (in *interp) write(out *python.Builder, s python.Str) {
	if out == in.main {
		if len(s.Text) > in.Limits.Output-out.Len() {
			in.Exceed("too many bytes of output", in.Limits.Output)
		}
	} else {
		in.Made(s)
	}
	out.Add(s)
}

// signal is the effect of a statement on the enclosing loop: none, break or continue.
type signal uint8

const (
	goOn signal = iota
	doBreak
	doContinue
)

func (in *interp) exec(body []stmt, sc *scope, out *python.Builder) signal {
	in.Enter()
	defer in.Leave()
	for _, s := range body {
		in.Step(1)
		if sig := s(in, sc, out); sig != goOn {
			return sig
		}
	}
	return goOn
}

// filtered captures the output of a body and applies the filters to it.
func (in *interp) filtered(body []stmt, filters expr, sc *scope) python.Value {
	var b python.Builder
	inner := sc.inner()
	in.exec(body, inner, &b)
	inner.set("", b.Str())
	return filters(in, inner)
}

// macro returns the macro's function, which has access to the names around its definition.
func (in *interp) macro(m *macroDef, sc *scope) *callable {
	return &callable{name: m.name, macro: true, call: func(in *interp, a *args) python.Value {
		inner := in.bindMacro(m, a, sc)
		var b python.Builder
		in.exec(m.body, inner, &b)
		return b.Str()
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
			inner.set(p, &python.Undefined{Message: "parameter '" + p + "' was not provided"})
		}
	}
	if m.usesCaller {
		if _, ok := inner.vars["caller"]; !ok {
			inner.set("caller", &python.Undefined{Message: "No caller defined"})
			if j := a.find("caller"); j >= 0 {
				inner.set("caller", a.named[j].value)
				given[j] = true
			}
		}
	}
	in.Step(len(m.params) * len(a.named) / 8)
	surplus := python.NewDict()
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
		in.Fail("macro '%s' takes no keyword argument '%s'", m.name, surplus.Entries[0].Key)
	}
	switch {
	case m.usesVarargs:
		inner.set("varargs", python.Tuple(extra...))
	case len(extra) > 0:
		in.Fail("macro '%s' takes not more than %d argument(s)", m.name, len(m.params))
	}
	return inner
}

// iterate returns the items of any value that a for loop accepts.
func (in *interp) iterate(v python.Value) []python.Value {
	switch v := v.(type) {
	case *python.List:
		in.Step(len(v.Items))
		items := v.Items
		if v.Kind == python.KindIter {
			v.Items = nil
		}
		return items
	case *python.Dict:
		in.Charge(16 * v.Len())
		return v.Keys()
	case python.Str:
		in.Charge(40 * len(v.Text))
		chars := v.Chars()
		items := make([]python.Value, len(chars))
		for i, c := range chars {
			items[i] = c
		}
		return items
	case *python.Undefined:
		return nil
	}
	in.Fail("'%s' object is not iterable", python.TypeName(v))
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
