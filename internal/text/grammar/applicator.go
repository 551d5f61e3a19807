package grammar

import (
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/internal/attempt"
)

// types of values; a number is an integer or has a fraction.
type types uint8

const (
	tNull types = 1 << iota
	tBool
	tInteger
	tFraction
	tString
	tArray
	tObject
	allTypes = tNull | tBool | tInteger | tFraction | tString | tArray | tObject
)

var typeNames = map[string]types{"null": tNull, "boolean": tBool, "integer": tInteger, "number": tInteger | tFraction, "string": tString, "array": tArray, "object": tObject, "any": allTypes}

// flat is a list of schemas of which only what they say of themselves counts: what
// applies other schemas to the same value is in the list.
type flat struct {
	nodes []*snode
	types types
}

func (f *flat) with(n *snode) *flat {
	return &flat{append(f.nodes[:len(f.nodes):len(f.nodes)], n), f.types}
}

// refusedKeywords change what is valid and are not enforced.
var refusedKeywords = map[string]string{
	"unevaluatedProperties": "", "unevaluatedItems": "", "$dynamicRef": "", "$recursiveRef": "", "divisibleBy": "", "disallow": "", "extends": "",
}

// apply adds a schema to every way of what came before it.
func (b *builder) apply(flats []*flat, n *snode) []*flat {
	if n.v.kind == jBool {
		if n.v.b {
			return flats
		}
		return nil
	}
	if n.v.kind != jObject {
		panic(b.fail(n, "", "a schema must be an object or a boolean"))
	}
	if len(flats) > 0 && slices.Contains(flats[0].nodes, n) {
		all := true
		for _, f := range flats {
			all = all && slices.Contains(f.nodes, n)
		}
		if all {
			return flats
		}
	}
	if b.work += 1 + len(flats); b.work > maxSchemaWork {
		panic(tooLarge{"the schema has too many parts"})
	}
	ref := n.v.get("$ref")
	if ref != nil && n.old {
		return b.applyRef(flats, n, ref)
	}
	placed := false
	place := func() {
		if placed {
			return
		}
		placed = true
		t := b.typesOf(n)
		var out []*flat
		for _, f := range flats {
			g := f.with(n)
			if g.types &= t; g.types != 0 {
				out = append(out, g)
			}
		}
		flats = out
	}
	// The type first: it ends what cannot be.
	if t := n.v.get("type"); t != nil || n.v.get("enum") != nil || n.v.get("const") != nil {
		if n.v.get("properties") == nil || firstOf(n.v, "properties", "allOf", "anyOf", "oneOf", "$ref", "if") == "properties" {
			place()
		}
	}
	for _, k := range n.v.keys {
		x := n.v.at[k]
		switch k {
		case "$ref":
			flats = b.applyRef(flats, n, x)
		case "allOf":
			for _, s := range b.schemas(n, k, x) {
				flats = b.apply(flats, s)
			}
		case "anyOf":
			flats = b.either(flats, n, k, b.schemas(n, k, x))
		case "oneOf":
			flats = b.oneOf(flats, n, b.schemas(n, k, x))
		case "not":
			flats = b.either(flats, n, k, b.opposite(n, k, b.child(n, x, k)))
		case "if":
			flats = b.condition(flats, n, x)
		case "dependentRequired", "dependentSchemas", "dependencies":
			flats = b.dependencies(flats, n, k, x)
		case "required":
			b.checkRequired(n, x)
			place()
		case "properties", "patternProperties", "additionalProperties":
			place()
		default:
			if _, no := refusedKeywords[k]; no && !harmless(k, x) {
				panic(b.fail(n, k, "'%s' is not supported", k))
			} else if strings.HasPrefix(k, "\x00") && !n.v.own {
				panic(b.fail(n, k, "the keyword %q is not known", k))
			}
		}
		if len(flats) == 0 {
			// What cannot be fulfilled is still read to its end by nobody: the rest may be anything.
			return nil
		}
	}
	place()
	return flats
}

// checkRequired refuses what is no list of names. Draft 3 alone has a boolean, inside of
// 'properties'.
func (b *builder) checkRequired(n *snode, x *jval) {
	if schema := b.root.get("$schema").text(); x.kind == jBool && strings.Contains(schema, "draft-03") {
		return
	}
	if x.kind != jArray || slices.ContainsFunc(x.list, func(k *jval) bool { return k.kind != jString }) {
		panic(b.fail(n, "required", "'required' must be a list of names"))
	}
}

func harmless(k string, x *jval) bool {
	switch k {
	case "unevaluatedProperties", "unevaluatedItems":
		return x.kind == jBool && x.b || x.kind == jObject && len(x.keys) == 0
	}
	return false
}

func firstOf(v *jval, names ...string) string {
	for _, k := range v.keys {
		if slices.Contains(names, k) {
			return k
		}
	}
	return ""
}

// schemas are the children of a keyword that is a list of them.
func (b *builder) schemas(n *snode, k string, x *jval) []*snode {
	if x.kind != jArray {
		panic(b.fail(n, k, "'%s' must be a list of schemas", k))
	}
	return b.children(n, k, x)
}

func (b *builder) children(n *snode, k string, x *jval) []*snode {
	out := make([]*snode, len(x.list))
	for i, s := range x.list {
		out[i] = b.child(n, s, k, fmt.Sprint(i))
	}
	return out
}

func (b *builder) applyRef(flats []*flat, n *snode, ref *jval) []*flat {
	if ref.kind != jString {
		panic(b.fail(n, "$ref", "'$ref' must be a string"))
	}
	t := b.target(n, ref.s)
	// A reference that leads back to itself without a value in between says nothing.
	if len(flats) > 0 && b.within(t, n) {
		panic(b.fail(n, "$ref", "the reference %.100q leads to itself", ref.s))
	}
	return b.apply(flats, t)
}

// within: following references from t alone leads to n.
func (b *builder) within(t, n *snode) bool {
	for range 64 {
		if t == n {
			return true
		}
		r := t.v.get("$ref")
		if r == nil || r.kind != jString {
			return false
		}
		next, err := attempt.At(func() *snode { return b.target(t, r.s) })
		if err != nil {
			return false
		}
		t = next
	}
	return true
}

// either multiplies the ways by alternatives.
func (b *builder) either(flats []*flat, n *snode, k string, options []*snode) []*flat {
	var out []*flat
	for _, o := range options {
		more := b.apply(flats, o)
		if out = append(out, more...); len(out) > maxFlats {
			panic(b.fail(n, k, "'%s' and what stands beside it make more than %d combinations", k, maxFlats))
		}
	}
	return out
}

// oneOf is anyOf where no two options can both hold; else each option is taken without
// the others.
func (b *builder) oneOf(flats []*flat, n *snode, options []*snode) []*flat {
	var out []*flat
	for i, o := range options {
		ways := b.apply(flats, o)
		for j, p := range options {
			if i == j || len(ways) == 0 || b.disjoint(n, o, p) {
				continue
			}
			not, err := attempt.At(func() []*snode { return b.negate(p, 0) })
			if err != nil {
				panic(b.fail(n, "oneOf", "options %d and %d may both hold, and one without the other cannot be enforced: %v", min(i, j), max(i, j), err))
			}
			ways = b.either(ways, n, "oneOf", not)
		}
		if out = append(out, ways...); len(out) > maxFlats {
			panic(b.fail(n, "oneOf", "'oneOf' and what stands beside it make more than %d combinations", maxFlats))
		}
	}
	return out
}

// disjoint: no value is described by both, by the letter of the schema.
func (b *builder) disjoint(n, o, p *snode) bool {
	defer func(open bool) { b.open = open }(b.open)
	b.open = true
	list := []*snode{o, p}
	if t := n.v.get("type"); t != nil {
		only := jObj("type", t)
		list = append(list, b.child(n, only, "type"))
	}
	e, err := attempt.At(func() eid { return b.compile(list) })
	return err == nil && (e == eFail || !b.possible(e))
}

// possible: some text may fit e. A rule that is still being made may be anything.
func (b *builder) possible(e eid) bool {
	m := b.m
	var rules []uint32
	seen := map[eid]bool{}
	var walk func(e eid)
	walk = func(e eid) {
		if seen[e] {
			return
		}
		seen[e] = true
		switch n := m.exprs[e]; n.kind {
		case xRule:
			rules = append(rules, n.a)
			if !b.lists[e] {
				walk(m.rules[n.a])
			}
		case xSeq:
			walk(eid(n.a))
			walk(eid(n.b))
		case xAlt:
			for _, a := range n.list {
				walk(a)
			}
		case xRepeat:
			walk(eid(n.a))
		case xMembers:
			for _, e := range m.objects[n.a].parts() {
				walk(e)
			}
		}
	}
	walk(e)
	for len(m.yields) < len(m.rules) {
		m.yields = append(m.yields, 0)
	}
	var open []uint32
	for x := range seen {
		if n := m.exprs[x]; n.kind == xRule && b.lists[x] && m.yields[n.a] == 0 {
			m.yields[n.a] = 1
			open = append(open, n.a)
		}
	}
	for more := true; more; {
		more = false
		for _, r := range rules {
			if m.yields[r] == 0 {
				clear(m.fits)
				if m.can(m.rules[r]) {
					m.yields[r], more = 1, true
				}
			}
		}
	}
	clear(m.fits)
	ok := m.can(e)
	for _, r := range rules { // others may be finished later
		m.yields[r] = 0
	}
	for _, r := range open {
		m.yields[r] = 0
	}
	clear(m.fits)
	return ok
}

// condition is if, then, else: the condition with one, or its opposite with the other.
func (b *builder) condition(flats []*flat, n *snode, cond *jval) []*flat {
	then, other := n.v.get("then"), n.v.get("else")
	if then == nil && other == nil {
		return flats
	}
	c := b.child(n, cond, "if")
	yes := b.apply(flats, c)
	if then != nil {
		yes = b.apply(yes, b.child(n, then, "then"))
	}
	no := b.either(flats, n, "if", b.opposite(n, "if", c))
	if other != nil {
		no = b.apply(no, b.child(n, other, "else"))
	}
	if len(yes)+len(no) > maxFlats {
		panic(b.fail(n, "if", "'if' and what stands beside it make more than %d combinations", maxFlats))
	}
	return append(yes, no...)
}

// dependencies: a property is absent, or what depends on it holds.
func (b *builder) dependencies(flats []*flat, n *snode, k string, x *jval) []*flat {
	if x.kind != jObject {
		panic(b.fail(n, k, "'%s' must be an object", k))
	}
	for _, name := range x.keys {
		d := x.at[name]
		if d.kind == jArray {
			d = jObj("required", d)
		}
		absent := b.child(n, jObj("properties", jObj(name, jBoolean(false))), k, name)
		present := b.child(n, jObj("required", jList(jStr(name))), k, name)
		with := b.child(n, jObj("allOf", jList(present.v, d)), k, name)
		with.v.own = true
		var out []*flat
		for _, f := range flats {
			if f.types&tObject == 0 {
				out = append(out, f)
				continue
			}
			one := []*flat{f}
			more := b.either(one, n, k, []*snode{absent, with})
			if out = append(out, more...); len(out) > maxFlats {
				panic(b.fail(n, k, "'%s' makes more than %d combinations", k, maxFlats))
			}
		}
		flats = out
	}
	return flats
}

func (b *builder) typesOf(n *snode) types {
	t := allTypes
	if x := n.v.get("type"); x != nil {
		names := []*jval{x}
		if x.kind == jArray {
			names = x.list
		}
		t = 0
		for _, name := range names {
			bits, ok := typeNames[name.s]
			if !ok || name.kind != jString {
				panic(b.fail(n, "type", "%.40q is not a type", name.s))
			}
			t |= bits
		}
	}
	for _, k := range [...]string{"enum", "const"} {
		x := n.v.get(k)
		if x == nil {
			continue
		}
		list := []*jval{x}
		if k == "enum" {
			if x.kind != jArray {
				panic(b.fail(n, k, "'enum' must be a list"))
			}
			list = x.list
		}
		var have types
		for _, v := range list {
			have |= kindTypes[v.kind]
		}
		t &= have
	}
	return t
}

var kindTypes = [...]types{jNull: tNull, jBool: tBool, jNumber: tInteger | tFraction, jString: tString, jArray: tArray, jObject: tObject}
