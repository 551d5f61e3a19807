package jinja

import "fmt"

const maxRange = 100000 // as in Jinja's sandbox

// globals are the functions available to every template. (strftime_now and raise_exception come
// from transformers.)
var globals map[string]Value

func init() {
	globals = map[string]Value{}
	for name, f := range map[string]func(in *interp, a *args) Value{
		"range":           pyRange,
		"dict":            pyDict,
		"namespace":       func(in *interp, a *args) Value { return &Namespace{pyDict(in, a).(*Dict)} },
		"raise_exception": raise,
		"strftime_now": func(in *interp, a *args) Value {
			format := in.wantStr("strftime_now", a.bind(in, "strftime_now", "format")[0])
			in.charge(64 * len(format.s)) // bounds the output of every directive
			return format.like(strftime(in.now, format.s))
		},
		"joiner": func(in *interp, a *args) Value {
			sep := a.bind(in, "joiner", "sep?")[0]
			if !given(sep) {
				sep = Trusted(", ")
			}
			return &joiner{sep: in.wantStr("joiner", sep)}
		},
	} {
		globals[name] = &callable{name: name, call: f}
	}
}

func raise(in *interp, a *args) Value {
	msg := in.str(a.bind(in, "raise_exception", "message")[0])
	panic(&Error{in.line, msg.s, ErrRaised})
}

func pyRange(in *interp, a *args) Value {
	p := a.bind(in, "range", "start", "stop?", "step?")
	lo, hi, step := 0, in.wantInt("range", p[0], 0), in.wantInt("range", p[2], 1)
	if given(p[1]) {
		lo, hi = hi, in.wantInt("range", p[1], 0)
	}
	if step == 0 {
		in.fail("range() arg 3 must not be zero")
	}
	n := max((hi-lo+step-1)/step, 0)
	if step < 0 {
		n = max((lo-hi-step-1)/-step, 0)
	}
	if n > maxRange {
		in.fail("range too big: the sandbox blocks ranges larger than %d", maxRange)
	}
	in.charge(24 * n)
	r := &List{kind: kindRange, items: make([]Value, n), name: fmt.Sprintf("range(%d, %d)", lo, hi)}
	if step != 1 {
		r.name = fmt.Sprintf("range(%d, %d, %d)", lo, hi, step)
	}
	for i := range n {
		r.items[i] = int64(lo + i*step)
	}
	return r
}

// pyDict implements dict(mapping or pairs, name=value...).
func pyDict(in *interp, a *args) Value {
	d := NewDict()
	if len(a.pos) > 1 {
		in.fail("dict expected at most 1 argument, got %d", len(a.pos))
	}
	if len(a.pos) == 1 {
		if m, ok := a.pos[0].(*Dict); ok {
			in.charge(64 * m.Len())
			d = m.clone()
		} else {
			items := in.iterate(a.pos[0])
			in.charge(64 * len(items))
			for _, x := range items {
				pair := in.iterate(x)
				if len(pair) != 2 {
					in.fail("a dict is made of pairs, this has %d items", len(pair))
				}
				d.put(in.key(pair[0]), pair[0], pair[1])
			}
		}
	}
	for _, n := range a.named {
		d.Set(n.name, n.value)
	}
	return d
}

type joiner struct {
	sep  Str
	used bool
}

func (*joiner) typeName() string { return "Joiner" }

func (*joiner) attr(*interp, string) (Value, bool) { return nil, false }
