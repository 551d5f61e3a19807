package grammar

import (
	"errors"
	"strings"
)

// maxRelaxed is the maximum number of parts that Relax removes from a schema.
const maxRelaxed = 64

const maxRelaxedBytes = 16 << 20 // of schemas with cached results

// relaxed is a result of Relax.
type relaxed struct {
	text    string
	removed []string
	err     error
}

// Relax removes the parts of a JSON schema that cannot be enforced, and nothing else. removed lists
// their places. A 'oneOf' with overlapping options becomes 'anyOf', and a misspelled type is
// corrected. It returns an error if no single part is at fault, for example if the schema is too
// complex.
func (e *Engine) Relax(s Spec) (text string, removed []string, err error) {
	e.mu.Lock()
	r, ok := e.relaxed[s]
	e.mu.Unlock()
	if !ok {
		r = relax(e.vocab, s)
		e.mu.Lock()
		if e.relaxedBytes += len(s.Text) + len(r.text); len(e.relaxed) >= keptGrammars || e.relaxedBytes > maxRelaxedBytes {
			clear(e.relaxed)
			e.relaxedBytes = 0
		}
		e.relaxed[s] = r
		e.mu.Unlock()
	}
	return r.text, r.removed, r.err
}

// relax removes one part after another until the grammar compiles. It gives up when all attempts together
// take more steps than compiling one grammar may.
func relax(v *Vocabulary, s Spec) (r relaxed) {
	for steps := 0; ; {
		m := newMachine(maxNodes)
		_, err := m.grammar(v, s)
		if err == nil {
			r.text = s.Text
			return r
		}
		schema, broken := parseJSON(s.Text)
		var bad *Error
		steps += m.Spent() + len(m.exprs) + len(s.Text)
		if !errors.As(err, &bad) || broken != nil || len(r.removed) == maxRelaxed || steps > maxCompile {
			return relaxed{err: err}
		}
		where := strings.Split(bad.Where, "/")
		if len(where) < 2 || !schema.relax(where[1:], bad.Keyword == "") {
			return relaxed{err: err}
		}
		r.removed = append(r.removed, bad.Where)
		s.Text = string(schema.append(nil))
	}
}

// relax removes the member at a path, or the deepest existing ancestor of it, and reports whether
// it did. A whole schema is replaced by true.
func (v *jsonValue) relax(path []string, whole bool) bool {
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
