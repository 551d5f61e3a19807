package grammar

import (
	"encoding/binary"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/internal/attempt"
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
	open  bool // Spec.Open
	ws    rid
	memo  map[string]rid // patterns
}

const maxAnnotations = 64

// annotation notes a keyword that has no effect: Grammar.Annotations names it.
func (b *builder) annotation(n *snode, keyword string) {
	where := n.path + "/" + keyword
	if !slices.Contains(b.m.annotations, where) && len(b.m.annotations) < maxAnnotations {
		b.m.annotations = append(b.m.annotations, where)
	}
}

const (
	maxSchemaWork = 100_000 // lists of schemas of one grammar, and ways that they come apart
	maxFlats      = 512     // ways that a list may come apart
	maxCounts     = 200_000
	maxNots       = 64
)

func (b *builder) fail(n *snode, keyword, format string, args ...any) attempt.Failure {
	where := n.path
	if keyword != "" {
		where += "/" + escapePointer(keyword)
	}
	return attempt.Failure{Err: &Error{Where: where, Keyword: keyword, Message: fmt.Sprintf(format, args...)}}
}

func escapePointer(s string) string {
	return strings.ReplaceAll(strings.ReplaceAll(s, "~", "~0"), "/", "~1")
}

func (m *machine) compileSchema(s Spec) eid {
	if s.Kind == KindJSONObject {
		s.Text = `{"type":"object"}`
	}
	v, err := parseJSON(s.Text)
	if err != nil {
		panic(attempt.Failure{Err: &Error{Where: "#", Message: "the schema is not JSON: " + err.Error()}})
	}
	return m.schema(v, s)
}

func (m *machine) schema(v *jval, s Spec) eid {
	b := &builder{m: m, root: v, nodes: map[*jval]*snode{}, uris: map[string]*snode{}, rules: map[string]eid{}, lists: map[eid]bool{}, memo: map[string]rid{}, ws: m.whitespace(), any: s.AnyOrder, open: s.Open}
	switch {
	case s.Compact:
		b.ws = rEps
	case s.Whitespace != "":
		var err error
		if b.ws, err = m.pattern(s.Whitespace, "", rawText{m.regexes}, true); err != nil {
			panic(attempt.Failure{Err: &Error{Message: "whitespace: " + err.Error()}})
		}
		if !m.nodes[b.ws].nullable {
			b.ws = m.opt(b.ws)
		}
		if m.alive(m.and(b.ws, m.not(m.star(m.set(blanks()))))) {
			panic(attempt.Failure{Err: &Error{Message: "whitespace: the pattern matches what is not whitespace"}})
		}
	}
	root := b.node(v, "#", "", isOld(v, false))
	b.index(root)
	return b.compile([]*snode{root})
}

// blanks are the characters that JSON may have between its parts.
func blanks() (s byteSet) {
	for _, c := range []byte(" \t\n\r") {
		s.add(c)
	}
	return s
}

// Bounds of the white space between the parts of JSON. Without them a model that has lost
// its way writes blanks to its last token.
const (
	maxLineEnds = 2
	maxIndent   = 20 // spaces or tabs: llama.cpp's bound
)

// whitespace between the parts of JSON, as people and programs write it: nothing, a space,
// or line ends and an indent.
func (m *machine) whitespace() rid {
	line := m.concat(m.opt(m.literal("\r")), m.literal("\n"))
	var indent byteSet
	indent.add(' ')
	indent.add('\t')
	return m.or(rEps, m.literal(" "), m.concat(m.repeat(line, 1, maxLineEnds), m.repeat(m.set(indent), 0, maxIndent)))
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

func (b *builder) target(n *snode, ref string) *snode {
	whole := n.base + ref
	if !strings.HasPrefix(ref, "#") {
		whole = resolve(n.base, ref)
	}
	doc, fragment, _ := strings.Cut(whole, "#")
	if t := b.uris[whole]; t != nil {
		return t
	}
	t := b.uris[doc]
	if t == nil && doc == n.base {
		t = b.nodes[b.root]
	}
	if t == nil {
		panic(b.fail(n, "$ref", "%.200q is not in this schema; other documents are not fetched", ref))
	}
	if fragment == "" {
		return t
	}
	if f, err := url.PathUnescape(fragment); err == nil {
		fragment = f
	}
	if !strings.HasPrefix(fragment, "/") {
		if t := b.uris[doc+"#"+fragment]; t != nil {
			return t
		}
		panic(b.fail(n, "$ref", "%.200q names no schema", ref))
	}
	v, ok := t.v.pointer(fragment)
	if !ok {
		panic(b.fail(n, "$ref", "%.200q names no schema", ref))
	}
	if v.kind != jObject && v.kind != jBool {
		panic(b.fail(n, "$ref", "%.200q does not name a schema", ref))
	}
	return b.node(v, t.path+fragment, t.base, t.old)
}

// compile makes an expression for values that all schemas of a list describe.
func (b *builder) compile(list []*snode) eid {
	key := []byte{0}
	if b.open {
		key[0] = 1
	}
	unique := list[:0:0]
	for _, n := range list {
		if n.v.kind == jBool && n.v.b || n.v.kind == jObject && len(n.v.keys) == 0 || slices.Contains(unique, n) {
			continue
		}
		if n.v.kind == jBool {
			return eFail
		}
		unique = append(unique, n)
		key = binary.LittleEndian.AppendUint32(key, n.id)
	}
	if e, ok := b.rules[string(key)]; ok {
		return e
	}
	if b.work++; b.work > maxSchemaWork {
		panic(tooLarge{"the schema has too many parts"})
	}
	name, e := b.m.rule()
	b.rules[string(key)] = e
	b.lists[e] = true
	defer delete(b.lists, e)
	flats := []*flat{{types: allTypes}}
	for _, n := range unique {
		flats = b.apply(flats, n)
	}
	ways := make([]eid, 0, len(flats))
	for _, f := range flats {
		w := b.value(f)
		ways = append(ways, w)
	}
	body := b.m.alt(ways...)
	b.m.rules[name] = body
	if body == eFail {
		b.rules[string(key)] = eFail
		return eFail
	}
	return e
}
