package regex

import "encoding/binary"

// HoldsPlain reports whether a JSON string at r accepts any plain text, that is, unescaped
// characters. Any such text of up to least characters must lead from r to a live state, and none to
// the end of r. chars are the sets of characters of a JSON string that include every plain one.
func (x *Store) HoldsPlain(r ID, chars map[ID]bool, least int) bool {
	n := &x.nodes[r]
	switch n.kind {
	case kConcat:
		a := &x.nodes[n.a]
		if a.kind != kRepeat {
			return !x.nodes[n.a].nullable && x.HoldsPlain(n.a, chars, least)
		}
		if a.hi >= 0 && int(a.hi) < least || !chars[a.a] || x.nodes[n.b].nullable {
			return false
		}
		first := x.firstBytes(n.b)
		for b := 0x20; b < 256; b++ {
			if b != '"' && b != '\\' && first.has(byte(b)) {
				return false
			}
		}
		return true
	case kAnd: // an infinite text, with exceptions
		ok := false
		for _, l := range n.list {
			switch a := &x.nodes[l]; {
			case a.kind == kNot && x.Finite(a.a):
			case !ok && a.kind == kConcat && x.nodes[a.a].kind == kRepeat && x.nodes[a.a].hi < 0 && x.HoldsPlain(l, chars, least):
				ok = true
			default:
				return false
			}
		}
		return ok
	}
	return false
}

// Finite reports whether r provably matches finitely many strings, by a simple check.
func (x *Store) Finite(r ID) bool {
	n := &x.nodes[r]
	switch n.kind {
	case kEps, kLit, kBytes, kEmpty:
		return true
	case kOr:
		for _, l := range n.list {
			if !x.Finite(l) {
				return false
			}
		}
		return true
	case kConcat:
		return x.Finite(n.a) && x.Finite(n.b)
	}
	return false
}

// Spell returns an identifier of a regular expression that does not depend on the store; "" for one
// that needs more than most bytes.
func (x *Store) Spell(r ID, most int) string {
	var out []byte
	var write func(r ID) bool
	write = func(r ID) bool {
		n := &x.nodes[r]
		if len(out) > most || n.kind == kMod {
			return false
		}
		out = append(out, byte(n.kind)+'A')
		switch n.kind {
		case kBytes:
			for _, w := range x.sets[n.a] {
				out = binary.LittleEndian.AppendUint64(out, w)
			}
		case kLit:
			out = binary.AppendUvarint(out, uint64(len(n.lit)))
			out = append(out, n.lit...)
		case kConcat:
			return write(n.a) && write(n.b)
		case kNot:
			return write(n.a)
		case kRepeat:
			out = binary.AppendVarint(out, int64(n.lo))
			out = binary.AppendVarint(out, int64(n.hi))
			return write(n.a)
		case kOr, kAnd:
			out = binary.AppendUvarint(out, uint64(len(n.list)))
			for _, l := range n.list {
				if !write(l) {
					return false
				}
			}
		}
		return true
	}
	if !write(r) {
		return ""
	}
	return string(out)
}
