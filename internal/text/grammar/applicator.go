package grammar

import (
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/internal/attempt"
	"github.com/shoal-llm/shoal/internal/text/grammar/regex"
)

// types is a set of value types. A number is an integer or has a fraction.
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

var typeNames = map[string]types{
	"null": tNull, "boolean": tBool, "integer": tInteger, "number": tInteger | tFraction, "string": tString,
	"array": tArray, "object": tObject, "any": allTypes,
}

// conjunction is a list of schemas that all apply to a value. Only their own assertions count,
// because the schemas that they apply to the same value are in the list too.
type conjunction struct {
	nodes []*schemaNode
	types types
}

func (f *conjunction) with(n *schemaNode) *conjunction {
	return &conjunction{append(f.nodes[:len(f.nodes):len(f.nodes)], n), f.types}
}

// refusedKeywords affect validity but cannot be enforced.
var refusedKeywords = map[string]string{
	"unevaluatedProperties": "", "unevaluatedItems": "", "$dynamicRef": "", "$recursiveRef": "",
	"divisibleBy": "", "disallow": "", "extends": "",
}

// apply adds a schema to every alternative so far.
func (b *builder) apply(flats []*conjunction, n *schemaNode) []*conjunction {
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
		panic(regex.Large("the schema has too many parts"))
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
		var out []*conjunction
		for _, f := range flats {
			g := f.with(n)
			if g.types &= t; g.types != 0 {
				out = append(out, g)
			}
		}
		flats = out
	}
	// The type first: it rules out impossible alternatives early.
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
			// An unsatisfiable alternative is dropped, so the rest of its schema is not read.
			return nil
		}
	}
	place()
	return flats
}

// checkRequired refuses a value that is not a list of names. Only draft 3 allows a boolean, inside
// 'properties'.
func (b *builder) checkRequired(n *schemaNode, x *jsonValue) {
	if schema := b.root.get("$schema").text(); x.kind == jBool && strings.Contains(schema, "draft-03") {
		return
	}
	if x.kind != jArray || slices.ContainsFunc(x.list, func(k *jsonValue) bool { return k.kind != jString }) {
		panic(b.fail(n, "required", "'required' must be a list of names"))
	}
}

func harmless(k string, x *jsonValue) bool {
	switch k {
	case "unevaluatedProperties", "unevaluatedItems":
		return x.kind == jBool && x.b || x.kind == jObject && len(x.keys) == 0
	}
	return false
}

func firstOf(v *jsonValue, names ...string) string {
	for _, k := range v.keys {
		if slices.Contains(names, k) {
			return k
		}
	}
	return ""
}

// schemas returns the children of a keyword whose value is a list of schemas.
func (b *builder) schemas(n *schemaNode, k string, x *jsonValue) []*schemaNode {
	if x.kind != jArray {
		panic(b.fail(n, k, "'%s' must be a list of schemas", k))
	}
	return b.children(n, k, x)
}

func (b *builder) children(n *schemaNode, k string, x *jsonValue) []*schemaNode {
	out := make([]*schemaNode, len(x.list))
	for i, s := range x.list {
		out[i] = b.child(n, s, k, fmt.Sprint(i))
	}
	return out
}

func (b *builder) applyRef(flats []*conjunction, n *schemaNode, ref *jsonValue) []*conjunction {
	if ref.kind != jString {
		panic(b.fail(n, "$ref", "'$ref' must be a string"))
	}
	t := b.target(n, ref.s)
	// A reference that refers to itself without a value in between has no meaning.
	if len(flats) > 0 && b.within(t, n) {
		panic(b.fail(n, "$ref", "the reference %.100q refers to itself; remove it, or place it in a property or an item", ref.s))
	}
	return b.apply(flats, t)
}

// within reports whether following only references from t leads to n.
func (b *builder) within(t, n *schemaNode) bool {
	for range 64 {
		if t == n {
			return true
		}
		r := t.v.get("$ref")
		if r == nil || r.kind != jString {
			return false
		}
		next, err := attempt.At(func() *schemaNode { return b.target(t, r.s) })
		if err != nil {
			return false
		}
		t = next
	}
	return true
}

// either combines every alternative so far with every option.
func (b *builder) either(flats []*conjunction, n *schemaNode, k string, options []*schemaNode) []*conjunction {
	var out []*conjunction
	for _, o := range options {
		more := b.apply(flats, o)
		if out = append(out, more...); len(out) > maxFlats {
			panic(b.fail(n, k, "'%s' and its sibling keywords make more than %d combinations", k, maxFlats))
		}
	}
	return out
}

// oneOf is anyOf if no two options can both hold. Otherwise each option is combined with the
// negation of the others.
func (b *builder) oneOf(flats []*conjunction, n *schemaNode, options []*schemaNode) []*conjunction {
	var out []*conjunction
	for i, o := range options {
		ways := b.apply(flats, o)
		for j, p := range options {
			if i == j || len(ways) == 0 || b.disjoint(n, o, p) {
				continue
			}
			not, err := attempt.At(func() []*schemaNode { return b.negate(p, 0) })
			if err != nil {
				panic(b.fail(n, "oneOf", "options %d and %d may both hold, and one without the other cannot be enforced: %v",
					min(i, j), max(i, j), err))
			}
			ways = b.either(ways, n, "oneOf", not)
		}
		if out = append(out, ways...); len(out) > maxFlats {
			panic(b.fail(n, "oneOf", "'oneOf' and its sibling keywords make more than %d combinations", maxFlats))
		}
	}
	return out
}

// disjoint reports whether no value satisfies both schemas, as JSON Schema defines them.
func (b *builder) disjoint(n, o, p *schemaNode) bool {
	defer func(open bool) { b.open = open }(b.open)
	b.open = true
	list := []*schemaNode{o, p}
	if t := n.v.get("type"); t != nil {
		only := jObj("type", t)
		list = append(list, b.child(n, only, "type"))
	}
	e, err := attempt.At(func() exprID { return b.compile(list) })
	return err == nil && (e == eFail || !b.possible(e))
}

// possible reports whether some text may match e. An unfinished rule counts as possible.
func (b *builder) possible(e exprID) bool {
	m := b.m
	var rules []uint32
	seen := map[exprID]bool{}
	var walk func(e exprID)
	walk = func(e exprID) {
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
			walk(exprID(n.a))
			walk(exprID(n.b))
		case xAlt:
			for _, a := range n.list {
				walk(a)
			}
		case xRepeat:
			walk(exprID(n.a))
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

// condition handles if, then, else: the condition with then, or its negation with else.
func (b *builder) condition(flats []*conjunction, n *schemaNode, cond *jsonValue) []*conjunction {
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
		panic(b.fail(n, "if", "'if' and its sibling keywords make more than %d combinations", maxFlats))
	}
	return append(yes, no...)
}

// dependencies: a property is absent, or its dependency holds.
func (b *builder) dependencies(flats []*conjunction, n *schemaNode, k string, x *jsonValue) []*conjunction {
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
		var out []*conjunction
		for _, f := range flats {
			if f.types&tObject == 0 {
				out = append(out, f)
				continue
			}
			one := []*conjunction{f}
			more := b.either(one, n, k, []*schemaNode{absent, with})
			if out = append(out, more...); len(out) > maxFlats {
				panic(b.fail(n, k, "'%s' makes more than %d combinations", k, maxFlats))
			}
		}
		flats = out
	}
	return flats
}

func (b *builder) typesOf(n *schemaNode) types {
	t := allTypes
	if x := n.v.get("type"); x != nil {
		names := []*jsonValue{x}
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
		list := []*jsonValue{x}
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
