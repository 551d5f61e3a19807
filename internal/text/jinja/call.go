package jinja

import (
	"strings"

	"github.com/shoal-llm/shoal/internal/text/jinja/python"
)

// args has the evaluated arguments of one call.
type args struct {
	pos   []python.Value
	named []named
}

type named struct {
	name  string
	value python.Value
}

// absent is the result of bind for a missing optional argument. None is a value.
type absent struct{}

func given(v python.Value) bool { _, no := v.(absent); return !no }

func orNone(v python.Value) python.Value {
	if !given(v) {
		return nil
	}
	return v
}

func (a *args) find(name string) int {
	for i, n := range a.named {
		if n.name == name {
			return i
		}
	}
	return -1
}

// bind assigns arguments to parameters. A parameter whose name ends in "?" is optional.
func (a *args) bind(in *interp, fn string, params ...string) []python.Value {
	out := make([]python.Value, len(params))
	if len(a.pos) > len(params) {
		in.Fail("%s takes at most %d argument(s), %d were given", fn, len(params), len(a.pos))
	}
	used := 0
	for i, p := range params {
		name, optional := strings.CutSuffix(p, "?")
		j := a.find(name)
		switch {
		case i < len(a.pos):
			if j >= 0 {
				in.Fail("%s got two values for '%s'", fn, name)
			}
			out[i] = a.pos[i]
		case j >= 0:
			out[i] = a.named[j].value
			used++
		case optional:
			out[i] = absent{}
		default:
			in.Fail("%s needs the argument '%s'", fn, name)
		}
	}
	if used < len(a.named) {
		for _, n := range a.named {
			if !strings.Contains(" "+strings.Join(params, " ")+" ", " "+n.name+" ") &&
				!strings.Contains(" "+strings.Join(params, " ")+" ", " "+n.name+"? ") {
				in.Fail("%s has no argument '%s'", fn, n.name)
			}
		}
	}
	return out
}

func (in *interp) args(l *argList, sc *scope) *args {
	a := &args{}
	for _, e := range l.pos {
		a.pos = append(a.pos, e(in, sc))
	}
	if l.star != nil {
		a.pos = append(a.pos, in.iterate(l.star(in, sc))...)
	}
	add := func(name string, v python.Value) {
		if a.find(name) >= 0 {
			in.Fail("two values for the argument '%s'", name)
		}
		a.named = append(a.named, named{name, v})
	}
	for i, n := range l.names {
		add(n, l.named[i](in, sc))
	}
	if l.starStar != nil {
		d, ok := l.starStar(in, sc).(*python.Dict)
		if !ok {
			in.Fail("the value after ** must be a dict")
		}
		in.Step(d.Len() * (1 + d.Len()/8)) // find is linear
		for _, e := range d.Entries {
			k, ok := e.Key.(python.Str)
			if !ok {
				in.Fail("keywords must be strings")
			}
			add(k.Text, e.Value)
		}
	}
	in.Charge(16*len(a.pos) + 32*len(a.named))
	return a
}

// callable is a function, a macro or a bound method.
type callable struct {
	name string
	call func(in *interp, a *args) python.Value

	macro bool
}

func (*callable) TypeName() string { return "function" }
func (c *callable) Repr() string   { return "<Macro '" + c.name + "'>" }

func (in *interp) call(fn python.Value, a *args) python.Value {
	in.Enter()
	defer in.Leave()
	switch f := fn.(type) {
	case *callable:
		return f.call(in, a)
	case *loopObject:
		if f.recurse == nil {
			in.Fail("the loop must have the 'recursive' marker to be called recursively")
		}
		return f.recurse(in, a.bind(in, "loop", "iterable")[0])
	case *joiner:
		if !f.used {
			f.used = true
			return python.Str{}
		}
		return f.sep
	}
	in.defined(fn)
	in.Fail("'%s' object is not callable", python.TypeName(fn))
	return nil
}

// Argument conversions. Each fails like Python.

func (in *interp) wantStr(fn string, v python.Value) python.Str {
	s, ok := v.(python.Str)
	if !ok {
		in.defined(v)
		in.Fail("%s needs a string, not '%s'", fn, python.TypeName(v))
	}
	return s
}

func (in *interp) wantInt(fn string, v python.Value, otherwise int) int {
	if !given(v) {
		return otherwise
	}
	i, _, isInt, ok := python.Number(v)
	if !ok || !isInt {
		in.defined(v)
		in.Fail("%s needs an integer, not '%s'", fn, python.TypeName(v))
	}
	return int(min(max(i, -1<<40), 1<<40))
}

func optBool(v python.Value) bool { return given(v) && python.Truth(v) }
