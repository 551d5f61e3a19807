package jinja

import (
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-llm/shoal/internal/text/jinja/python"
)

func filterList(in *interp, v python.Value, a *args) python.Value {
	a.bind(in, "list")
	items := in.iterate(v)
	in.Charge(16 * len(items))
	return python.NewList(slices.Clone(items)...)
}

func filterFirst(in *interp, v python.Value, a *args) python.Value {
	a.bind(in, "first")
	if l, ok := v.(*python.List); ok && l.Kind == python.KindIter && len(l.Items) > 0 {
		x := l.Items[0]
		l.Items = l.Items[1:]
		return x
	}
	if s, ok := v.(python.Str); ok && s.Text != "" {
		return s.At(0)
	}
	items := in.iterate(v)
	if len(items) == 0 {
		return &python.Undefined{Message: "No first item, sequence was empty."}
	}
	return items[0]
}

func filterLast(in *interp, v python.Value, a *args) python.Value {
	a.bind(in, "last")
	if l, ok := v.(*python.List); ok && l.Kind == python.KindIter {
		in.Fail("'%s' object is not reversible", l.Name)
	}
	items := in.iterate(v)
	if len(items) == 0 {
		return &python.Undefined{Message: "No last item, sequence was empty."}
	}
	return items[len(items)-1]
}

func filterJoin(in *interp, v python.Value, a *args) python.Value {
	p := a.bind(in, "join", "d?", "attribute?")
	get := in.attrGetter(p[1], absent{})
	var sep python.Str
	if given(p[0]) {
		sep = in.Str(p[0])
	}
	var parts []python.Str
	for i, x := range in.iterate(v) {
		if i > 0 {
			in.Charge(len(sep.Text))
		}
		parts = append(parts, in.Made(in.Str(get(x))))
	}
	return python.JoinStr(parts, sep)
}

// attrGetter returns x -> x.a.b for the attribute "a.b" (numeric parts are indices). Without an
// attribute it returns the identity.
func (in *interp) attrGetter(attr, otherwise python.Value) func(python.Value) python.Value {
	var path []python.Value
	switch x := orNone(attr).(type) {
	case nil:
		return func(v python.Value) python.Value { return v }
	case python.Str:
		for part := range strings.SplitSeq(x.Text, ".") {
			if i, err := strconv.ParseInt(part, 10, 64); err == nil && isDigit(part[0]) {
				path = append(path, i)
			} else {
				path = append(path, python.Trusted(part))
			}
		}
	default:
		path = []python.Value{x}
	}
	return func(v python.Value) python.Value {
		for _, p := range path {
			v = in.getitem(v, p)
			if _, undef := v.(*python.Undefined); undef && given(otherwise) && otherwise != nil {
				return otherwise
			}
		}
		return v
	}
}

func filterMap(in *interp, v python.Value, a *args) python.Value {
	var f func(python.Value) python.Value
	if i := a.find("attribute"); len(a.pos) == 0 && i >= 0 {
		p := a.bind(in, "map", "attribute", "default?")
		f = in.attrGetter(p[0], p[1])
	} else {
		name, rest := in.namedFunction("map", a)
		f = func(x python.Value) python.Value { return in.filter(name, x, rest) }
	}
	var out []python.Value
	for _, x := range in.iterateSome(v) {
		in.Charge(16)
		out = append(out, f(x))
	}
	return python.Generator(out)
}

// iterateSome treats none, false and 0 as an empty list, as map and select do.
func (in *interp) iterateSome(v python.Value) []python.Value {
	if !python.Truth(v) {
		return nil
	}
	return in.iterate(v)
}

// namedFunction takes the name of a filter or test off the arguments.
func (in *interp) namedFunction(fn string, a *args) (string, *args) {
	if len(a.pos) == 0 {
		in.Fail("%s requires a filter argument", fn)
	}
	return in.wantStr(fn, a.pos[0]).Text, &args{a.pos[1:], a.named}
}

// selecting implements select and reject, on items or on an attribute of them.
func selecting(fn string, byAttr, want bool) filterFunc {
	return func(in *interp, v python.Value, a *args) python.Value { return in.selectBy(fn, v, a, byAttr, want) }
}

func (in *interp) selectBy(fn string, v python.Value, a *args, byAttr, want bool) python.Value {
	get := func(x python.Value) python.Value { return x }
	if byAttr {
		if len(a.pos) == 0 {
			in.Fail("%s: missing parameter for attribute name", fn)
		}
		get = in.attrGetter(a.pos[0], absent{})
		a = &args{a.pos[1:], a.named}
	}
	check := python.Truth
	if len(a.pos) > 0 {
		name, rest := in.namedFunction(fn, a)
		check = func(x python.Value) bool { return python.Truth(in.test(name, x, rest)) }
	}
	var out []python.Value
	for _, x := range in.iterateSome(v) {
		if check(get(x)) == want {
			in.Charge(16)
			out = append(out, x)
		}
	}
	return python.Generator(out)
}

// fold returns the key with which sort, unique, min, max and groupby compare values: strings are
// case-insensitive by default.
func (in *interp) fold(caseSensitive bool) func(python.Value) python.Value {
	return func(v python.Value) python.Value {
		if s, ok := v.(python.Str); ok && !caseSensitive {
			return in.MapRunes(s, python.LowerRune)
		}
		return v
	}
}

func (in *interp) sortBy(items []python.Value, key func(python.Value) python.Value, reverse bool) []python.Value {
	type pair struct{ key, value python.Value }
	in.Charge(48 * len(items))
	pairs := make([]pair, len(items))
	for i, x := range items {
		pairs[i] = pair{key(x), x}
	}
	slices.SortStableFunc(pairs, func(a, b pair) int {
		c, ok := in.order(a.key, b.key)
		if !ok {
			in.defined(a.key)
			in.defined(b.key)
			in.Fail("'<' not supported between instances of '%s' and '%s'", python.TypeName(a.key), python.TypeName(b.key))
		}
		if c == unordered {
			c = same
		}
		if reverse {
			c = -c
		}
		return int(c)
	})
	out := make([]python.Value, len(items))
	for i, p := range pairs {
		out[i] = p.value
	}
	return out
}

func filterSort(in *interp, v python.Value, a *args) python.Value {
	p := a.bind(in, "sort", "reverse?", "case_sensitive?", "attribute?")
	f := in.fold(optBool(p[1]))
	var gets []func(python.Value) python.Value
	if s, ok := p[2].(python.Str); ok {
		for part := range strings.SplitSeq(s.Text, ",") {
			gets = append(gets, in.attrGetter(python.Trusted(part), absent{}))
		}
	} else {
		gets = append(gets, in.attrGetter(p[2], absent{}))
	}
	key := func(x python.Value) python.Value {
		in.Charge(64)
		l := python.NewList() // lists, as in jinja2: equal keys that have no order, such as none, are then no error
		for _, g := range gets {
			l.Items = append(l.Items, f(g(x)))
		}
		return l
	}
	return python.NewList(in.sortBy(in.iterate(v), key, optBool(p[0]))...)
}

func filterDictsort(in *interp, v python.Value, a *args) python.Value {
	p := a.bind(in, "dictsort", "case_sensitive?", "by?", "reverse?")
	d, ok := v.(*python.Dict)
	if !ok {
		in.defined(v)
		in.Fail("dictsort needs a dict, not '%s'", python.TypeName(v))
	}
	at := 0
	if given(p[1]) {
		switch in.wantStr("dictsort", p[1]).Text {
		case "key":
		case "value":
			at = 1
		default:
			in.Fail("You can only sort by either \"key\" or \"value\"")
		}
	}
	f := in.fold(optBool(p[0]))
	return python.NewList(in.sortBy(d.Items(), func(x python.Value) python.Value { return f(x.(*python.List).Items[at]) }, optBool(p[2]))...)
}

func filterUnique(in *interp, v python.Value, a *args) python.Value {
	p := a.bind(in, "unique", "case_sensitive?", "attribute?")
	f, get := in.fold(optBool(p[0])), in.attrGetter(p[1], absent{})
	seen := make(map[python.DictKey]bool)
	var out []python.Value
	for _, x := range in.iterate(v) {
		if k := in.Key(f(get(x))); !seen[k] {
			in.Charge(64)
			seen[k] = true
			out = append(out, x)
		}
	}
	return python.Generator(out)
}

// extreme implements min and max.
func extreme(fn string, want ordering) filterFunc {
	return func(in *interp, v python.Value, a *args) python.Value {
		p := a.bind(in, fn, "case_sensitive?", "attribute?")
		f, get := in.fold(optBool(p[0])), in.attrGetter(p[1], absent{})
		items := in.iterate(v)
		if len(items) == 0 {
			return &python.Undefined{Message: "No aggregated item, sequence was empty."}
		}
		best, key := items[0], f(get(items[0]))
		for _, x := range items[1:] {
			k := f(get(x))
			c, ok := in.order(k, key)
			if !ok {
				in.Fail("'%s' and '%s' cannot be ordered", python.TypeName(k), python.TypeName(key))
			}
			if c == want {
				best, key = x, k
			}
		}
		return best
	}
}

func filterSum(in *interp, v python.Value, a *args) python.Value {
	p := a.bind(in, "sum", "attribute?", "start?")
	get := in.attrGetter(p[0], absent{})
	total := orNone(p[1])
	if total == nil {
		total = int64(0)
	}
	for _, x := range in.iterate(v) {
		x = get(x)
		in.defined(x)
		i, f, xi, ok := python.Number(total)
		j, g, yi, ok2 := python.Number(x)
		switch {
		case ok && ok2 && xi && yi:
			total = in.integers("+", i, j)
		case ok && ok2:
			total = f + g
		default:
			r, ok := in.plus(total, x)
			if _, isStr := r.(python.Str); !ok || isStr {
				in.Fail("unsupported operand type(s) for +: '%s' and '%s'", python.TypeName(total), python.TypeName(x))
			}
			total = r
		}
	}
	return total
}
