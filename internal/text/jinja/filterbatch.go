package jinja

import "github.com/shoal-llm/shoal/internal/text/jinja/python"

// filterBatch splits a sequence into lists of the given length.
func filterBatch(in *interp, v python.Value, a *args) python.Value {
	p := a.bind(in, "batch", "linecount", "fill_with?")
	n, fill := in.wantInt("batch", p[0], 0), orNone(p[1])
	items := in.iterate(v)
	in.Charge(32 * len(items))
	if fill != nil && len(items) > 0 {
		in.Charge(16 * min(max(n, 0), 1<<30))
	}
	var out []python.Value
	var list []python.Value
	for _, x := range items {
		if len(list) == n {
			out = append(out, python.NewList(list...))
			list = nil
		}
		list = append(list, x)
	}
	if len(list) > 0 {
		for fill != nil && len(list) < n {
			list = append(list, fill)
		}
		out = append(out, python.NewList(list...))
	}
	return python.Generator(out)
}

// filterSlice splits a sequence into the given number of lists.
func filterSlice(in *interp, v python.Value, a *args) python.Value {
	p := a.bind(in, "slice", "slices", "fill_with?")
	n, fill, items := in.wantInt("slice", p[0], 0), orNone(p[1]), in.iterate(v)
	if n == 0 {
		in.Fail("slice: integer division or modulo by zero")
	}
	n = max(n, 0)
	in.Charge(16*len(items) + 64*n)
	var out []python.Value
	offset := 0
	for i := range n {
		each, extra := len(items)/n, len(items)%n
		start := offset + i*each
		if i < extra {
			offset++
		}
		list := append([]python.Value{}, items[start:offset+(i+1)*each]...)
		if fill != nil && i >= extra {
			list = append(list, fill)
		}
		out = append(out, python.NewList(list...))
	}
	return python.Generator(out)
}

// filterGroupBy sorts by an attribute and returns (grouper, list) pairs of items with equal values.
func filterGroupBy(in *interp, v python.Value, a *args) python.Value {
	p := a.bind(in, "groupby", "attribute", "default?", "case_sensitive?")
	get, f := in.attrGetter(p[0], p[1]), in.fold(optBool(p[2]))
	key := func(x python.Value) python.Value { return f(get(x)) }
	var out []python.Value
	var list *python.List
	var last python.Value
	for _, x := range in.sortBy(in.iterate(v), key, false) {
		in.Charge(64)
		k := key(x)
		if list == nil || !in.Equal(k, last) {
			list = python.NewList()
			out = append(out, &python.List{Items: []python.Value{get(x), list}, Kind: python.KindTuple, Name: groupName})
		}
		list.Items = append(list.Items, x)
		last = k
	}
	return python.NewList(out...)
}

const groupName = "_GroupTuple"

// groupAttribute returns one of the attributes of a groupby pair.
func groupAttribute(l *python.List, name string) (python.Value, bool) {
	if l.Name != groupName {
		return nil, false
	}
	switch name {
	case "grouper":
		return l.Items[0], true
	case "list":
		return l.Items[1], true
	}
	return nil, false
}
