package grammar

import (
	"strings"

	"github.com/shoal-llm/shoal/internal/attempt"
	"github.com/shoal-llm/shoal/internal/text/grammar/regex"
)

// opposite returns the negation of c, the value of keyword k in n.
func (b *builder) opposite(n *schemaNode, k string, c *schemaNode) []*schemaNode {
	ways, err := attempt.At(func() []*schemaNode { return b.negate(c, 0) })
	if err != nil {
		panic(b.fail(n, k, "it cannot be enforced here: %v", err))
	}
	return ways
}

// negate returns schemas of which at least one holds for every value that n excludes.
func (b *builder) negate(n *schemaNode, depth int) []*schemaNode {
	if depth > 16 {
		panic(refused("the negation is nested too deep"))
	}
	if n.v.kind == jBool {
		return []*schemaNode{b.child(n, jBoolean(!n.v.b), "not")}
	}
	if n.v.kind != jObject {
		panic(refused("a schema must be an object or a boolean"))
	}
	var out []*schemaNode
	add := func(v *jsonValue) { out = append(out, b.node(v, n.path, n.base, n.old)) }
	not := func(s *schemaNode) *jsonValue { return jObj("not", s.v) }
	number := func(k string, x *jsonValue) { add(jObj("type", jStr("number"), k, x)) }
	if n.old && n.v.get("$ref") != nil {
		t := b.target(n, n.v.get("$ref").s)
		return b.negate(t, depth+1)
	}
	for _, k := range n.v.keys {
		x := n.v.at[k]
		size, isSize := x.count()
		switch k {
		case "$ref":
			t := b.target(n, x.s)
			more := b.negate(t, depth+1)
			out = append(out, more...)
		case "type":
			t := b.typesOf(b.child(n, jObj("type", x), k))
			if t&tInteger != 0 && t&tFraction == 0 {
				panic(refused("'not' of the type integer"))
			}
			var rest []*jsonValue
			for _, name := range [...]string{"null", "boolean", "number", "string", "array", "object"} {
				if typeNames[name]&t == 0 {
					rest = append(rest, jStr(name))
				}
			}
			if len(rest) > 0 {
				add(jObj("type", jList(rest...)))
			}
		case "enum", "const":
			list := []*jsonValue{x}
			if k == "enum" {
				list = x.list
			}
			b.negateValues(list, add)
		case "required":
			for _, name := range x.list {
				add(jObj("type", jStr("object"), "properties", jObj(name.s, jBoolean(false))))
			}
		case "properties":
			for _, name := range x.keys {
				s := b.child(n, x.at[name], k, name)
				if s.v.kind == jBool && s.v.b || s.v.kind == jObject && len(s.v.keys) == 0 {
					continue
				}
				add(jObj("type", jStr("object"), "required", jList(jStr(name)), "properties", jObj(name, not(s))))
			}
		case "anyOf":
			var all []*jsonValue
			for _, s := range b.children(n, k, x) {
				all = append(all, not(s))
			}
			add(jObj("allOf", jList(all...)))
		case "allOf":
			for _, s := range b.children(n, k, x) {
				add(not(s))
			}
		case "not":
			out = append(out, b.child(n, x, k))
		case "minLength":
			if isSize && size > 0 {
				add(jObj("type", jStr("string"), "maxLength", jInt(size-1)))
			}
		case "maxLength":
			add(jObj("type", jStr("string"), "minLength", jInt(size+1)))
		case "minItems":
			if isSize && size > 0 {
				add(jObj("type", jStr("array"), "maxItems", jInt(size-1)))
			}
		case "maxItems":
			add(jObj("type", jStr("array"), "minItems", jInt(size+1)))
		case "minProperties":
			if isSize && size > 0 {
				add(jObj("type", jStr("object"), "maxProperties", jInt(size-1)))
			}
		case "maxProperties":
			add(jObj("type", jStr("object"), "minProperties", jInt(size+1)))
		case "pattern":
			add(jObj("type", jStr("string"), "\x00pattern", x))
		case "minimum":
			if open := n.v.get("exclusiveMinimum"); open != nil && open.kind == jBool && open.b {
				number("maximum", x)
			} else {
				number("exclusiveMaximum", x)
			}
		case "maximum":
			if open := n.v.get("exclusiveMaximum"); open != nil && open.kind == jBool && open.b {
				number("minimum", x)
			} else {
				number("exclusiveMinimum", x)
			}
		case "exclusiveMinimum":
			if x.kind == jNumber {
				number("maximum", x)
			}
		case "exclusiveMaximum":
			if x.kind == jNumber {
				number("minimum", x)
			}
		case "items", "prefixItems", "additionalItems", "uniqueItems", "contains", "minContains", "maxContains",
			"additionalProperties", "patternProperties", "propertyNames",
			"format", "multipleOf", "oneOf", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies",
			"unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef", "divisibleBy", "disallow", "extends",
			"\x00pattern", "\x00strings":
			if k == "additionalProperties" && (x.kind == jBool && x.b || x.kind == jObject && len(x.keys) == 0) {
				continue
			}
			if _, number := regex.NumberFormats[x.text()]; k == "format" && regex.Formats[x.text()] == "" && !number {
				b.annotation(n, k)
				continue
			}
			panic(refused("'not' of the keyword '%s'", strings.TrimPrefix(k, "\x00")))
		}
	}
	if len(out) > maxNots {
		panic(refused("the negation has more than %d ways", maxNots))
	}
	return out
}

func (b *builder) negateValues(list []*jsonValue, add func(*jsonValue)) {
	var strs []*jsonValue
	rest := map[string]bool{"null": true, "boolean": true, "number": true, "string": true, "array": true, "object": true}
	var bools [2]bool
	for _, v := range list {
		switch v.kind {
		case jNull:
			delete(rest, "null")
		case jBool:
			delete(rest, "boolean")
			if v.b {
				bools[1] = true
			} else {
				bools[0] = true
			}
		case jString:
			delete(rest, "string")
			strs = append(strs, v)
		default:
			panic(refused("'not' of a value that is a number, a list or an object"))
		}
	}
	if !rest["boolean"] && bools[0] != bools[1] {
		add(jObj("const", jBoolean(bools[0])))
	}
	if len(strs) > 0 {
		add(jObj("type", jStr("string"), "\x00strings", jList(strs...)))
	}
	var names []*jsonValue
	for _, t := range [...]string{"null", "boolean", "number", "string", "array", "object"} {
		if rest[t] {
			names = append(names, jStr(t))
		}
	}
	if len(names) > 0 {
		add(jObj("type", jList(names...)))
	}
}
