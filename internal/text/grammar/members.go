package grammar

import (
	"encoding/binary"
	"slices"

	"github.com/shoal-llm/shoal/internal/text/grammar/regex"
)

// members are the members of an object. No name may appear twice, so the next members depend on the set
// of names so far. The expressions of such sets are created when a text reaches them.
type members struct {
	named   []member
	others  []others
	lo, hi  int  // number of members; hi -1: unbounded
	ordered bool // declared members come in their order, others after them
	opening [2]exprID
	colon   exprID
}

// member is a member whose name the schema declares.
type member struct {
	e        [2]exprID // as the first member, and after a comma
	required bool
}

// others are members with undeclared names.
type others struct {
	key   regex.ID // a name and its closing quote, in its shortest spelling
	value exprID
	count int // number of possible names; -1: more than the object needs
}

// maxOthers is the maximum number of undeclared names of one object. Each is stored until the
// object's end.
const maxOthers = 1024

// otherNames is a set of undeclared names that an object already has.
type otherNames struct {
	names regex.ID // matches the names with their closing quotes
	size  int
}

func (o *members) parts() []exprID {
	out := make([]exprID, 0, 2*len(o.named)+len(o.others))
	for _, n := range o.named {
		out = append(out, n.e[0], n.e[1])
	}
	for _, x := range o.others {
		out = append(out, x.value)
	}
	return out
}

// members returns the expression of all members of an object.
func (m *machine) members(o *members) exprID {
	m.objects = append(m.objects, o)
	return m.members1(uint32(len(m.objects)-1), make([]uint64, (len(o.named)+63)/64), 0, 0)
}

// members1 returns the expression of the members after a set of declared names, a number of members,
// and a set of undeclared names. The number is capped where it no longer matters. others is the id of a
// set. If one further name is unknown, it is -1 minus that id.
func (m *machine) members1(object uint32, seen []uint64, count int, others int32) exprID {
	return m.expr(exprNode{kind: xMembers, a: object, b: m.nameSet(seen), lo: m.enough(object, count), hi: others})
}

func (m *machine) enough(object uint32, count int) int32 {
	if o := m.objects[object]; o.hi < 0 {
		count = min(count, max(o.lo, 1))
	}
	return int32(count)
}

func (m *machine) nameSet(seen []uint64) uint32 {
	key := make([]byte, 0, 8*len(seen))
	for _, w := range seen {
		key = binary.LittleEndian.AppendUint64(key, w)
	}
	id, ok := m.setIDs[string(key)]
	if !ok {
		id = uint32(len(m.nameSets))
		m.nameSets = append(m.nameSets, slices.Clone(seen))
		m.setIDs[string(key)] = id
	}
	return id
}

// known returns the id of a set, and the number of names that the object has in addition.
func (m *machine) known(others int32) (set int32, more int) {
	if others < 0 {
		return -1 - others, 1
	}
	return others, 0
}

// withName returns a set plus one name, which ends with its quote.
func (m *machine) withName(set int32, name string) int32 {
	names := m.Or(m.otherSets[set].names, m.Literal(name))
	id, ok := m.otherIDs[names]
	if !ok {
		id = int32(len(m.otherSets))
		m.otherSets = append(m.otherSets, otherNames{names, m.otherSets[set].size + 1})
		m.otherIDs[names] = id
	}
	return id
}

func has(seen []uint64, i int) bool { return seen[i>>6]>>(i&63)&1 != 0 }

// canFinish reports whether the object can be completed.
func (m *machine) canFinish(n exprNode) bool {
	o, seen, count := m.objects[n.a], m.nameSets[n.b], int(n.lo)
	needed, more := 0, 0
	for i := range o.named {
		if has(seen, i) {
			continue
		}
		switch can := m.can(o.named[i].e[1]); {
		case o.named[i].required && !can:
			return false
		case o.named[i].required:
			needed++
		case can:
			more++
		}
	}
	if o.hi >= 0 && count+needed > o.hi {
		return false
	}
	if count+needed+more >= o.lo {
		return true
	}
	set, unknown := m.known(n.hi)
	left := -(m.otherSets[set].size + unknown)
	for _, x := range o.others {
		switch {
		case !m.can(x.value):
		case x.count < 0:
			return true
		default:
			left += x.count
		}
	}
	return count+needed+more+left >= o.lo
}

// openMembers adds the frames of possible next members to a stack of frames.
func (m *machine) openMembers(n exprNode, next frameID, stack []frameID) []frameID {
	o, seen, count := m.objects[n.a], m.nameSets[n.b], int(n.lo)
	set, unknown := m.known(n.hi)
	missing := false
	room := o.hi < 0 || count < o.hi
	with := slices.Clone(seen)
	for i := range o.named {
		if has(seen, i) {
			continue
		}
		with[i>>6] |= 1 << (i & 63)
		if room && !(o.ordered && missing) {
			if e, rest := o.named[i].e[min(count, 1)], m.members1(n.a, with, count+1, n.hi); m.can(e) && m.can(rest) {
				stack = append(stack, m.frame(e, m.frame(rest, next)))
			}
		}
		if missing = missing || o.named[i].required; !o.ordered {
			with[i>>6] &^= 1 << (i & 63)
		}
	}
	if room && !(o.ordered && missing) && m.otherSets[set].size+unknown < maxOthers {
		after := m.nameSet(with) // in order mode, no declared name may follow
		for i, x := range o.others {
			name := m.expr(exprNode{kind: xName, a: n.a, b: after, lo: int32(count), hi: n.hi, list: []exprID{exprID(i)}})
			key := m.lex(m.And(x.key, m.Not(m.otherSets[set].names)))
			if key != eFail && m.can(name) {
				stack = append(stack, m.frame(o.opening[min(count, 1)], m.frame(key, m.frame(name, next))))
			}
		}
	}
	if !missing && count >= o.lo {
		stack = append(stack, next)
	}
	return stack
}

// canName reports whether an object can be completed after an undeclared name.
func (m *machine) canName(n exprNode) bool {
	return m.can(m.objects[n.a].others[n.list[0]].value) && m.can(m.afterName(n, -1-m.namesOf(n)))
}

// namesOf returns the set before the name that an xName expression follows.
func (m *machine) namesOf(n exprNode) int32 {
	set, _ := m.known(n.hi)
	return set
}

func (m *machine) afterName(n exprNode, others int32) exprID {
	return m.expr(exprNode{kind: xMembers, a: n.a, b: n.b, lo: m.enough(n.a, int(n.lo)+1), hi: others})
}

// openName returns the frame after an undeclared name; others as in members1.
func (m *machine) openName(n exprNode, next frameID, others int32) frameID {
	o := m.objects[n.a]
	return m.frame(o.colon, m.frame(o.others[n.list[0]].value, m.frame(m.afterName(n, others), next)))
}
