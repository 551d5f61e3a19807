package grammar

import (
	"fmt"
	"slices"
	"strings"
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
func (b *builder) apply(flats []*flat, n *snode) ([]*flat, error) {
	if n.v.kind == jBool {
		if n.v.b {
			return flats, nil
		}
		return nil, nil
	}
	if n.v.kind != jObject {
		return nil, b.fail(n, "", "a schema must be an object or a boolean")
	}
	if len(flats) > 0 && slices.Contains(flats[0].nodes, n) {
		all := true
		for _, f := range flats {
			all = all && slices.Contains(f.nodes, n)
		}
		if all {
			return flats, nil
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
	place := func() error {
		if placed {
			return nil
		}
		placed = true
		t, err := b.typesOf(n)
		if err != nil {
			return err
		}
		var out []*flat
		for _, f := range flats {
			g := f.with(n)
			if g.types &= t; g.types != 0 {
				out = append(out, g)
			}
		}
		flats = out
		return nil
	}
	// The type first: it ends what cannot be.
	if t := n.v.get("type"); t != nil || n.v.get("enum") != nil || n.v.get("const") != nil {
		if n.v.get("properties") == nil || firstOf(n.v, "properties", "allOf", "anyOf", "oneOf", "$ref", "if") == "properties" {
			if err := place(); err != nil {
				return nil, err
			}
		}
	}
	for _, k := range n.v.keys {
		x := n.v.at[k]
		var err error
		switch k {
		case "$ref":
			flats, err = b.applyRef(flats, n, x)
		case "allOf":
			if err = b.wantList(n, k, x); err == nil {
				for i, s := range x.list {
					if flats, err = b.apply(flats, b.child(n, s, k, fmt.Sprint(i))); err != nil {
						break
					}
				}
			}
		case "anyOf":
			if err = b.wantList(n, k, x); err == nil {
				flats, err = b.either(flats, n, k, b.children(n, k, x))
			}
		case "oneOf":
			if err = b.wantList(n, k, x); err == nil {
				flats, err = b.oneOf(flats, n, b.children(n, k, x))
			}
		case "not":
			var ways []*snode
			if ways, err = b.negate(b.child(n, x, k), 0); err != nil {
				err = b.fail(n, "not", "it cannot be enforced here: %v", err)
			} else {
				flats, err = b.either(flats, n, k, ways)
			}
		case "if":
			flats, err = b.condition(flats, n, x)
		case "dependentRequired", "dependentSchemas", "dependencies":
			flats, err = b.dependencies(flats, n, k, x)
		case "properties", "required", "patternProperties", "additionalProperties":
			err = place()
		default:
			if _, no := refusedKeywords[k]; no && !harmless(k, x) {
				err = b.fail(n, k, "'%s' is not supported", k)
			} else if strings.HasPrefix(k, "\x00") && !n.v.own {
				err = b.fail(n, k, "the keyword %q is not known", k)
			}
		}
		if err != nil {
			return nil, err
		}
		if len(flats) == 0 {
			// What cannot be fulfilled is still read to its end by nobody: the rest may be anything.
			return nil, nil
		}
	}
	if err := place(); err != nil {
		return nil, err
	}
	return flats, nil
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

func (b *builder) wantList(n *snode, k string, x *jval) error {
	if x.kind != jArray {
		return b.fail(n, k, "'%s' must be a list of schemas", k)
	}
	return nil
}

func (b *builder) children(n *snode, k string, x *jval) []*snode {
	out := make([]*snode, len(x.list))
	for i, s := range x.list {
		out[i] = b.child(n, s, k, fmt.Sprint(i))
	}
	return out
}

func (b *builder) applyRef(flats []*flat, n *snode, ref *jval) ([]*flat, error) {
	if ref.kind != jString {
		return nil, b.fail(n, "$ref", "'$ref' must be a string")
	}
	t, err := b.target(n, ref.s)
	if err != nil {
		return nil, err
	}
	// A reference that leads back to itself without a value in between says nothing.
	if len(flats) > 0 && b.within(t, n) {
		return nil, b.fail(n, "$ref", "the reference %.100q leads to itself", ref.s)
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
		next, err := b.target(t, r.s)
		if err != nil {
			return false
		}
		t = next
	}
	return true
}

// either multiplies the ways by alternatives.
func (b *builder) either(flats []*flat, n *snode, k string, options []*snode) ([]*flat, error) {
	var out []*flat
	var last error
	for _, o := range options {
		more, err := b.apply(flats, o)
		if err != nil {
			return nil, err
		}
		if out = append(out, more...); len(out) > maxFlats {
			return nil, b.fail(n, k, "'%s' and what stands beside it make more than %d combinations", k, maxFlats)
		}
	}
	return out, last
}

// oneOf is anyOf where no two options can both hold; else each option is taken without
// the others.
func (b *builder) oneOf(flats []*flat, n *snode, options []*snode) ([]*flat, error) {
	var out []*flat
	for i, o := range options {
		ways, err := b.apply(flats, o)
		if err != nil {
			return nil, err
		}
		for j, p := range options {
			if i == j || len(ways) == 0 || b.disjoint(n, o, p) {
				continue
			}
			not, err := b.negate(p, 0)
			if err != nil {
				return nil, b.fail(n, "oneOf", "options %d and %d may both hold, and one without the other cannot be enforced: %v", min(i, j), max(i, j), err)
			}
			if ways, err = b.either(ways, n, "oneOf", not); err != nil {
				return nil, err
			}
		}
		if out = append(out, ways...); len(out) > maxFlats {
			return nil, b.fail(n, "oneOf", "'oneOf' and what stands beside it make more than %d combinations", maxFlats)
		}
	}
	return out, nil
}

// disjoint: no value is described by both.
func (b *builder) disjoint(n, o, p *snode) bool {
	list := []*snode{o, p}
	if t := n.v.get("type"); t != nil {
		only := jObj("type", t)
		list = append(list, b.child(n, only, "type"))
	}
	e, err := b.compile(list)
	if err != nil {
		return false
	}
	return e == eFail || !b.possible(e)
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
func (b *builder) condition(flats []*flat, n *snode, cond *jval) ([]*flat, error) {
	then, other := n.v.get("then"), n.v.get("else")
	if then == nil && other == nil {
		return flats, nil
	}
	c := b.child(n, cond, "if")
	yes, err := b.apply(flats, c)
	if err == nil && then != nil {
		yes, err = b.apply(yes, b.child(n, then, "then"))
	}
	if err != nil {
		return nil, err
	}
	not, err := b.negate(c, 0)
	if err != nil {
		return nil, b.fail(n, "if", "it cannot be enforced here: %v", err)
	}
	no, err := b.either(flats, n, "if", not)
	if err == nil && other != nil {
		no, err = b.apply(no, b.child(n, other, "else"))
	}
	if err != nil {
		return nil, err
	}
	if len(yes)+len(no) > maxFlats {
		return nil, b.fail(n, "if", "'if' and what stands beside it make more than %d combinations", maxFlats)
	}
	return append(yes, no...), nil
}

// dependencies: a property is absent, or what depends on it holds.
func (b *builder) dependencies(flats []*flat, n *snode, k string, x *jval) ([]*flat, error) {
	if x.kind != jObject {
		return nil, b.fail(n, k, "'%s' must be an object", k)
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
			more, err := b.either(one, n, k, []*snode{absent, with})
			if err != nil {
				return nil, err
			}
			if out = append(out, more...); len(out) > maxFlats {
				return nil, b.fail(n, k, "'%s' makes more than %d combinations", k, maxFlats)
			}
		}
		flats = out
	}
	return flats, nil
}

func (b *builder) typesOf(n *snode) (types, error) {
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
				return 0, b.fail(n, "type", "%.40q is not a type", name.s)
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
				return 0, b.fail(n, k, "'enum' must be a list")
			}
			list = x.list
		}
		var have types
		for _, v := range list {
			have |= kindTypes[v.kind]
		}
		t &= have
	}
	return t, nil
}

var kindTypes = [...]types{jNull: tNull, jBool: tBool, jNumber: tInteger | tFraction, jString: tString, jArray: tArray, jObject: tObject}
