package jinja

import (
	"fmt"
	"strings"
)

// getattr evaluates x.name: an attribute (method) first, then a key, as Jinja does.
func (in *interp) getattr(v Value, name string) Value {
	if r, ok := in.attribute(v, name); ok {
		return r
	}
	if d, ok := v.(*Dict); ok {
		if r, ok := d.Get(name); ok {
			return r
		}
	}
	in.refuseUnknown(v, name)
	return missing(v, "attribute", name)
}

// pythonAttributes lists the attributes of each type in Python. Some of them are implemented here.
var pythonAttributes = map[string]string{
	"str":   " casefold center encode expandtabs format format_map isidentifier isprintable istitle ljust maketrans rjust translate zfill ",
	"dict":  " fromkeys ",
	"int":   " as_integer_ratio bit_count bit_length conjugate denominator from_bytes imag is_integer numerator real to_bytes ",
	"bool":  " as_integer_ratio bit_count bit_length conjugate denominator from_bytes imag is_integer numerator real to_bytes ",
	"float": " as_integer_ratio conjugate fromhex hex imag is_integer real ",
	"range": " count index start step stop ",
	"Macro": " name arguments catch_kwargs catch_varargs caller explicit_caller ",
}

// refuseUnknown fails for an attribute that Python has but this package lacks. In Python it is not
// undefined, so its output must not be omitted.
func (in *interp) refuseUnknown(v Value, name string) {
	kind := typeName(v)
	if c, ok := v.(*callable); ok && c.macro {
		kind = "Macro"
	}
	if strings.Contains(pythonAttributes[kind], " "+name+" ") {
		in.fail("'%s object' has no attribute '%s' here: it is not implemented", kind, name)
	}
}

// getitem evaluates x[i]: an item first, then an attribute.
func (in *interp) getitem(v, i Value) Value {
	switch c := v.(type) {
	case *Dict:
		if in.hashable(i) { // other keys are missing
			if r, ok := c.lookup(in.key(i)); ok {
				return r
			}
		}
	case *List:
		if n, ok := index(i, len(c.items)); ok && c.indexable() {
			return c.items[n]
		}
	case Str:
		in.scan(c)
		if _, _, isInt, ok := number(i); ok && isInt {
			if n, ok := index(i, c.runes()); ok {
				return c.at(n)
			}
		}
	case *Undefined:
		in.defined(v)
	}
	if s, ok := i.(Str); ok {
		if r, ok := in.attribute(v, s.s); ok {
			return r
		}
		if !isDict(v) { // a missing key is undefined
			in.refuseUnknown(v, s.s)
		}
		return missing(v, "attribute", s.s)
	}
	return missing(v, "element", in.repr(i).s)
}

func isDict(v Value) bool { _, ok := v.(*Dict); return ok }

// index resolves Python's negative indices.
func index(v Value, n int) (int, bool) {
	i, _, isInt, ok := number(v)
	if !ok || !isInt {
		return 0, false
	}
	if i < 0 {
		i += int64(n)
	}
	return int(i), i >= 0 && i < int64(n)
}

func missing(v Value, what, name string) *Undefined {
	kind := typeName(v) + " object"
	if v == nil {
		kind = "None"
	}
	if what == "element" {
		return &Undefined{kind + " has no element " + oneLine(name)}
	}
	return &Undefined{"'" + kind + "' has no " + what + " '" + oneLine(name) + "'"}
}

// attribute finds methods and computed attributes, not keys.
func (in *interp) attribute(v Value, name string) (Value, bool) {
	if _, ok := v.(*Undefined); ok {
		in.defined(v)
	}
	if strings.HasPrefix(name, "_") {
		return nil, false // the sandbox hides Python's internals
	}
	switch v := v.(type) {
	case object:
		return v.attr(in, name)
	case *Namespace:
		return v.attrs.Get(name)
	case Str:
		if m, ok := strMethods[name]; ok {
			return &callable{name: name, call: func(in *interp, a *args) Value {
				in.scan(v)
				return m(in, v, a)
			}}, true
		}
	case *Dict:
		if m, ok := dictMethods[name]; ok {
			return &callable{name: name, call: func(in *interp, a *args) Value { return m(in, v, a) }}, true
		}
		if strings.Contains(" clear pop popitem setdefault update ", " "+name+" ") {
			in.fail("access to attribute '%s' of 'dict' object is unsafe", name)
		}
	case *List:
		if x, ok := groupAttribute(v, name); ok {
			return x, true
		}
		if m, ok := listMethods[name]; ok && v.kind <= kindTuple {
			return &callable{name: name, call: func(in *interp, a *args) Value { return m(in, v, a) }}, true
		}
		if v.kind == kindList && strings.Contains(" append clear extend insert pop remove reverse sort ", " "+name+" ") {
			in.fail("access to attribute '%s' of 'list' object is unsafe", name)
		}
	}
	return nil, false
}

var dictMethods = map[string]func(in *interp, d *Dict, a *args) Value{
	"get": func(in *interp, d *Dict, a *args) Value {
		p := a.bind(in, "get", "key", "default?")
		if len(a.named) > 0 {
			in.fail("dict.get() takes no keyword arguments")
		}
		if v, ok := d.lookup(in.key(p[0])); ok {
			return v
		}
		return orNone(p[1])
	},
	"items":  func(in *interp, d *Dict, a *args) Value { return in.view(a, "dict_items", d.items()) },
	"keys":   func(in *interp, d *Dict, a *args) Value { return in.view(a, "dict_keys", d.keys()) },
	"values": func(in *interp, d *Dict, a *args) Value { return in.view(a, "dict_values", d.values()) },
	"copy": func(in *interp, d *Dict, a *args) Value {
		in.charge(64 * d.Len())
		return d.clone()
	},
}

func (in *interp) view(a *args, name string, items []Value) Value {
	a.bind(in, name)
	in.step(len(items))
	in.charge(64 * len(items))
	return &List{items: items, kind: kindView, name: name}
}

var listMethods = map[string]func(in *interp, l *List, a *args) Value{
	"count": func(in *interp, l *List, a *args) Value {
		v, n := a.bind(in, "count", "value")[0], int64(0)
		for _, x := range l.items {
			if in.equal(x, v) {
				n++
			}
		}
		return n
	},
	"index": func(in *interp, l *List, a *args) Value {
		v := a.bind(in, "index", "value")[0]
		for i, x := range l.items {
			if in.equal(x, v) {
				return int64(i)
			}
		}
		in.fail("value is not in list")
		return nil
	},
	"copy": func(in *interp, l *List, a *args) Value {
		in.charge(16 * len(l.items))
		return &List{items: append([]Value(nil), l.items...), kind: l.kind}
	},
}

// slice evaluates x[a:b:c] for strings and lists.
func (in *interp) slice(line int, v Value, s *slicing, sc *scope) Value {
	var bound [3]*int
	for i, e := range s {
		if e == nil {
			continue
		}
		switch x := e(in, sc).(type) {
		case nil:
		default:
			n, _, isInt, ok := number(x)
			if !ok || !isInt {
				in.defined(x)
				in.fail("slice indices must be integers or None")
			}
			k := int(min(max(n, -1<<40), 1<<40))
			bound[i] = &k
		}
	}
	in.line = line
	switch c := v.(type) {
	case Str:
		in.scan(c)
		n := c.runes()
		lo, step, count := in.sliceRange(bound, n)
		if step == 1 {
			a := c.offset(lo)
			return in.made(c.slice(a, a+c.slice(a, len(c.s)).offset(count)))
		}
		in.charge(40 * n)
		chars := c.chars()
		var b builder
		for i := range count {
			b.add(chars[lo+i*step])
		}
		return b.str()
	case *List:
		if !c.indexable() {
			break
		}
		lo, step, count := in.sliceRange(bound, len(c.items))
		in.charge(16 * count)
		r := &List{kind: c.kind, name: c.name, items: make([]Value, count)}
		for i := range count {
			r.items[i] = c.items[lo+i*step]
		}
		if c.kind == kindRange && count > 0 && step == 1 {
			r.name = fmt.Sprintf("range(%d, %d)", r.items[0], r.items[count-1].(int64)+1)
		}
		return r
	}
	in.defined(v)
	in.fail("'%s' object cannot be sliced", typeName(v))
	return nil
}

// sliceRange is Python's slice.indices: first index, step, number of items.
func (in *interp) sliceRange(bound [3]*int, n int) (lo, step, count int) {
	step = 1
	if bound[2] != nil {
		step = *bound[2]
	}
	if step == 0 {
		in.fail("slice step cannot be zero")
	}
	floor, ceil := 0, n
	if step < 0 {
		floor, ceil = -1, n-1
	}
	clamp := func(p *int, unset int) int {
		if p == nil {
			return unset
		}
		i := *p
		if i < 0 {
			i += n
		}
		return min(max(i, floor), ceil)
	}
	var hi int
	if step > 0 {
		lo, hi = clamp(bound[0], 0), clamp(bound[1], n)
		count = (hi - lo + step - 1) / step
	} else {
		lo, hi = clamp(bound[0], n-1), clamp(bound[1], -1)
		count = (lo - hi - step - 1) / -step
	}
	return lo, step, max(count, 0)
}
