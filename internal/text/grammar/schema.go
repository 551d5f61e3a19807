package grammar

import (
	"encoding/binary"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/internal/attempt"
	"github.com/shoal-llm/shoal/internal/text/grammar/regex"
)

// schemaNode is a schema at its place in the document.
type schemaNode struct {
	v    *jsonValue
	path string // a JSON pointer
	base string // URI that references are relative to
	id   uint32
	old  bool // a draft that ignores the siblings of $ref
}

// builder compiles schemas to expressions of a machine. A value is described by a list of schemas
// that all apply. Equal lists share one rule, so references may be recursive.
type builder struct {
	m     *machine
	root  *jsonValue
	nodes map[*jsonValue]*schemaNode
	uris  map[string]*schemaNode // $id and anchors
	rules map[string]exprID
	lists map[exprID]bool // rules whose body is under construction
	work  int
	any   bool // properties in any order
	open  bool // Spec.Open
	ws    regex.ID
	memo  map[string]regex.ID // compiled patterns
}

func newBuilder(m *machine, root *jsonValue) *builder {
	return &builder{
		m: m, root: root, nodes: map[*jsonValue]*schemaNode{}, uris: map[string]*schemaNode{},
		rules: map[string]exprID{}, lists: map[exprID]bool{}, memo: map[string]regex.ID{},
	}
}

const maxAnnotations = 64

// annotation records a keyword without effect, for Grammar.Annotations.
func (b *builder) annotation(n *schemaNode, keyword string) {
	where := n.path + "/" + keyword
	if !slices.Contains(b.m.annotations, where) && len(b.m.annotations) < maxAnnotations {
		b.m.annotations = append(b.m.annotations, where)
	}
}

const (
	maxSchemaWork = 100_000 // lists of schemas of one grammar, and alternatives they expand to
	maxFlats      = 512     // alternatives of one list
	maxNots       = 64
)

func (b *builder) fail(n *schemaNode, keyword, format string, args ...any) attempt.Failure {
	where := n.path
	if keyword != "" {
		where += "/" + escapePointer(keyword)
	}
	return attempt.Failure{Err: &Error{Where: where, Keyword: keyword, Message: fmt.Sprintf(format, args...)}}
}

func escapePointer(s string) string {
	return strings.ReplaceAll(strings.ReplaceAll(s, "~", "~0"), "/", "~1")
}

func (m *machine) compileSchema(s Spec) exprID {
	if s.Kind == KindJSONObject {
		s.Text = `{"type":"object"}`
	}
	v, err := parseJSON(s.Text)
	if err != nil {
		panic(attempt.Failure{Err: &Error{Where: "#", Message: "the schema is not JSON: " + err.Error()}})
	}
	return m.schema(v, s)
}

func (m *machine) schema(v *jsonValue, s Spec) exprID {
	b := newBuilder(m, v)
	b.ws, b.any, b.open = m.whitespace(), s.AnyOrder, s.Open
	switch {
	case s.Compact:
		b.ws = regex.Epsilon
	case s.Whitespace != "":
		var err error
		if b.ws, err = m.Pattern(s.Whitespace, "", regex.RawText(m.Store), true); err != nil {
			panic(attempt.Failure{Err: &Error{Message: "whitespace: " + err.Error()}})
		}
		if !m.Nullable(b.ws) {
			b.ws = m.Opt(b.ws)
		}
		if m.Alive(m.And(b.ws, m.Not(m.Star(m.Set(blanks()))))) {
			panic(attempt.Failure{Err: &Error{Message: "whitespace: the pattern matches more than white space"}})
		}
	}
	root := b.node(v, "#", "", isOld(v, false))
	b.index(root)
	return b.compile([]*schemaNode{root})
}

// blanks returns JSON's white space characters.
func blanks() (s regex.ByteSet) {
	for _, c := range []byte(" \t\n\r") {
		s.Add(c)
	}
	return s
}

// Bounds of the white space between JSON tokens. Without them a confused model writes white space
// until its token limit.
const (
	maxLineEnds = 2
	maxIndent   = 20 // spaces or tabs: llama.cpp's bound
)

// whitespace matches usual white space between JSON tokens: nothing, a space, or line breaks and an
// indent.
func (m *machine) whitespace() regex.ID {
	line := m.Concat(m.Opt(m.Literal("\r")), m.Literal("\n"))
	var indent regex.ByteSet
	indent.Add(' ')
	indent.Add('\t')
	return m.Or(regex.Epsilon, m.Literal(" "), m.Concat(m.Repeat(line, 1, maxLineEnds), m.Repeat(m.Set(indent), 0, maxIndent)))
}

// isOld reports whether the schema has a draft before 2019-09.
func isOld(v *jsonValue, old bool) bool {
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

func (b *builder) node(v *jsonValue, path, base string, old bool) *schemaNode {
	if n := b.nodes[v]; n != nil {
		return n
	}
	n := &schemaNode{v: v, path: path, base: base, id: uint32(len(b.nodes) + 1), old: isOld(v, old)}
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

func (b *builder) child(n *schemaNode, v *jsonValue, path ...string) *schemaNode {
	if c := b.nodes[v]; c != nil {
		return c
	}
	p := n.path
	for _, s := range path {
		p += "/" + escapePointer(s)
	}
	return b.node(v, p, n.base, n.old)
}

// index records the possible targets of references: schemas with an $id, and anchors.
func (b *builder) index(root *schemaNode) {
	b.uris[root.base] = root
	var walk func(n *schemaNode, key string, depth int)
	walk = func(n *schemaNode, key string, depth int) {
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

func (b *builder) target(n *schemaNode, ref string) *schemaNode {
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

// compile returns the expression of the values that satisfy all schemas of a list.
func (b *builder) compile(list []*schemaNode) exprID {
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
		panic(regex.Large("the schema has too many parts"))
	}
	name, e := b.m.rule()
	b.rules[string(key)] = e
	b.lists[e] = true
	defer delete(b.lists, e)
	flats := []*conjunction{{types: allTypes}}
	for _, n := range unique {
		flats = b.apply(flats, n)
	}
	ways := make([]exprID, 0, len(flats))
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
