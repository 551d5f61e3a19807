package jinja

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/text/jinja/python"
)

const maxRange = 100000 // as in Jinja's sandbox

// globals are the functions available to every template. (strftime_now and raise_exception come
// from transformers.)
var globals map[string]python.Value

func init() {
	globals = map[string]python.Value{}
	for name, f := range map[string]func(in *interp, a *args) python.Value{
		"range":           pyRange,
		"dict":            pyDict,
		"namespace":       func(in *interp, a *args) python.Value { return &python.Namespace{Attrs: pyDict(in, a).(*python.Dict)} },
		"raise_exception": raise,
		"strftime_now": func(in *interp, a *args) python.Value {
			format := in.wantStr("strftime_now", a.bind(in, "strftime_now", "format")[0])
			in.Charge(64 * len(format.Text)) // bounds the output of every directive
			return format.Like(strftime(in.now, format.Text))
		},
		"joiner": func(in *interp, a *args) python.Value {
			sep := a.bind(in, "joiner", "sep?")[0]
			if !given(sep) {
				sep = python.Trusted(", ")
			}
			return &joiner{sep: in.wantStr("joiner", sep)}
		},
	} {
		globals[name] = &callable{name: name, call: f}
	}
}

func raise(in *interp, a *args) python.Value {
	msg := in.Str(a.bind(in, "raise_exception", "message")[0])
	panic(&python.Error{Line: in.Line, Message: msg.Text, Cause: python.ErrRaised})
}

func pyRange(in *interp, a *args) python.Value {
	p := a.bind(in, "range", "start", "stop?", "step?")
	lo, hi, step := 0, in.wantInt("range", p[0], 0), in.wantInt("range", p[2], 1)
	if given(p[1]) {
		lo, hi = hi, in.wantInt("range", p[1], 0)
	}
	if step == 0 {
		in.Fail("range() arg 3 must not be zero")
	}
	n := max((hi-lo+step-1)/step, 0)
	if step < 0 {
		n = max((lo-hi-step-1)/-step, 0)
	}
	if n > maxRange {
		in.Fail("range too big: the sandbox blocks ranges larger than %d", maxRange)
	}
	in.Charge(24 * n)
	r := &python.List{Kind: python.KindRange, Items: make([]python.Value, n), Name: fmt.Sprintf("range(%d, %d)", lo, hi)}
	if step != 1 {
		r.Name = fmt.Sprintf("range(%d, %d, %d)", lo, hi, step)
	}
	for i := range n {
		r.Items[i] = int64(lo + i*step)
	}
	return r
}

// pyDict implements dict(mapping or pairs, name=value...).
func pyDict(in *interp, a *args) python.Value {
	d := python.NewDict()
	if len(a.pos) > 1 {
		in.Fail("dict expected at most 1 argument, got %d", len(a.pos))
	}
	if len(a.pos) == 1 {
		if m, ok := a.pos[0].(*python.Dict); ok {
			in.Charge(64 * m.Len())
			d = m.Clone()
		} else {
			items := in.iterate(a.pos[0])
			in.Charge(64 * len(items))
			for _, x := range items {
				pair := in.iterate(x)
				if len(pair) != 2 {
					in.Fail("a dict is made of pairs, this has %d items", len(pair))
				}
				d.Put(in.Key(pair[0]), pair[0], pair[1])
			}
		}
	}
	for _, n := range a.named {
		d.Set(n.name, n.value)
	}
	return d
}

type joiner struct {
	sep  python.Str
	used bool
}

func (*joiner) TypeName() string { return "Joiner" }
func (*joiner) Repr() string     { return "<Joiner>" }
