package grammar

import (
	"encoding/binary"
	"slices"
)

// members are those of an object whose names may come in any order, each once. What may
// follow depends on the set of names that were; the expressions of such sets are made as
// texts come to them.
type members struct {
	named  []member
	other  [2]eid // a member with another name, first of all and behind a comma; they repeat
	lo, hi int    // how many members; hi -1: any
}

type member struct {
	e        [2]eid // first of all, and behind a comma
	required bool
}

func (o *members) parts() []eid {
	out := []eid{o.other[0], o.other[1]}
	for _, n := range o.named {
		out = append(out, n.e[0], n.e[1])
	}
	return out
}

// members is the expression of all members of an object.
func (m *machine) members(o *members) eid {
	m.objects = append(m.objects, o)
	return m.members1(uint32(len(m.objects)-1), make([]uint64, (len(o.named)+63)/64), 0)
}

// members1 is the expression of what follows a set of names and a number of members, which
// counts no further than it matters.
func (m *machine) members1(object uint32, seen []uint64, count int) eid {
	o := m.objects[object]
	if o.hi < 0 {
		count = min(count, max(o.lo, 1))
	}
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
	return m.expr(enode{kind: xMembers, a: object, b: id, lo: int32(count)})
}

// canFinish tells whether the object can be completed.
func (m *machine) canFinish(n enode) bool {
	o, seen, count := m.objects[n.a], m.nameSets[n.b], int(n.lo)
	needed, more := 0, 0
	for i := range o.named {
		if seen[i>>6]>>(i&63)&1 != 0 {
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
	return m.can(o.other[1]) || count+needed+more >= o.lo
}

// openMembers adds what can come next to a stack of frames.
func (m *machine) openMembers(n enode, next fid, stack []fid) []fid {
	o, seen, count := m.objects[n.a], m.nameSets[n.b], int(n.lo)
	missing := false
	room := o.hi < 0 || count < o.hi
	with := slices.Clone(seen)
	add := func(e eid) {
		if rest := m.members1(n.a, with, count+1); m.can(e) && m.can(rest) {
			stack = append(stack, m.frame(e, m.frame(rest, next)))
		}
	}
	for i := range o.named {
		if seen[i>>6]>>(i&63)&1 != 0 {
			continue
		}
		missing = missing || o.named[i].required
		if room {
			with[i>>6] |= 1 << (i & 63)
			add(o.named[i].e[min(count, 1)])
			with[i>>6] &^= 1 << (i & 63)
		}
	}
	if room && o.other[1] != eFail {
		add(o.other[min(count, 1)])
	}
	if !missing && count >= o.lo {
		stack = append(stack, next)
	}
	return stack
}
