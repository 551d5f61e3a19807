package jinja

// filterBatch splits a sequence into lists of the given length.
func filterBatch(in *interp, v Value, a *args) Value {
	p := a.bind(in, "batch", "linecount", "fill_with?")
	n, fill := in.wantInt("batch", p[0], 0), orNone(p[1])
	items := in.iterate(v)
	in.charge(32 * len(items))
	if fill != nil && len(items) > 0 {
		in.charge(16 * min(max(n, 0), 1<<30))
	}
	var out []Value
	var list []Value
	for _, x := range items {
		if len(list) == n {
			out = append(out, NewList(list...))
			list = nil
		}
		list = append(list, x)
	}
	if len(list) > 0 {
		for fill != nil && len(list) < n {
			list = append(list, fill)
		}
		out = append(out, NewList(list...))
	}
	return generator(out)
}

// filterSlice splits a sequence into the given number of lists.
func filterSlice(in *interp, v Value, a *args) Value {
	p := a.bind(in, "slice", "slices", "fill_with?")
	n, fill, items := in.wantInt("slice", p[0], 0), orNone(p[1]), in.iterate(v)
	if n == 0 {
		in.fail("slice: integer division or modulo by zero")
	}
	n = max(n, 0)
	in.charge(16*len(items) + 64*n)
	var out []Value
	offset := 0
	for i := range n {
		each, extra := len(items)/n, len(items)%n
		start := offset + i*each
		if i < extra {
			offset++
		}
		list := append([]Value{}, items[start:offset+(i+1)*each]...)
		if fill != nil && i >= extra {
			list = append(list, fill)
		}
		out = append(out, NewList(list...))
	}
	return generator(out)
}

// filterGroupBy sorts by an attribute and returns (grouper, list) pairs of items with equal values.
func filterGroupBy(in *interp, v Value, a *args) Value {
	p := a.bind(in, "groupby", "attribute", "default?", "case_sensitive?")
	get, f := in.attrGetter(p[0], p[1]), in.fold(optBool(p[2], false))
	key := func(x Value) Value { return f(get(x)) }
	var out []Value
	var list *List
	var last Value
	for _, x := range in.sortBy(in.iterate(v), key, false) {
		in.charge(64)
		k := key(x)
		if list == nil || !in.equal(k, last) {
			list = NewList()
			out = append(out, &List{items: []Value{get(x), list}, kind: kindTuple, name: groupName})
		}
		list.items = append(list.items, x)
		last = k
	}
	return NewList(out...)
}

const groupName = "_GroupTuple"

// groupAttribute returns one of the attributes of a groupby pair.
func groupAttribute(l *List, name string) (Value, bool) {
	if l.name != groupName {
		return nil, false
	}
	switch name {
	case "grouper":
		return l.items[0], true
	case "list":
		return l.items[1], true
	}
	return nil, false
}
