package jinja

import (
	"slices"
	"strconv"
	"strings"
)

func filterList(in *interp, v Value, a *args) Value {
	a.bind(in, "list")
	items := in.iterate(v)
	in.charge(16 * len(items))
	return NewList(slices.Clone(items)...)
}

func filterFirst(in *interp, v Value, a *args) Value {
	a.bind(in, "first")
	if l, ok := v.(*List); ok && l.kind == kindIter && len(l.items) > 0 {
		x := l.items[0]
		l.items = l.items[1:]
		return x
	}
	if s, ok := v.(Str); ok && s.s != "" {
		return s.at(0)
	}
	items := in.iterate(v)
	if len(items) == 0 {
		return &Undefined{"No first item, sequence was empty."}
	}
	return items[0]
}

func filterLast(in *interp, v Value, a *args) Value {
	a.bind(in, "last")
	if l, ok := v.(*List); ok && l.kind == kindIter {
		in.fail("'%s' object is not reversible", l.name)
	}
	items := in.iterate(v)
	if len(items) == 0 {
		return &Undefined{"No last item, sequence was empty."}
	}
	return items[len(items)-1]
}

func filterJoin(in *interp, v Value, a *args) Value {
	p := a.bind(in, "join", "d?", "attribute?")
	get := in.attrGetter(p[1], absent{})
	var sep Str
	if given(p[0]) {
		sep = in.str(p[0])
	}
	var parts []Str
	for i, x := range in.iterate(v) {
		if i > 0 {
			in.charge(len(sep.s))
		}
		parts = append(parts, in.made(in.str(get(x))))
	}
	return joinStr(parts, sep)
}

// attrGetter returns x -> x.a.b for the attribute "a.b" (numeric parts are indices). Without an
// attribute it returns the identity.
func (in *interp) attrGetter(attr, otherwise Value) func(Value) Value {
	var path []Value
	switch x := orNone(attr).(type) {
	case nil:
		return func(v Value) Value { return v }
	case Str:
		for part := range strings.SplitSeq(x.s, ".") {
			if i, err := strconv.ParseInt(part, 10, 64); err == nil && isDigit(part[0]) {
				path = append(path, i)
			} else {
				path = append(path, Trusted(part))
			}
		}
	default:
		path = []Value{x}
	}
	return func(v Value) Value {
		for _, p := range path {
			v = in.getitem(v, p)
			if _, undef := v.(*Undefined); undef && given(otherwise) && otherwise != nil {
				return otherwise
			}
		}
		return v
	}
}

func filterMap(in *interp, v Value, a *args) Value {
	var f func(Value) Value
	if i := a.find("attribute"); len(a.pos) == 0 && i >= 0 {
		p := a.bind(in, "map", "attribute", "default?")
		f = in.attrGetter(p[0], p[1])
	} else {
		name, rest := in.namedFunction("map", a)
		f = func(x Value) Value { return in.filter(name, x, rest) }
	}
	var out []Value
	for _, x := range in.iterateSome(v) {
		in.charge(16)
		out = append(out, f(x))
	}
	return generator(out)
}

// iterateSome treats none, false and 0 as an empty list, as map and select do.
func (in *interp) iterateSome(v Value) []Value {
	if !truth(v) {
		return nil
	}
	return in.iterate(v)
}

// namedFunction takes the name of a filter or test off the arguments.
func (in *interp) namedFunction(fn string, a *args) (string, *args) {
	if len(a.pos) == 0 {
		in.fail("%s requires a filter argument", fn)
	}
	return in.wantStr(fn, a.pos[0]).s, &args{a.pos[1:], a.named}
}

// selecting implements select and reject, on items or on an attribute of them.
func selecting(fn string, byAttr, want bool) filterFunc {
	return func(in *interp, v Value, a *args) Value { return in.selectBy(fn, v, a, byAttr, want) }
}

func (in *interp) selectBy(fn string, v Value, a *args, byAttr, want bool) Value {
	get := func(x Value) Value { return x }
	if byAttr {
		if len(a.pos) == 0 {
			in.fail("%s: missing parameter for attribute name", fn)
		}
		get = in.attrGetter(a.pos[0], absent{})
		a = &args{a.pos[1:], a.named}
	}
	check := truth
	if len(a.pos) > 0 {
		name, rest := in.namedFunction(fn, a)
		check = func(x Value) bool { return truth(in.test(name, x, rest)) }
	}
	var out []Value
	for _, x := range in.iterateSome(v) {
		if check(get(x)) == want {
			in.charge(16)
			out = append(out, x)
		}
	}
	return generator(out)
}

// fold returns the key with which sort, unique, min, max and groupby compare values: strings are
// case-insensitive by default.
func (in *interp) fold(caseSensitive bool) func(Value) Value {
	return func(v Value) Value {
		if s, ok := v.(Str); ok && !caseSensitive {
			return in.mapRunes(s, lowerRune)
		}
		return v
	}
}

func (in *interp) sortBy(items []Value, key func(Value) Value, reverse bool) []Value {
	type pair struct{ key, value Value }
	in.charge(48 * len(items))
	pairs := make([]pair, len(items))
	for i, x := range items {
		pairs[i] = pair{key(x), x}
	}
	slices.SortStableFunc(pairs, func(a, b pair) int {
		c, ok := in.order(a.key, b.key)
		if !ok {
			in.defined(a.key)
			in.defined(b.key)
			in.fail("'<' not supported between instances of '%s' and '%s'", typeName(a.key), typeName(b.key))
		}
		if c == unordered {
			c = same
		}
		if reverse {
			c = -c
		}
		return int(c)
	})
	out := make([]Value, len(items))
	for i, p := range pairs {
		out[i] = p.value
	}
	return out
}

func filterSort(in *interp, v Value, a *args) Value {
	p := a.bind(in, "sort", "reverse?", "case_sensitive?", "attribute?")
	f := in.fold(optBool(p[1], false))
	var gets []func(Value) Value
	if s, ok := p[2].(Str); ok {
		for part := range strings.SplitSeq(s.s, ",") {
			gets = append(gets, in.attrGetter(Trusted(part), absent{}))
		}
	} else {
		gets = append(gets, in.attrGetter(p[2], absent{}))
	}
	key := func(x Value) Value {
		if len(gets) == 1 {
			return f(gets[0](x))
		}
		l := NewList()
		for _, g := range gets {
			l.items = append(l.items, f(g(x)))
		}
		return l
	}
	return NewList(in.sortBy(in.iterate(v), key, optBool(p[0], false))...)
}

func filterDictsort(in *interp, v Value, a *args) Value {
	p := a.bind(in, "dictsort", "case_sensitive?", "by?", "reverse?")
	d, ok := v.(*Dict)
	if !ok {
		in.defined(v)
		in.fail("dictsort needs a dict, not '%s'", typeName(v))
	}
	at := 0
	if given(p[1]) {
		switch in.wantStr("dictsort", p[1]).s {
		case "key":
		case "value":
			at = 1
		default:
			in.fail("You can only sort by either \"key\" or \"value\"")
		}
	}
	f := in.fold(optBool(p[0], false))
	return NewList(in.sortBy(d.items(), func(x Value) Value { return f(x.(*List).items[at]) }, optBool(p[2], false))...)
}

func filterUnique(in *interp, v Value, a *args) Value {
	p := a.bind(in, "unique", "case_sensitive?", "attribute?")
	f, get := in.fold(optBool(p[0], false)), in.attrGetter(p[1], absent{})
	seen := make(map[dictKey]bool)
	var out []Value
	for _, x := range in.iterate(v) {
		if k := in.key(f(get(x))); !seen[k] {
			in.charge(64)
			seen[k] = true
			out = append(out, x)
		}
	}
	return generator(out)
}

// extreme implements min and max.
func extreme(fn string, want ordering) filterFunc {
	return func(in *interp, v Value, a *args) Value {
		p := a.bind(in, fn, "case_sensitive?", "attribute?")
		f, get := in.fold(optBool(p[0], false)), in.attrGetter(p[1], absent{})
		items := in.iterate(v)
		if len(items) == 0 {
			return &Undefined{"No aggregated item, sequence was empty."}
		}
		best, key := items[0], f(get(items[0]))
		for _, x := range items[1:] {
			k := f(get(x))
			c, ok := in.order(k, key)
			if !ok {
				in.fail("'%s' and '%s' cannot be ordered", typeName(k), typeName(key))
			}
			if c == want {
				best, key = x, k
			}
		}
		return best
	}
}

func filterSum(in *interp, v Value, a *args) Value {
	p := a.bind(in, "sum", "attribute?", "start?")
	get := in.attrGetter(p[0], absent{})
	total := orNone(p[1])
	if total == nil {
		total = int64(0)
	}
	for _, x := range in.iterate(v) {
		x = get(x)
		in.defined(x)
		i, f, xi, ok := number(total)
		j, g, yi, ok2 := number(x)
		switch {
		case ok && ok2 && xi && yi:
			total = in.integers("+", i, j)
		case ok && ok2:
			total = f + g
		default:
			r, ok := in.plus(total, x)
			if _, isStr := r.(Str); !ok || isStr {
				in.fail("unsupported operand type(s) for +: '%s' and '%s'", typeName(total), typeName(x))
			}
			total = r
		}
	}
	return total
}
