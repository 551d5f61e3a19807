package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// node is one json value together with the path that leads to it
// ("tokenizer.json: model.merges[3]"), so that every complaint names its field.
type node struct {
	path string
	raw  json.RawMessage
}

// object is a json object split into its fields.
type object struct {
	path   string
	fields map[string]json.RawMessage
}

func parseFile(name string, data []byte) (object, error) {
	if !utf8.Valid(data) {
		return object{}, invalid(name, "is not valid UTF-8")
	}
	o, err := node{name, data}.object()
	o.path = name + ":"
	return o, err
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
func (n node) into(v any, want string) error {
	if n.null() {
		return invalid(n.path, "is missing, want %s", want)
	}
	if err := json.Unmarshal(n.raw, v); err != nil {
		return invalid(n.path, "is not %s: %v", want, err)
	}
	return nil
}

func (n node) object() (object, error) {
	o := object{path: n.path}
	err := n.into(&o.fields, "an object")
	return o, err
}

func (n node) list() ([]node, error) {
	var raws []json.RawMessage
	if err := n.into(&raws, "a list"); err != nil {
		return nil, err
	}
	out := make([]node, len(raws))
	for i, r := range raws {
		out[i] = node{fmt.Sprintf("%s[%d]", n.path, i), r}
	}
	return out, nil
}

func (n node) str() (string, error) {
	var s string
	err := n.into(&s, "a string")
	return s, err
}

// oneRune decodes a string that must be a single character.
func (n node) oneRune() (rune, error) {
	s, err := n.str()
	if err != nil {
		return 0, err
	}
	r, size := utf8.DecodeRuneInString(s)
	if size == 0 || size != len(s) {
		return 0, invalid(n.path, "is %q, want a single character", s)
	}
	return r, nil
}

// id decodes a token id and checks its range; whether it exists is the caller's question.
func (n node) id() (int32, error) {
	var v int64
	if err := n.into(&v, "a token id"); err != nil {
		return 0, err
	}
	if v < 0 || v >= maxTokenID {
		return 0, invalid(n.path, "is %d, token ids lie in [0, %d)", v, maxTokenID)
	}
	return int32(v), nil
}

func (n node) count(limit int) (int, error) {
	var v int64
	if err := n.into(&v, "a count"); err != nil {
		return 0, err
	}
	if v < 0 || v > int64(limit) {
		return 0, invalid(n.path, "is %d, want 0 to %d", v, limit)
	}
	return int(v), nil
}

func (o object) at(field string) node { return node{join(o.path, field), o.fields[field]} }

// flag is a boolean field; missing or null means def.
func (o object) flag(field string, def bool) (bool, error) {
	n := o.at(field)
	if n.null() {
		return def, nil
	}
	v := def
	err := n.into(&v, "true or false")
	return v, err
}

// text is a string field; missing or null means def.
func (o object) text(field, def string) (string, error) {
	n := o.at(field)
	if n.null() {
		return def, nil
	}
	return n.str()
}

// kind is the "type" field that names a component.
func (o object) kind() (string, error) { return o.at("type").str() }

// flatten lists a component with nested Sequences unrolled, in order.
// field is the name under which a Sequence of this family keeps its members.
func flatten(n node, field string) ([]object, error) {
	var out []object
	var walk func(n node, depth int) error
	walk = func(n node, depth int) error {
		if depth > maxNesting {
			return invalid(n.path, "sequences are nested more than %d deep", maxNesting)
		}
		o, err := n.object()
		if err != nil {
			return err
		}
		kind, err := o.kind()
		if err != nil {
			return err
		}
		if kind != "Sequence" {
			if out = append(out, o); len(out) > maxStages {
				return invalid(n.path, "more than %d components", maxStages)
			}
			return nil
		}
		list, err := o.at(field).list()
		if err != nil {
			return err
		}
		for _, c := range list {
			if err := walk(c, depth+1); err != nil {
				return err
			}
		}
		return nil
	}
	if n.null() {
		return nil, nil
	}
	return out, walk(n, 0)
}
