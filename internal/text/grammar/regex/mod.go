package regex

import "encoding/binary"

// modulus is the state of a decimal number that must be a multiple of of/10^scale: the remainder of
// the digits so far, and the number of digits after the point (-1: no point yet).
type modulus struct {
	of, rem      uint64
	scale, after int
}

func (m *modulus) appendKey(k []byte) []byte {
	k = binary.LittleEndian.AppendUint64(k, m.of)
	k = binary.LittleEndian.AppendUint64(k, m.rem)
	return append(k, byte(m.scale), byte(m.after))
}

// whole reports whether the number so far is a multiple.
func (m *modulus) whole() bool {
	rem := m.rem
	for range m.scale - max(m.after, 0) {
		rem = rem * 10 % m.of
	}
	return rem == 0
}

// multiple matches decimals without an exponent that are multiples of of/10^scale. Intersect it
// with the syntax of a number.
func (x *Store) multiple(of uint64, scale int) ID {
	return x.modulus(modulus{of: of, scale: scale, after: -1})
}

func (x *Store) modulus(m modulus) ID {
	return x.intern(regexNode{kind: kMod, mod: &m, nullable: m.whole()})
}

func (x *Store) deriveMod(m *modulus, b byte) ID {
	next := *m
	switch {
	case b == '-' && m.rem == 0 && m.after < 0:
		return x.modulus(next)
	case b == '.' && m.after < 0:
		next.after = 0
	case b < '0' || b > '9':
		return Empty
	case m.after >= 0 && m.after == m.scale:
		if b != '0' {
			return Empty
		}
	default:
		next.rem = (m.rem*10 + uint64(b-'0')) % m.of
		if m.after >= 0 {
			next.after++
		}
	}
	return x.modulus(next)
}
