package grammar

import (
	"slices"
	"strings"
	"sync"

	"github.com/shoal-llm/shoal/internal/attempt"
)

// Parameters answers what a schema of an object says of its members, each by itself. What
// of a schema cannot be read allows everything. It is safe for concurrent use.
type Parameters struct {
	text  string
	mu    sync.Mutex
	b     *builder // nil: no schema, or not read yet
	root  *snode
	read  bool
	steps int
}

// NewParameters are those of a JSON schema, which is read when it is first asked.
func NewParameters(schema string) *Parameters { return &Parameters{text: schema} }

const (
	maxParameterSteps = 20_000 // schemas of one question
	maxParameterNodes = 1 << 16
)

// Allows tells whether a member may be null, boolean, string, array or object, an integer, or
// a number that is none.
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
	t, said := p.member(p.root, name, 0, p.types)
	return !said || t == 0 || t&of != 0
}

// Lists tells whether an enumeration or a constant that applies to a member holds a value,
// which is JSON.
func (p *Parameters) Lists(name, value string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	x, err := parseJSON(value)
	if err != nil || !p.open() {
		return false
	}
	held := false
	p.member(p.root, name, 0, func(n *snode, depth int) types {
		held = held || p.lists(n, x, depth)
		return allTypes
	})
	return held
}

// open reads the schema, once.
func (p *Parameters) open() bool {
	p.steps = 0
	if !p.read {
		p.read = true
		v, err := parseJSON(p.text)
		if err != nil || len(p.text) > maxSpec {
			return false
		}
		b := &builder{m: newMachine(maxParameterNodes), root: v, nodes: map[*jval]*snode{}, uris: map[string]*snode{}, memo: map[string]rid{}}
		p.root = b.node(v, "#", "", isOld(v, false))
		if _, ok := trying(func() bool { b.index(p.root); return true }); ok {
			p.b = b
		}
	}
	return p.b != nil
}

// trying is what f makes, if it does not give up.
func trying[T any](f func() T) (v T, ok bool) {
	var large error
	defer func() { ok = ok && large == nil }()
	defer recoverLarge(&large)
	v, err := attempt.At(f)
	return v, err == nil
}

// reference is what n refers to, or nil.
func (p *Parameters) reference(n *snode) *snode {
	ref := n.v.get("$ref")
	if ref == nil || ref.kind != jString {
		return nil
	}
	t, _ := trying(func() *snode { return p.b.target(n, ref.s) })
	return t
}

// branches are the schemas of a keyword that apply to the same value as n.
func (p *Parameters) branches(n *snode, keyword string) (list []*snode) {
	if x := n.v.get(keyword); x != nil && x.kind == jArray {
		list, _ = trying(func() []*snode { return p.b.children(n, keyword, x) })
	}
	return list
}

func (p *Parameters) spent(depth int) bool {
	p.steps++
	return p.steps > maxParameterSteps || depth > 64
}

// member asks each schema that n, a schema of the object, has for one of its members. Types
// of schemas that all hold are intersected, those of alternatives united. said: there was one.
func (p *Parameters) member(n *snode, name string, depth int, ask func(n *snode, depth int) types) (t types, said bool) {
	t = allTypes
	if p.spent(depth) || n.v.kind != jObject {
		return t, false
	}
	and := func(o types, also bool) {
		if also {
			t, said = t&o, true
		}
	}
	if to := p.reference(n); to != nil {
		and(p.member(to, name, depth+1, ask))
		if n.old {
			return t, said
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
	return t, said
}

// own are the schemas of a member in n itself.
func (p *Parameters) own(n *snode, name string) (list []*snode) {
	if x := n.v.get("properties").get(name); x != nil {
		list = append(list, p.b.child(n, x, "properties", name))
	}
	if x := n.v.get("patternProperties"); x != nil && x.kind == jObject {
		for _, pattern := range x.keys {
			hit, _ := trying(func() bool {
				p.b.m.refuel()
				return p.b.m.matches(p.b.pattern(n, "patternProperties", pattern), jsonSpelling(name))
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

// types are those that n allows; 0: none.
func (p *Parameters) types(n *snode, depth int) types {
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
		list := []*jval{x}
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

// looseTypes are those that "type" names, also by the names of Python and in any case.
func looseTypes(x *jval) (t types) {
	names := []*jval{x}
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

// lists tells whether an enumeration or a constant in n holds x.
func (p *Parameters) lists(n *snode, x *jval, depth int) bool {
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
	return slices.ContainsFunc(next, func(s *snode) bool { return p.lists(s, x, depth+1) })
}
