package grammar

import (
	"errors"
	"strings"
)

// maxRelaxed bounds the parts that Relax takes from a schema.
const maxRelaxed = 64

// Relax takes from a JSON schema the parts that cannot be enforced, and nothing else. removed
// are their places. A 'oneOf' whose options overlap becomes 'anyOf', and a type that is not
// known by its spelling alone gets the right one. The error is that of a schema of which no
// part is at fault, because it is too complex, say.
func (e *Engine) Relax(s Spec) (text string, removed []string, err error) {
	work := 0
	for {
		var bad *Error
		_, err := e.Compile(s)
		if err == nil {
			return s.Text, removed, nil
		}
		v, broken := parseJSON(s.Text)
		if work += len(s.Text); !errors.As(err, &bad) || broken != nil || len(removed) == maxRelaxed || work > maxSpec {
			return "", nil, err
		}
		where := strings.Split(bad.Where, "/")
		if len(where) < 2 || !v.relax(where[1:], bad.Keyword == "") {
			return "", nil, err
		}
		removed = append(removed, bad.Where)
		s.Text = string(v.append(nil))
	}
}

// relax removes the member of a path, or the last one of it that there is, and tells whether
// it did. A whole schema becomes true instead.
func (v *jval) relax(path []string, whole bool) bool {
	name := strings.ReplaceAll(strings.ReplaceAll(path[0], "~1", "/"), "~0", "~")
	next, ok := v.pointer("/" + path[0])
	if !ok {
		return false
	}
	if len(path) > 1 && next.relax(path[1:], whole) {
		return true
	}
	switch {
	case whole || v.kind == jArray:
		*next = *jBoolean(true)
	case name == "type" && typeNames[strings.ToLower(next.text())] != 0 && next.s != strings.ToLower(next.s):
		next.s = strings.ToLower(next.s)
	case name == "oneOf" && v.get("anyOf") == nil:
		v.remove(name)
		v.put("anyOf", next)
	default:
		v.remove(name)
	}
	return true
}
