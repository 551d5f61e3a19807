package grammar

import (
	"math/big"
	"slices"
)

// validator judges values that a schema itself names, in enumerations.
type validator struct {
	b     *builder
	steps int
}

func (v *validator) valid(n *snode, x *jval, depth int) (bool, error) {
	if v.steps++; depth > 100 || v.steps > 1<<20 {
		panic(tooLarge{"its enumerations take too many steps to judge"})
	}
	if n.v.kind == jBool {
		return n.v.b, nil
	}
	if n.v.kind != jObject {
		return false, v.b.fail(n, "", "a schema must be an object or a boolean")
	}
	if ref := n.v.get("$ref"); ref != nil {
		t, err := v.b.target(n, ref.s)
		if err != nil {
			return false, err
		}
		ok, err := v.valid(t, x, depth+1)
		if !ok || err != nil || n.old {
			return ok, err
		}
	}
	t, err := v.b.typesOf(n)
	if err != nil {
		return false, err
	}
	have := kindTypes[x.kind]
	if x.kind == jNumber {
		have = tFraction
		if r, ok := x.number(); ok && r.IsInt() {
			have = tInteger
		}
	}
	if t&have == 0 {
		return false, nil
	}
	for _, k := range n.v.keys {
		ok, err := v.keyword(n, k, n.v.at[k], x, depth)
		if !ok || err != nil {
			return false, err
		}
	}
	return true, nil
}

func (v *validator) keyword(n *snode, k string, s, x *jval, depth int) (bool, error) {
	b := v.b
	some := func(list []*snode) (int, error) {
		c := 0
		for _, o := range list {
			ok, err := v.valid(o, x, depth+1)
			if err != nil {
				return 0, err
			}
			if ok {
				c++
			}
		}
		return c, nil
	}
	size, _ := s.count()
	runes := 0
	for range x.s {
		runes++
	}
	switch k {
	case "enum":
		return slices.ContainsFunc(s.list, x.same), nil
	case "const":
		return s.same(x), nil
	case "allOf":
		c, err := some(b.children(n, k, s))
		return c == len(s.list), err
	case "anyOf":
		c, err := some(b.children(n, k, s))
		return c > 0, err
	case "oneOf":
		c, err := some(b.children(n, k, s))
		return c == 1, err
	case "not":
		ok, err := v.valid(b.child(n, s, k), x, depth+1)
		return !ok, err
	case "if":
		ok, err := v.valid(b.child(n, s, k), x, depth+1)
		if err != nil {
			return false, err
		}
		branch := "then"
		if !ok {
			branch = "else"
		}
		if o := n.v.get(branch); o != nil {
			return v.valid(b.child(n, o, branch), x, depth+1)
		}
		return true, nil
	}
	switch x.kind {
	case jString:
		switch k {
		case "minLength":
			return runes >= size, nil
		case "maxLength":
			return runes <= size, nil
		case "pattern", "\x00pattern":
			r, err := b.pattern(n, k, s.s)
			return err == nil && b.m.matches(r, jsonSpelling(x.s)) == (k == "pattern"), err
		case "format":
			r, err := b.format(n, s.s)
			return err == nil && b.m.matches(r, jsonSpelling(x.s)), err
		case "\x00strings":
			return !slices.ContainsFunc(s.list, x.same), nil
		}
	case jNumber:
		r, ok := x.number()
		limit, also := s.number()
		if !ok || !also {
			return true, nil
		}
		open := func(k string) bool { o := n.v.get(k); return o != nil && o.kind == jBool && o.b }
		c := r.Cmp(limit)
		switch k {
		case "minimum":
			return c > 0 || c == 0 && !open("exclusiveMinimum"), nil
		case "maximum":
			return c < 0 || c == 0 && !open("exclusiveMaximum"), nil
		case "exclusiveMinimum":
			return c > 0, nil
		case "exclusiveMaximum":
			return c < 0, nil
		case "multipleOf":
			return limit.Sign() > 0 && new(big.Rat).Quo(r, limit).IsInt(), nil
		}
	case jArray:
		switch k {
		case "minItems":
			return len(x.list) >= size, nil
		case "maxItems":
			return len(x.list) <= size, nil
		case "items", "prefixItems", "additionalItems":
			f := &flat{nodes: []*snode{n}}
			for i, e := range x.list {
				list, err := b.itemAt(f, i)
				if err != nil {
					return false, err
				}
				for _, o := range list {
					if ok, err := v.valid(o, e, depth+1); !ok || err != nil {
						return false, err
					}
				}
			}
		case "uniqueItems", "contains":
			return false, b.fail(n, k, "'%s' is not supported", k)
		}
	case jObject:
		switch k {
		case "minProperties":
			return len(x.keys) >= size, nil
		case "maxProperties":
			return len(x.keys) <= size, nil
		case "required":
			for _, r := range s.list {
				if x.at[r.s] == nil {
					return false, nil
				}
			}
		case "properties", "patternProperties", "additionalProperties":
			f := &flat{nodes: []*snode{n}}
			for _, name := range x.keys {
				list, err := b.keyed(f, name, true, nil)
				if err != nil {
					return false, err
				}
				for _, o := range list {
					if ok, err := v.valid(o, x.at[name], depth+1); !ok || err != nil {
						return false, err
					}
				}
			}
		case "propertyNames":
			for _, name := range x.keys {
				if ok, err := v.valid(b.child(n, s, k), jStr(name), depth+1); !ok || err != nil {
					return false, err
				}
			}
		case "dependentRequired", "dependentSchemas", "dependencies":
			return false, b.fail(n, k, "'%s' beside an enumeration is not supported", k)
		}
	}
	return true, nil
}
