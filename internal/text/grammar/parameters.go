package grammar

import (
	"slices"
	"strings"
	"sync"

	"github.com/shoal-llm/shoal/internal/attempt"
	"github.com/shoal-llm/shoal/internal/text/grammar/regex"
)

// Parameters answers questions about individual members of an object's schema. Unreadable parts of
// the schema allow everything. It is safe for concurrent use.
type Parameters struct {
	text  string
	mu    sync.Mutex
	b     *builder // nil: no schema, or not parsed yet
	root  *schemaNode
	read  bool
	steps int
}

// NewParameters returns the parameters of a JSON schema, which is parsed at the first question.
func NewParameters(schema string) *Parameters { return &Parameters{text: schema} }

const (
	maxParameterSteps = 20_000 // maximum number of schemas for one question
	maxParameterNodes = 1 << 16
)

// Allows reports whether a member may have a kind: null, boolean, string, array, object, integer,
// or number (not an integer).
func (p *Parameters) Allows(name, kind string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.open() {
		return true
	}
	of := typeNames[kind]
	if kind == "number" {
		of = tFraction
	}
	t, found := p.member(p.root, name, 0, p.types)
	return !found || t == 0 || t&of != 0
}

// Lists reports whether an enumeration or constant that applies to a member contains a value, given
// as JSON.
func (p *Parameters) Lists(name, value string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	x, err := parseJSON(value)
	if err != nil || !p.open() {
		return false
	}
	held := false
	p.member(p.root, name, 0, func(n *schemaNode, depth int) types {
		held = held || p.lists(n, x, depth)
		return allTypes
	})
	return held
}

// open parses the schema once.
func (p *Parameters) open() bool {
	p.steps = 0
	if !p.read {
		p.read = true
		v, err := parseJSON(p.text)
		if err != nil || len(p.text) > maxSpec {
			return false
		}
		b := newBuilder(newMachine(maxParameterNodes), v)
		p.root = b.node(v, "#", "", isOld(v, false))
		if _, ok := trying(func() bool { b.index(p.root); return true }); ok {
			p.b = b
		}
	}
	return p.b != nil
}

// trying returns the result of f, and false if f gives up.
func trying[T any](f func() T) (v T, ok bool) {
	var large error
	defer func() { ok = ok && large == nil }()
	defer recoverLarge(&large)
	v, err := attempt.At(f)
	return v, err == nil
}

// reference returns the target of n's $ref, or nil.
func (p *Parameters) reference(n *schemaNode) *schemaNode {
	ref := n.v.get("$ref")
	if ref == nil || ref.kind != jString {
		return nil
	}
	t, _ := trying(func() *schemaNode { return p.b.target(n, ref.s) })
	return t
}

// branches returns the schemas of a keyword that apply to the same value as n.
func (p *Parameters) branches(n *schemaNode, keyword string) (list []*schemaNode) {
	if x := n.v.get(keyword); x != nil && x.kind == jArray {
		list, _ = trying(func() []*schemaNode { return p.b.children(n, keyword, x) })
	}
	return list
}

func (p *Parameters) spent(depth int) bool {
	p.steps++
	return p.steps > maxParameterSteps || depth > 64
}

// member calls ask for each schema that n, the schema of an object, has for one member. Types of
// schemas that all apply are intersected, those of alternatives united. found reports whether there was
// a schema.
func (p *Parameters) member(n *schemaNode, name string, depth int, ask func(n *schemaNode, depth int) types) (t types, found bool) {
	t = allTypes
	if p.spent(depth) || n.v.kind != jObject {
		return t, false
	}
	and := func(o types, also bool) {
		if also {
			t, found = t&o, true
		}
	}
	if to := p.reference(n); to != nil {
		and(p.member(to, name, depth+1, ask))
		if n.old {
			return t, found
		}
	}
	for _, s := range p.own(n, name) {
		and(ask(s, depth+1), true)
	}
	for _, s := range p.branches(n, "allOf") {
		and(p.member(s, name, depth+1, ask))
	}
	for _, keyword := range [...]string{"anyOf", "oneOf"} {
		var union types
		any := false
		for _, s := range p.branches(n, keyword) {
			if o, also := p.member(s, name, depth+1, ask); also {
				union, any = union|o, true
			}
		}
		and(union, any)
	}
	return t, found
}

// own returns the schemas of a member directly in n.
func (p *Parameters) own(n *schemaNode, name string) (list []*schemaNode) {
	if x := n.v.get("properties").get(name); x != nil {
		list = append(list, p.b.child(n, x, "properties", name))
	}
	if x := n.v.get("patternProperties"); x != nil && x.kind == jObject {
		for _, pattern := range x.keys {
			hit, _ := trying(func() bool {
				p.b.m.refuel()
				return p.b.m.Matches(p.b.pattern(n, "patternProperties", pattern), regex.JSONSpelling(name))
			})
			if hit {
				list = append(list, p.b.child(n, x.at[pattern], "patternProperties", pattern))
			}
		}
	}
	if x := n.v.get("additionalProperties"); x != nil && len(list) == 0 {
		list = append(list, p.b.child(n, x, "additionalProperties"))
	}
	return list
}

// types returns the types that n allows; 0: none.
func (p *Parameters) types(n *schemaNode, depth int) types {
	if p.spent(depth) {
		return allTypes
	}
	if n.v.kind == jBool && !n.v.b {
		return 0
	}
	if n.v.kind != jObject {
		return allTypes
	}
	t := allTypes
	if to := p.reference(n); to != nil {
		if t = p.types(to, depth+1); n.old {
			return t
		}
	}
	t &= looseTypes(n.v.get("type"))
	for _, keyword := range [...]string{"enum", "const"} {
		x := n.v.get(keyword)
		if x == nil || keyword == "enum" && x.kind != jArray {
			continue
		}
		list := []*jsonValue{x}
		if keyword == "enum" {
			list = x.list
		}
		var have types
		for _, v := range list {
			have |= kindTypes[v.kind]
		}
		t &= have
	}
	for _, s := range p.branches(n, "allOf") {
		t &= p.types(s, depth+1)
	}
	for _, keyword := range [...]string{"anyOf", "oneOf"} {
		if list := p.branches(n, keyword); len(list) > 0 {
			var union types
			for _, s := range list {
				union |= p.types(s, depth+1)
			}
			t &= union
		}
	}
	if x := n.v.get("not"); x != nil && x.kind == jObject && len(x.keys) == 1 && x.keys[0] == "type" {
		if no := looseTypes(x.at["type"]); no != allTypes {
			t &^= no
		}
	}
	if x := n.v.get("nullable"); x != nil && x.kind == jBool && x.b { // OpenAPI 3.0
		t |= tNull
	}
	return t
}

// looseTypes returns the types in "type". It accepts Python's names and any case.
func looseTypes(x *jsonValue) (t types) {
	names := []*jsonValue{x}
	if x != nil && x.kind == jArray {
		names = x.list
	}
	for _, name := range names {
		if name == nil || name.kind != jString {
			return allTypes
		}
		word := strings.ToLower(name.s)
		if long := aliases[word]; long != "" {
			word = long
		}
		if typeNames[word] == 0 {
			return allTypes
		}
		t |= typeNames[word]
	}
	return t
}

var aliases = map[string]string{"str": "string", "text": "string", "int": "integer", "float": "number", "double": "number",
	"bool": "boolean", "list": "array", "tuple": "array", "dict": "object", "none": "null"}

// lists reports whether an enumeration or constant in n contains x.
func (p *Parameters) lists(n *schemaNode, x *jsonValue, depth int) bool {
	if p.spent(depth) || n.v.kind != jObject {
		return false
	}
	if e := n.v.get("enum"); e != nil && slices.ContainsFunc(e.list, x.same) {
		return true
	}
	if c := n.v.get("const"); c != nil && c.same(x) {
		return true
	}
	next := append(p.branches(n, "allOf"), p.branches(n, "anyOf")...)
	next = append(next, p.branches(n, "oneOf")...)
	if to := p.reference(n); to != nil {
		next = append(next, to)
	}
	return slices.ContainsFunc(next, func(s *schemaNode) bool { return p.lists(s, x, depth+1) })
}
