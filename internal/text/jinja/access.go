package jinja

import (
	"fmt"
	"strings"

	"github.com/shoal-llm/shoal/internal/text/jinja/python"
)

// getattr evaluates x.name: an attribute (method) first, then a key, as Jinja does.
func (in *interp) getattr(v python.Value, name string) python.Value {
	if r, ok := in.attribute(v, name); ok {
		return r
	}
	if d, ok := v.(*python.Dict); ok {
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
func (in *interp) refuseUnknown(v python.Value, name string) {
	kind := python.TypeName(v)
	if c, ok := v.(*callable); ok && c.macro {
		kind = "Macro"
	}
	if strings.Contains(pythonAttributes[kind], " "+name+" ") {
		in.Fail("'%s object' has no attribute '%s' here: it is not implemented", kind, name)
	}
}

// getitem evaluates x[i]: an item first, then an attribute.
func (in *interp) getitem(v, i python.Value) python.Value {
	switch c := v.(type) {
	case *python.Dict:
		if in.Hashable(i) { // other keys are missing
			if r, ok := c.Lookup(in.Key(i)); ok {
				return r
			}
		}
	case *python.List:
		if n, ok := index(i, len(c.Items)); ok && c.Indexable() {
			return c.Items[n]
		}
	case python.Str:
		in.Scan(c)
		if _, _, isInt, ok := python.Number(i); ok && isInt {
			if n, ok := index(i, c.Runes()); ok {
				return c.At(n)
			}
		}
	case *python.Undefined:
		in.defined(v)
	}
	if s, ok := i.(python.Str); ok {
		if r, ok := in.attribute(v, s.Text); ok {
			return r
		}
		if !isDict(v) { // a missing key is undefined
			in.refuseUnknown(v, s.Text)
		}
		return missing(v, "attribute", s.Text)
	}
	return missing(v, "element", in.Repr(i).Text)
}

func isDict(v python.Value) bool { _, ok := v.(*python.Dict); return ok }

// index resolves Python's negative indices.
func index(v python.Value, n int) (int, bool) {
	i, _, isInt, ok := python.Number(v)
	if !ok || !isInt {
		return 0, false
	}
	if i < 0 {
		i += int64(n)
	}
	return int(i), i >= 0 && i < int64(n)
}

func missing(v python.Value, what, name string) *python.Undefined {
	kind := python.TypeName(v) + " object"
	if v == nil {
		kind = "None"
	}
	if what == "element" {
		return &python.Undefined{Message: kind + " has no element " + oneLine(name)}
	}
	return &python.Undefined{Message: "'" + kind + "' has no " + what + " '" + oneLine(name) + "'"}
}

// attribute finds methods and computed attributes, not keys.
func (in *interp) attribute(v python.Value, name string) (python.Value, bool) {
	if _, ok := v.(*python.Undefined); ok {
		in.defined(v)
	}
	if strings.HasPrefix(name, "_") {
		return nil, false // the sandbox hides Python's internals
	}
	switch v := v.(type) {
	case *loopObject:
		return v.attr(name)
	case *python.Namespace:
		return v.Attrs.Get(name)
	case python.Str:
		if m, ok := strMethods[name]; ok {
			return &callable{name: name, call: func(in *interp, a *args) python.Value {
				in.Scan(v)
				return m(in, v, a)
			}}, true
		}
	case *python.Dict:
		if m, ok := dictMethods[name]; ok {
			return &callable{name: name, call: func(in *interp, a *args) python.Value { return m(in, v, a) }}, true
		}
		if strings.Contains(" clear pop popitem setdefault update ", " "+name+" ") {
			in.Fail("access to attribute '%s' of 'dict' object is unsafe", name)
		}
	case *python.List:
		if x, ok := groupAttribute(v, name); ok {
			return x, true
		}
		if m, ok := listMethods[name]; ok && v.Kind <= python.KindTuple {
			return &callable{name: name, call: func(in *interp, a *args) python.Value { return m(in, v, a) }}, true
		}
		if v.Kind == python.KindList && strings.Contains(" append clear extend insert pop remove reverse sort ", " "+name+" ") {
			in.Fail("access to attribute '%s' of 'list' object is unsafe", name)
		}
	}
	return nil, false
}

var dictMethods = map[string]func(in *interp, d *python.Dict, a *args) python.Value{
	"get": func(in *interp, d *python.Dict, a *args) python.Value {
		p := a.bind(in, "get", "key", "default?")
		if len(a.named) > 0 {
			in.Fail("dict.get() takes no keyword arguments")
		}
		if v, ok := d.Lookup(in.Key(p[0])); ok {
			return v
		}
		return orNone(p[1])
	},
	"items":  func(in *interp, d *python.Dict, a *args) python.Value { return in.view(a, "dict_items", d.Items()) },
	"keys":   func(in *interp, d *python.Dict, a *args) python.Value { return in.view(a, "dict_keys", d.Keys()) },
	"values": func(in *interp, d *python.Dict, a *args) python.Value { return in.view(a, "dict_values", d.Values()) },
	"copy": func(in *interp, d *python.Dict, a *args) python.Value {
		in.Charge(64 * d.Len())
		return d.Clone()
	},
}

func (in *interp) view(a *args, name string, items []python.Value) python.Value {
	a.bind(in, name)
	in.Step(len(items))
	in.Charge(64 * len(items))
	return &python.List{Items: items, Kind: python.KindView, Name: name}
}

var listMethods = map[string]func(in *interp, l *python.List, a *args) python.Value{
	"count": func(in *interp, l *python.List, a *args) python.Value {
		v, n := a.bind(in, "count", "value")[0], int64(0)
		for _, x := range l.Items {
			if in.Equal(x, v) {
				n++
			}
		}
		return n
	},
	"index": func(in *interp, l *python.List, a *args) python.Value {
		p, n := a.bind(in, "index", "value", "start?", "stop?"), len(l.Items)
		at := func(v python.Value, unset int) int {
			i := in.wantInt("index", v, unset)
			if i < 0 {
				i += n
			}
			return min(max(i, 0), n)
		}
		for i, end := at(p[1], 0), at(p[2], n); i < end; i++ {
			if in.Equal(l.Items[i], p[0]) {
				return int64(i)
			}
		}
		in.Fail("value is not in list")
		return nil
	},
	"copy": func(in *interp, l *python.List, a *args) python.Value {
		in.Charge(16 * len(l.Items))
		return &python.List{Items: append([]python.Value(nil), l.Items...), Kind: l.Kind}
	},
}

// slice evaluates x[a:b:c] for strings and lists.
func (in *interp) slice(line int, v python.Value, s *slicing, sc *scope) python.Value {
	var bound [3]*int
	for i, e := range s {
		if e == nil {
			continue
		}
		switch x := e(in, sc).(type) {
		case nil:
		default:
			n, _, isInt, ok := python.Number(x)
			if !ok || !isInt {
				in.defined(x)
				in.Fail("slice indices must be integers or None")
			}
			k := int(min(max(n, -1<<40), 1<<40))
			bound[i] = &k
		}
	}
	in.Line = line
	switch c := v.(type) {
	case python.Str:
		in.Scan(c)
		n := c.Runes()
		lo, step, count := in.sliceRange(bound, n)
		if step == 1 {
			a := c.Offset(lo)
			return in.Made(c.Slice(a, a+c.Slice(a, len(c.Text)).Offset(count)))
		}
		in.Charge(40 * n)
		chars := c.Chars()
		var b python.Builder
		for i := range count {
			b.Add(chars[lo+i*step])
		}
		return b.Str()
	case *python.List:
		if !c.Indexable() {
			break
		}
		lo, step, count := in.sliceRange(bound, len(c.Items))
		in.Charge(16 * count)
		r := &python.List{Kind: c.Kind, Name: c.Name, Items: make([]python.Value, count)}
		for i := range count {
			r.Items[i] = c.Items[lo+i*step]
		}
		if c.Kind == python.KindRange && count > 0 && step == 1 {
			r.Name = fmt.Sprintf("range(%d, %d)", r.Items[0], r.Items[count-1].(int64)+1)
		}
		return r
	}
	in.defined(v)
	in.Fail("'%s' object cannot be sliced", python.TypeName(v))
	return nil
}

// sliceRange is Python's slice.indices: first index, step, number of items.
func (in *interp) sliceRange(bound [3]*int, n int) (lo, step, count int) {
	step = 1
	if bound[2] != nil {
		step = *bound[2]
	}
	if step == 0 {
		in.Fail("slice step cannot be zero")
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
