package grammar

import (
	"encoding/binary"
	"slices"
)

// members are those of an object. No name comes twice. What may follow depends on the set
// of names that the object has already; the expressions of such sets are made as texts come
// to them.
type members struct {
	named   []member
	others  []others
	lo, hi  int  // how many members; hi -1: any number
	ordered bool // named members come in their order, and others after them
	opening [2]eid
	colon   eid
}

// member is one whose name the schema declares.
type member struct {
	e        [2]eid // as the first member, and after a comma
	required bool
}

// others are members whose names the schema does not declare.
type others struct {
	key   rid // a name and its closing quote, in its shortest spelling
	value eid
	count int // of names; -1: more than the object needs
}

// maxOthers bounds the undeclared names of one object: each is remembered until its end.
const maxOthers = 1024

// otherNames is a set of undeclared names that an object has already.
type otherNames struct {
	names rid // them, with their closing quotes
	size  int
}

func (o *members) parts() []eid {
	out := make([]eid, 0, 2*len(o.named)+len(o.others))
	for _, n := range o.named {
		out = append(out, n.e[0], n.e[1])
	}
	for _, x := range o.others {
		out = append(out, x.value)
	}
	return out
}

// members is the expression of all members of an object.
func (m *machine) members(o *members) eid {
	m.objects = append(m.objects, o)
	return m.members1(uint32(len(m.objects)-1), make([]uint64, (len(o.named)+63)/64), 0, 0)
}

// members1 is the expression of what follows declared names, a number of members, and
// undeclared names. The number counts no further than it matters. Others are the number of a
// set, or, where a further name is not known, -1 less that number.
func (m *machine) members1(object uint32, seen []uint64, count int, others int32) eid {
	return m.expr(enode{kind: xMembers, a: object, b: m.nameSet(seen), lo: m.enough(object, count), hi: others})
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

// known is the set of a number, and how many names the object has besides those of it.
func (m *machine) known(others int32) (set int32, more int) {
	if others < 0 {
		return -1 - others, 1
	}
	return others, 0
}

// withName is a set and one more name, which ends with its quote.
func (m *machine) withName(set int32, name string) int32 {
	names := m.or(m.otherSets[set].names, m.literal(name))
	id, ok := m.otherIDs[names]
	if !ok {
		id = int32(len(m.otherSets))
		m.otherSets = append(m.otherSets, otherNames{names, m.otherSets[set].size + 1})
		m.otherIDs[names] = id
	}
	return id
}

func has(seen []uint64, i int) bool { return seen[i>>6]>>(i&63)&1 != 0 }

// canFinish tells whether the object can be completed.
func (m *machine) canFinish(n enode) bool {
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

// openMembers adds what can come next to a stack of frames.
func (m *machine) openMembers(n enode, next fid, stack []fid) []fid {
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
		after := m.nameSet(with) // in order, declared names are over
		for i, x := range o.others {
			name := m.expr(enode{kind: xName, a: n.a, b: after, lo: int32(count), hi: n.hi, list: []eid{eid(i)}})
			key := m.lex(m.and(x.key, m.not(m.otherSets[set].names)))
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

// canName tells whether an object can be completed after an undeclared name.
func (m *machine) canName(n enode) bool {
	return m.can(m.objects[n.a].others[n.list[0]].value) && m.can(m.afterName(n, -1-m.namesOf(n)))
}

// namesOf is the set before the name that an expression of the kind xName follows.
func (m *machine) namesOf(n enode) int32 {
	set, _ := m.known(n.hi)
	return set
}

func (m *machine) afterName(n enode, others int32) eid {
	return m.expr(enode{kind: xMembers, a: n.a, b: n.b, lo: m.enough(n.a, int(n.lo)+1), hi: others})
}

// openName is the frame of what follows an undeclared name; others as in members1.
func (m *machine) openName(n enode, next fid, others int32) fid {
	o := m.objects[n.a]
	return m.frame(o.colon, m.frame(o.others[n.list[0]].value, m.frame(m.afterName(n, others), next)))
}
