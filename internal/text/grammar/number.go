package grammar

import (
	"math/big"
	"strings"
)

type bound struct {
	at   *big.Rat
	open bool // the limit itself is excluded
}

// numbers has the constraints of JSON Schema on a number.
type numbers struct {
	integer bool
	lo, hi  *bound
	steps   []*big.Rat // multipleOf
}

func tighter(have *bound, b bound, sign int) *bound {
	if have == nil {
		return &b
	}
	if c := b.at.Cmp(have.at) * sign; c > 0 || c == 0 && b.open {
		return &b
	}
	return have
}

func (n *numbers) atLeast(b bound) { n.lo = tighter(n.lo, b, 1) }
func (n *numbers) atMost(b bound)  { n.hi = tighter(n.hi, b, -1) }

// Bounds of numbers without bounds in the schema: the digits of an int64 or a double. Without them
// a model may write digits until its token limit.
const (
	maxWhole    = 19 // digits before the point
	maxFraction = 17 // digits after it
)

// numberFormats maps values of 'format' to the bounds of a number.
var numberFormats = map[string][2]*big.Rat{
	"int8": intRange(7, true), "int16": intRange(15, true), "int32": intRange(31, true), "int64": intRange(63, true),
	"uint8": intRange(8, false), "uint16": intRange(16, false), "uint32": intRange(32, false), "uint64": intRange(64, false),
}

func intRange(bits uint, signed bool) (out [2]*big.Rat) {
	limit := new(big.Int).Lsh(big.NewInt(1), bits)
	out[0], out[1] = new(big.Rat), new(big.Rat).SetInt(new(big.Int).Sub(limit, big.NewInt(1)))
	if signed {
		out[0].SetInt(limit).Neg(out[0])
	}
	return out
}

// within adds a bound where the schema has none, unless the schema's other bound is outside of it.
func (n *numbers) within(r [2]*big.Rat) {
	lo, hi := n.lo, n.hi
	if lo == nil && (hi == nil || hi.at.Cmp(r[0]) >= 0) {
		n.atLeast(bound{at: r[0]})
	}
	if hi == nil && (lo == nil || lo.at.Cmp(r[1]) <= 0) {
		n.atMost(bound{at: r[1]})
	}
}

// free matches numbers without limits. Their exponents keep them within a double: 9.99e307,
// 9999999999999999999e288 and 1.69e308 are below the maximum, 1.797e308.
func (x *regexes) free(minus, fraction regexID) regexID {
	digit := x.bytes('0', '9')
	var e, sign byteSet
	e.add('e')
	e.add('E')
	sign.add('+')
	sign.add('-')
	exponent := func(hundreds regexID) regexID { // with at most three digits
		return x.concat(x.set(e), x.opt(x.set(sign)), x.or(x.repeat(digit, 1, 2), hundreds))
	}
	three := x.concat(x.bytes('0', '2'), digit, digit)
	less := x.or(x.concat(x.bytes('0', '1'), digit, digit), x.concat(x.literal("2"), x.bytes('0', '8'), digit))
	long := x.concat(x.bytes('1', '9'), x.repeat(digit, 0, maxWhole-1), fraction, x.opt(exponent(less)))
	short := x.concat(digit, fraction, x.opt(exponent(x.or(three, x.concat(x.literal("30"), x.bytes('0', '7'))))))
	top := x.concat(x.literal("1"), x.opt(x.concat(x.literal("."), x.bytes('0', '6'), x.repeat(digit, 0, maxFraction-1))), x.set(e), x.opt(x.set(sign)), x.literal("308"))
	return x.concat(minus, x.or(long, short, top))
}

// number matches the numbers of n. With limits or steps they have no exponent.
func (x *regexes) number(n *numbers) (regexID, string) {
	digit := x.bytes('0', '9')
	wholes, fractions := maxWhole, maxFraction
	if len(n.steps) > 0 {
		wholes-- // every number of this many digits fits an int64
	}
	for _, b := range [...]*bound{n.lo, n.hi} {
		if b == nil {
			continue
		}
		if _, scale, ok := decimal(b.at); ok {
			fractions = max(fractions, scale)
			wholes = max(wholes, len(new(big.Int).Quo(b.at.Num(), b.at.Denom()).String()))
		}
	}
	whole := x.or(x.literal("0"), x.concat(x.bytes('1', '9'), x.repeat(digit, 0, wholes-1)))
	minus := x.opt(x.literal("-"))
	fraction := x.opt(x.concat(x.literal("."), x.repeat(digit, 1, fractions)))
	shape := x.concat(minus, whole)
	if !n.integer {
		if n.lo == nil && n.hi == nil && len(n.steps) == 0 {
			return x.free(minus, fraction), ""
		}
		shape = x.concat(shape, fraction)
	}
	parts := []regexID{shape}
	for _, s := range n.steps {
		of, scale, ok := decimal(s)
		if !ok || s.Sign() <= 0 || !of.IsInt64() || scale > 18 || of.Int64() > maxSearch/int64(2*scale+4) {
			return rEmpty, "multipleOf"
		}
		parts = append(parts, x.multiple(of.Uint64(), scale))
	}
	for i, b := range [...]*bound{n.lo, n.hi} {
		if b == nil {
			continue
		}
		_, scale, ok := decimal(b.at)
		if !ok || scale > 100 {
			return rEmpty, [...]string{"minimum", "maximum"}[i]
		}
		size := strings.TrimPrefix(b.at.FloatString(scale), "-")
		if len(size) > 400 {
			return rEmpty, [...]string{"minimum", "maximum"}[i]
		}
		negative, not := b.at.Sign() < 0, x.literal("-")
		switch {
		case i == 0 && !negative && b.at.Sign() > 0, i == 0 && !negative && b.open:
			parts = append(parts, x.above(size, b.open))
		case i == 0 && !negative: // zero, which has two spellings
			parts = append(parts, x.or(x.above("0", false), x.concat(not, x.below("0", false))))
		case i == 0:
			parts = append(parts, x.or(x.above("0", false), x.concat(not, x.below(size, b.open))))
		case !negative && (b.at.Sign() > 0 || !b.open):
			parts = append(parts, x.or(x.concat(not, x.above("0", false)), x.below(size, b.open)))
		case !negative:
			parts = append(parts, x.concat(not, x.above("0", true)))
		default:
			parts = append(parts, x.concat(not, x.above(size, b.open)))
		}
	}
	return x.and(parts...), ""
}

// decimal returns r as of/10^scale, if possible.
func decimal(r *big.Rat) (of *big.Int, scale int, ok bool) {
	v, ten := new(big.Rat).Set(r), big.NewRat(10, 1)
	for ; !v.IsInt(); scale++ {
		if scale > 400 {
			return nil, 0, false
		}
		v.Mul(v, ten)
	}
	return v.Num(), scale, true
}

// above matches non-negative decimals of at least size, or more than it if open.
func (x *regexes) above(size string, open bool) regexID {
	digit := x.bytes('0', '9')
	digits := x.star(digit)
	tail := x.opt(x.concat(x.literal("."), digit, digits))
	whole, part, _ := strings.Cut(size, ".")
	part = strings.TrimRight(part, "0")
	list := []regexID{x.concat(x.bytes('1', '9'), x.repeat(digit, len(whole), -1), tail)}
	for i := range len(whole) {
		if whole[i] < '9' {
			list = append(list, x.concat(x.literal(whole[:i]), x.bytes(whole[i]+1, '9'), x.repeat(digit, len(whole)-i-1, len(whole)-i-1), tail))
		}
	}
	if part == "" {
		if open {
			tail = x.concat(x.literal("."), digits, x.bytes('1', '9'), digits)
		}
		return x.or(append(list, x.concat(x.literal(whole), tail))...)
	}
	var after []regexID
	for i := range len(part) {
		if part[i] < '9' {
			after = append(after, x.concat(x.literal(part[:i]), x.bytes(part[i]+1, '9'), digits))
		}
	}
	same := digits
	if open {
		same = x.concat(digits, x.bytes('1', '9'), digits)
	}
	after = append(after, x.concat(x.literal(part), same))
	return x.or(append(list, x.concat(x.literal(whole+"."), x.or(after...)))...)
}

// below matches decimals from zero to size, or less than it if open.
func (x *regexes) below(size string, open bool) regexID {
	digit := x.bytes('0', '9')
	digits := x.star(digit)
	tail := x.opt(x.concat(x.literal("."), digit, digits))
	whole, part, _ := strings.Cut(size, ".")
	part = strings.TrimRight(part, "0")
	var list []regexID
	if len(whole) > 1 {
		list = append(list, x.concat(x.literal("0"), tail), x.concat(x.bytes('1', '9'), x.repeat(digit, 0, len(whole)-2), tail))
	}
	for i := range len(whole) {
		least := byte('0')
		if i == 0 && len(whole) > 1 {
			least = '1'
		}
		if whole[i] > least {
			list = append(list, x.concat(x.literal(whole[:i]), x.bytes(least, whole[i]-1), x.repeat(digit, len(whole)-i-1, len(whole)-i-1), tail))
		}
	}
	zeros := x.star(x.literal("0"))
	if part == "" {
		if !open {
			list = append(list, x.concat(x.literal(whole), x.opt(x.concat(x.literal(".0"), zeros))))
		}
		return x.or(list...)
	}
	list = append(list, x.literal(whole))
	for i := range len(part) {
		if i > 0 {
			list = append(list, x.literal(whole+"."+part[:i]))
		}
		if part[i] > '0' {
			list = append(list, x.concat(x.literal(whole+"."+part[:i]), x.bytes('0', part[i]-1), digits))
		}
	}
	if !open {
		list = append(list, x.concat(x.literal(whole+"."+part), zeros))
	}
	return x.or(list...)
}
