package grammar

import (
	"math/big"
	"slices"

	"github.com/shoal-llm/shoal/internal/text/grammar/regex"
)

// validator checks values that a schema itself lists, in enumerations.
type validator struct {
	b     *builder
	steps int
}

func (v *validator) valid(n *schemaNode, x *jsonValue, depth int) bool {
	if v.steps++; depth > 100 || v.steps > 1<<20 {
		panic(regex.Large("validating its enumerations takes too many steps"))
	}
	if n.v.kind == jBool {
		return n.v.b
	}
	if n.v.kind != jObject {
		panic(v.b.fail(n, "", "a schema must be an object or a boolean"))
	}
	if ref := n.v.get("$ref"); ref != nil {
		t := v.b.target(n, ref.s)
		if ok := v.valid(t, x, depth+1); !ok || n.old {
			return ok
		}
	}
	t := v.b.typesOf(n)
	have := kindTypes[x.kind]
	if x.kind == jNumber {
		have = tFraction
		if r, ok := x.number(); ok && r.IsInt() {
			have = tInteger
		}
	}
	if t&have == 0 {
		return false
	}
	for _, k := range n.v.keys {
		if !v.keyword(n, k, n.v.at[k], x, depth) {
			return false
		}
	}
	return true
}

func (v *validator) keyword(n *schemaNode, k string, s, x *jsonValue, depth int) bool {
	b := v.b
	some := func(list []*schemaNode) (c int) {
		for _, o := range list {
			ok := v.valid(o, x, depth+1)
			if ok {
				c++
			}
		}
		return c
	}
	size, _ := s.count()
	runes := 0
	for range x.s {
		runes++
	}
	switch k {
	case "enum":
		return slices.ContainsFunc(s.list, x.same)
	case "const":
		return s.same(x)
	case "allOf":
		return some(b.children(n, k, s)) == len(s.list)
	case "anyOf":
		return some(b.children(n, k, s)) > 0
	case "oneOf":
		return some(b.children(n, k, s)) == 1
	case "not":
		return !v.valid(b.child(n, s, k), x, depth+1)
	case "if":
		ok := v.valid(b.child(n, s, k), x, depth+1)
		branch := "then"
		if !ok {
			branch = "else"
		}
		if o := n.v.get(branch); o != nil {
			return v.valid(b.child(n, o, branch), x, depth+1)
		}
		return true
	}
	switch x.kind {
	case jString:
		switch k {
		case "minLength":
			return runes >= size
		case "maxLength":
			return runes <= size
		case "pattern", "\x00pattern":
			return b.m.Matches(b.pattern(n, k, s.s), regex.JSONSpelling(x.s)) == (k == "pattern")
		case "format":
			return b.m.Matches(b.format(n, s.text()), regex.JSONSpelling(x.s))
		case "\x00strings":
			return !slices.ContainsFunc(s.list, x.same)
		}
	case jNumber:
		r, ok := x.number()
		if in, is := regex.NumberFormats[s.text()]; k == "format" && is && ok {
			return r.Cmp(in[0]) >= 0 && r.Cmp(in[1]) <= 0
		}
		limit, also := s.number()
		if !ok || !also {
			return true
		}
		open := func(k string) bool { o := n.v.get(k); return o != nil && o.kind == jBool && o.b }
		c := r.Cmp(limit)
		switch k {
		case "minimum":
			return c > 0 || c == 0 && !open("exclusiveMinimum")
		case "maximum":
			return c < 0 || c == 0 && !open("exclusiveMaximum")
		case "exclusiveMinimum":
			return c > 0
		case "exclusiveMaximum":
			return c < 0
		case "multipleOf":
			return limit.Sign() > 0 && new(big.Rat).Quo(r, limit).IsInt()
		}
	case jArray:
		switch k {
		case "minItems":
			return len(x.list) >= size
		case "maxItems":
			return len(x.list) <= size
		case "items", "prefixItems", "additionalItems":
			f := &conjunction{nodes: []*schemaNode{n}}
			for i, e := range x.list {
				list := b.itemAt(f, i)
				for _, o := range list {
					if !v.valid(o, e, depth+1) {
						return false
					}
				}
			}
		case "uniqueItems", "contains":
			panic(b.fail(n, k, "'%s' is not supported", k))
		}
	case jObject:
		switch k {
		case "minProperties":
			return len(x.keys) >= size
		case "maxProperties":
			return len(x.keys) <= size
		case "required":
			for _, r := range s.list {
				if x.at[r.s] == nil {
					return false
				}
			}
		case "properties", "patternProperties", "additionalProperties":
			f := &conjunction{nodes: []*schemaNode{n}}
			for _, name := range x.keys {
				list := b.keyed(f, name, true, nil)
				for _, o := range list {
					if !v.valid(o, x.at[name], depth+1) {
						return false
					}
				}
			}
		case "propertyNames":
			for _, name := range x.keys {
				if !v.valid(b.child(n, s, k), jStr(name), depth+1) {
					return false
				}
			}
		case "dependentRequired", "dependentSchemas", "dependencies":
			panic(b.fail(n, k, "'%s' together with an enumeration is not supported", k))
		}
	}
	return true
}
