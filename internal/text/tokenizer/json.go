package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode/utf8"

	"github.com/shoal-llm/shoal/internal/attempt"
	"github.com/shoal-llm/shoal/internal/engine/modelfile"
)

// node is a JSON value with its path ("tokenizer.json: model.merges[3]"), so that every error names
// the field.
type node struct {
	path string
	raw  json.RawMessage
}

// object is a JSON object split into its members.
type object struct {
	path   string
	fields map[string]json.RawMessage
}

func parseFile(name string, data []byte) object {
	if !utf8.Valid(data) {
		panic(attempt.Failure{Err: invalid(name, "is not valid UTF-8")})
	}
	o := node{name, data}.object()
	o.path = name + ":"
	return o
}

func join(path, field string) string {
	if path != "" && path[len(path)-1] == ':' {
		return path + " " + field
	}
	return path + "." + field
}

func (n node) null() bool {
	t := bytes.TrimSpace(n.raw)
	return len(t) == 0 || bytes.Equal(t, []byte("null"))
}

// into decodes the value strictly as the type of v.
func (n node) into(v any, want string) {
	if n.null() {
		panic(attempt.Failure{Err: invalid(n.path, "is missing, want %s", want)})
	}
	if err := json.Unmarshal(n.raw, v); err != nil {
		panic(attempt.Failure{Err: invalid(n.path, "is not %s: %s", want, modelfile.Words(err.Error()))})
	}
}

func (n node) object() object {
	o := object{path: n.path}
	n.into(&o.fields, "an object")
	return o
}

func (n node) list() []node {
	var raws []json.RawMessage
	n.into(&raws, "a list")
	out := make([]node, len(raws))
	for i, r := range raws {
		out[i] = node{fmt.Sprintf("%s[%d]", n.path, i), r}
	}
	return out
}

func (n node) str() string {
	var s string
	n.into(&s, "a string")
	return s
}

// oneRune decodes a string that must be a single character.
func (n node) oneRune() rune {
	s := n.str()
	r, size := utf8.DecodeRuneInString(s)
	if size == 0 || size != len(s) {
		panic(attempt.Failure{Err: invalid(n.path, "is %q, want a single character", s)})
	}
	return r
}

// id decodes a token id and checks its range. The caller checks whether it exists.
func (n node) id() int32 {
	var v int64
	n.into(&v, "a token id")
	if v < 0 || v >= maxTokenID {
		panic(attempt.Failure{Err: invalid(n.path, "is %d, token ids must be in [0, %d)", v, maxTokenID)})
	}
	return int32(v)
}

func (n node) count(limit int) int {
	var v int64
	n.into(&v, "a count")
	if v < 0 || v > int64(limit) {
		panic(attempt.Failure{Err: invalid(n.path, "is %d, want 0 to %d", v, limit)})
	}
	return int(v)
}

func (o object) at(field string) node { return node{join(o.path, field), o.fields[field]} }

// flag returns a boolean member, def if missing or null.
func (o object) flag(field string, def bool) bool {
	n := o.at(field)
	if n.null() {
		return def
	}
	v := def
	n.into(&v, "true or false")
	return v
}

// text returns a string member, def if missing or null.
func (o object) text(field, def string) string {
	n := o.at(field)
	if n.null() {
		return def
	}
	return n.str()
}

// kind returns the "type" member, which names a component.
func (o object) kind() string { return o.at("type").str() }

// flatten returns a component's list with nested Sequences expanded in order. field is the member
// of a Sequence that has its components.
func flatten(n node, field string) []object {
	var out []object
	var walk func(n node, depth int)
	walk = func(n node, depth int) {
		if depth > maxNesting {
			panic(attempt.Failure{Err: invalid(n.path, "sequences are nested more than %d deep", maxNesting)})
		}
		o := n.object()
		kind := o.kind()
		if kind != "Sequence" {
			if out = append(out, o); len(out) > maxStages {
				panic(attempt.Failure{Err: invalid(n.path, "more than %d components", maxStages)})
			}
			return
		}
		list := o.at(field).list()
		for _, c := range list {
			walk(c, depth+1)
		}
	}
	if !n.null() {
		walk(n, 0)
	}
	return out
}
