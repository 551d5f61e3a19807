package grammar

import (
	"slices"

	"github.com/shoal-llm/shoal/internal/text/grammar/regex"
)

// nameID is the text of an undeclared name so far: a prefix plus one byte.
type nameID uint32

const (
	unknown nameID = iota
	noText
)

type nameByte struct {
	before nameID
	b      byte
}

// withByte returns a name's text plus one byte.
func (m *machine) withByte(c nameID, b byte) nameID {
	n := nameByte{c, b}
	id, ok := m.nameIDs[n]
	if !ok {
		id = nameID(len(m.names))
		m.names = append(m.names, n)
		m.nameIDs[n] = id
	}
	return id
}

func (m *machine) nameText(c nameID) string {
	var out []byte
	for ; c > noText; c = m.names[c].before {
		out = append(out, m.names[c].b)
	}
	slices.Reverse(out)
	return string(out)
}

// naming reports whether a stack is inside an undeclared name.
func (m *machine) naming(k frameID) bool {
	return k != noFrame && m.exprs[m.frames[k].e].kind == xName
}

// advance returns the state after one byte of a text that is known from its start. Unlike after, it
// excludes duplicate undeclared names.
func (m *machine) advance(s *state, b byte) *state {
	plain := m.after(s.base, b)
	if plain == dead || !s.naming && !plain.naming {
		return plain
	}
	var threads []thread
	end := false
	for _, t := range s.threads {
		r := m.Step(t.r, b)
		if r == regex.Empty {
			continue
		}
		c, k := unknown, t.k
		if m.naming(k) {
			c = m.withByte(t.c, b)
		}
		if r != regex.Epsilon {
			threads = append(threads, thread{r, k, c})
		}
		if !m.Nullable(r) {
			continue
		}
		if c != unknown {
			f := m.frames[k]
			n := m.exprs[f.e]
			k = m.openName(n, f.next, m.withName(m.namesOf(n), m.nameText(c)))
		}
		o := m.openFrame(k)
		for _, x := range o.threads {
			if m.naming(x.k) {
				x.c = noText
			}
			threads = append(threads, x)
		}
		end = end || o.end
	}
	return m.state(ordered(threads), end, false)
}

// follows reports whether bytes may follow a state.
func (m *machine) follows(s *state, text []byte) bool {
	for _, b := range text {
		if s = m.advance(s, b); s == dead {
			return false
		}
	}
	return true
}
