package grammar

import (
	"encoding/binary"
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// snode is a place in a schema: a schema of its own.
type snode struct {
	v    *jval
	path string // a JSON pointer
	base string // URI that references are relative to
	id   uint32
	old  bool // of a draft in which what stands beside $ref has no effect
}

// builder turns schemas into expressions of a machine. A value is described by a list of
// schemas that all hold; equal lists are one rule, so that references may be recursive.
type builder struct {
	m     *machine
	root  *jval
	nodes map[*jval]*snode
	uris  map[string]*snode // $id and anchors
	rules map[string]eid
	lists map[eid]bool // rules whose body is being made
	work  int
	any   bool // order of properties
	ws    rid
	memo  map[string]rid // patterns
}

const (
	maxSchemaWork = 100_000 // lists of schemas of one grammar, and ways that they come apart
	maxFlats      = 512     // ways that a list may come apart
	maxCounts     = 200_000
	maxNots       = 64
)

func (b *builder) fail(n *snode, keyword, format string, args ...any) error {
	where := n.path
	if keyword != "" {
		where += "/" + escapePointer(keyword)
	}
	return &Error{Where: where, Keyword: keyword, Message: fmt.Sprintf(format, args...)}
}

func escapePointer(s string) string {
	return strings.ReplaceAll(strings.ReplaceAll(s, "~", "~0"), "/", "~1")
}

func (m *machine) compileSchema(s Spec) (eid, error) {
	if s.Kind == KindJSONObject {
		s.Text = `{"type":"object"}`
	}
	v, err := parseJSON(s.Text)
	if err != nil {
		return eFail, &Error{Where: "#", Message: "the schema is not JSON: " + err.Error()}
	}
	return m.schema(v, s)
}

func (m *machine) schema(v *jval, s Spec) (eid, error) {
	var blank byteSet
	for _, c := range []byte(" \t\n\r") {
		blank.add(c)
	}
	b := &builder{m: m, root: v, nodes: map[*jval]*snode{}, uris: map[string]*snode{}, rules: map[string]eid{}, lists: map[eid]bool{}, memo: map[string]rid{}, ws: m.whitespace(), any: s.AnyOrder}
	switch {
	case s.Compact:
		b.ws = rEps
	case s.Whitespace != "":
		p, err := parsePattern(s.Whitespace, "")
		if err == nil {
			b.ws, err = m.full(p, rawText{m.regexes})
		}
		if err != nil {
			return eFail, &Error{Message: "whitespace: " + err.Error()}
		}
		if !m.nodes[b.ws].nullable {
			b.ws = m.opt(b.ws)
		}
		if m.and(b.ws, m.not(m.star(m.set(blank)))); m.alive(m.and(b.ws, m.not(m.star(m.set(blank))))) {
			return eFail, &Error{Message: "whitespace: the pattern matches what is not whitespace"}
		}
	}
	root := b.node(v, "#", "", isOld(v, false))
	b.index(root)
	return b.compile([]*snode{root})
}

// whitespace between the parts of JSON, as people and programs write it: nothing, a space,
// or one or two new lines and an indent of up to 64. Without a bound a model that has lost
// its way writes blanks to its last token.
func (m *machine) whitespace() rid {
	var indent byteSet
	indent.add(' ')
	indent.add('\t')
	line := m.concat(m.opt(m.literal("\r")), m.literal("\n"))
	return m.or(rEps, m.literal(" "), m.concat(m.repeat(line, 1, 2), m.repeat(m.set(indent), 0, 64)))
}

// isOld: before draft 2019-09.
func isOld(v *jval, old bool) bool {
	if s := v.get("$schema"); s != nil && s.kind == jString {
		for _, d := range [...]string{"draft-03", "draft-04", "draft-05", "draft-06", "draft-07"} {
			if strings.Contains(s.s, d) {
				return true
			}
		}
		return false
	}
	return old
}

func (b *builder) node(v *jval, path, base string, old bool) *snode {
	if n := b.nodes[v]; n != nil {
		return n
	}
	n := &snode{v: v, path: path, base: base, id: uint32(len(b.nodes) + 1), old: isOld(v, old)}
	b.nodes[v] = n
	id := v.get("$id")
	if id == nil && n.old {
		id = v.get("id")
	}
	if id != nil && id.kind == jString && !strings.HasPrefix(id.s, "#") && (!n.old || v.get("$ref") == nil) {
		n.base = resolve(base, id.s)
	}
	return n
}

func (b *builder) child(n *snode, v *jval, path ...string) *snode {
	if c := b.nodes[v]; c != nil {
		return c
	}
	p := n.path
	for _, s := range path {
		p += "/" + escapePointer(s)
	}
	return b.node(v, p, n.base, n.old)
}

// index notes what references may name: every schema with an $id, and anchors.
func (b *builder) index(root *snode) {
	b.uris[root.base] = root
	var walk func(n *snode, key string, depth int)
	walk = func(n *snode, key string, depth int) {
		v := n.v
		switch v.kind {
		case jArray:
			for i, x := range v.list {
				if x.kind >= jArray {
					walk(b.child(n, x, fmt.Sprint(i)), "", depth+1)
				}
			}
		case jObject:
			if key == "enum" || key == "const" {
				return
			}
			for _, name := range [...]string{"$id", "id"} {
				if id := v.get(name); id != nil && id.kind == jString && (name == "$id" || n.old) {
					if strings.HasPrefix(id.s, "#") {
						b.uris[n.base+id.s] = n
					} else if _, taken := b.uris[n.base]; !taken {
						b.uris[n.base] = n
					}
				}
			}
			for _, name := range [...]string{"$anchor", "$dynamicAnchor"} {
				if a := v.get(name); a != nil && a.kind == jString {
					b.uris[n.base+"#"+a.s] = n
				}
			}
			for _, k := range v.keys {
				if x := v.at[k]; x.kind >= jArray && k != "enum" && k != "const" {
					walk(b.child(n, x, k), k, depth+1)
				}
			}
		}
	}
	walk(root, "", 0)
}

func resolve(base, ref string) string {
	r, err := url.Parse(ref)
	if err != nil {
		return ref
	}
	u, err := url.Parse(base)
	if err != nil {
		return ref
	}
	return u.ResolveReference(r).String()
}

func (b *builder) target(n *snode, ref string) (*snode, error) {
	whole := n.base + ref
	if !strings.HasPrefix(ref, "#") {
		whole = resolve(n.base, ref)
	}
	doc, fragment, _ := strings.Cut(whole, "#")
	if t := b.uris[whole]; t != nil {
		return t, nil
	}
	t := b.uris[doc]
	if t == nil && doc == n.base {
		t = b.nodes[b.root]
	}
	if t == nil {
		return nil, b.fail(n, "$ref", "%.200q is not in this schema; other documents are not fetched", ref)
	}
	if fragment == "" {
		return t, nil
	}
	if f, err := url.PathUnescape(fragment); err == nil {
		fragment = f
	}
	if !strings.HasPrefix(fragment, "/") {
		if t := b.uris[doc+"#"+fragment]; t != nil {
			return t, nil
		}
		return nil, b.fail(n, "$ref", "%.200q names no schema", ref)
	}
	v, ok := t.v.pointer(fragment)
	if !ok {
		return nil, b.fail(n, "$ref", "%.200q names no schema", ref)
	}
	if v.kind != jObject && v.kind != jBool {
		return nil, b.fail(n, "$ref", "%.200q does not name a schema", ref)
	}
	return b.node(v, t.path+fragment, t.base, t.old), nil
}

// compile makes an expression for values that all schemas of a list describe.
func (b *builder) compile(list []*snode) (eid, error) {
	var key []byte
	unique := list[:0:0]
	for _, n := range list {
		if n.v.kind == jBool && n.v.b || n.v.kind == jObject && len(n.v.keys) == 0 || slices.Contains(unique, n) {
			continue
		}
		if n.v.kind == jBool {
			return eFail, nil
		}
		unique = append(unique, n)
		key = binary.LittleEndian.AppendUint32(key, n.id)
	}
	if e, ok := b.rules[string(key)]; ok {
		return e, nil
	}
	if b.work++; b.work > maxSchemaWork {
		panic(tooLarge{"the schema has too many parts"})
	}
	name, e := b.m.rule()
	b.rules[string(key)] = e
	b.lists[e] = true
	defer delete(b.lists, e)
	flats := []*flat{{types: allTypes}}
	var err error
	for _, n := range unique {
		if flats, err = b.apply(flats, n); err != nil {
			return eFail, err
		}
	}
	ways := make([]eid, 0, len(flats))
	for _, f := range flats {
		w, err := b.value(f)
		if err != nil {
			return eFail, err
		}
		ways = append(ways, w)
	}
	body := b.m.alt(ways...)
	b.m.rules[name] = body
	if body == eFail {
		b.rules[string(key)] = eFail
		return eFail, nil
	}
	return e, nil
}

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

// negate lists schemas, one of which holds for a value that n does not describe.
func (b *builder) negate(n *snode, depth int) ([]*snode, error) {
	if depth > 16 {
		return nil, fmt.Errorf("the negation is nested too deep")
	}
	if n.v.kind == jBool {
		return []*snode{b.child(n, jBoolean(!n.v.b), "not")}, nil
	}
	if n.v.kind != jObject {
		return nil, fmt.Errorf("a schema must be an object or a boolean")
	}
	var out []*snode
	add := func(v *jval) { out = append(out, b.node(v, n.path, n.base, n.old)) }
	not := func(s *snode) *jval { return jObj("not", s.v) }
	number := func(k string, x *jval) { add(jObj("type", jStr("number"), k, x)) }
	if n.old && n.v.get("$ref") != nil {
		t, err := b.target(n, n.v.get("$ref").s)
		if err != nil {
			return nil, err
		}
		return b.negate(t, depth+1)
	}
	for _, k := range n.v.keys {
		x := n.v.at[k]
		size, isSize := x.count()
		switch k {
		case "$ref":
			t, err := b.target(n, x.s)
			if err != nil {
				return nil, err
			}
			more, err := b.negate(t, depth+1)
			if err != nil {
				return nil, err
			}
			out = append(out, more...)
		case "type":
			t, err := b.typesOf(b.child(n, jObj("type", x), k))
			if err != nil {
				return nil, err
			}
			if t&tInteger != 0 && t&tFraction == 0 {
				return nil, fmt.Errorf("'not' of the type integer")
			}
			var rest []*jval
			for _, name := range [...]string{"null", "boolean", "number", "string", "array", "object"} {
				if typeNames[name]&t == 0 {
					rest = append(rest, jStr(name))
				}
			}
			if len(rest) > 0 {
				add(jObj("type", jList(rest...)))
			}
		case "enum", "const":
			list := []*jval{x}
			if k == "enum" {
				list = x.list
			}
			if err := b.negateValues(n, list, add); err != nil {
				return nil, err
			}
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
			var all []*jval
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
		case "items", "prefixItems", "additionalItems", "additionalProperties", "patternProperties", "propertyNames", "uniqueItems", "contains", "minContains", "maxContains",
			"format", "multipleOf", "oneOf", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies",
			"unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef", "divisibleBy", "disallow", "extends", "\x00pattern", "\x00strings":
			if k == "additionalProperties" && (x.kind == jBool && x.b || x.kind == jObject && len(x.keys) == 0) {
				continue
			}
			return nil, fmt.Errorf("'not' of the keyword '%s'", strings.TrimPrefix(k, "\x00"))
		}
	}
	if len(out) > maxNots {
		return nil, fmt.Errorf("the negation has more than %d ways", maxNots)
	}
	return out, nil
}

func (b *builder) negateValues(n *snode, list []*jval, add func(*jval)) error {
	var strs []*jval
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
			return fmt.Errorf("'not' of a value that is a number, a list or an object")
		}
	}
	if !rest["boolean"] && bools[0] != bools[1] {
		add(jObj("const", jBoolean(bools[0])))
	}
	if len(strs) > 0 {
		add(jObj("type", jStr("string"), "\x00strings", jList(strs...)))
	}
	var names []*jval
	for _, t := range [...]string{"null", "boolean", "number", "string", "array", "object"} {
		if rest[t] {
			names = append(names, jStr(t))
		}
	}
	if len(names) > 0 {
		add(jObj("type", jList(names...)))
	}
	return nil
}
