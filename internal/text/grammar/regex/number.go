package regex

import (
	"math/big"
	"strings"
)

// Bound is a limit of a number.
type Bound struct {
	At   *big.Rat
	Open bool // the limit itself is excluded
}

// Numbers has the constraints of JSON Schema on a number.
type Numbers struct {
	Integer bool
	Lo, Hi  *Bound
	Steps   []*big.Rat // multipleOf
}

func tighter(have *Bound, b Bound, sign int) *Bound {
	if have == nil {
		return &b
	}
	if c := b.At.Cmp(have.At) * sign; c > 0 || c == 0 && b.Open {
		return &b
	}
	return have
}

// AtLeast and AtMost narrow the numbers.
func (n *Numbers) AtLeast(b Bound) { n.Lo = tighter(n.Lo, b, 1) }
func (n *Numbers) AtMost(b Bound)  { n.Hi = tighter(n.Hi, b, -1) }

// Bounds of numbers without bounds in the schema: the digits of an int64 or a double. Without them
// a model may write digits until its token limit.
const (
	maxWhole    = 19 // digits before the point
	maxFraction = 17 // digits after it
)

// NumberFormats maps values of 'format' to the bounds of a number.
var NumberFormats = map[string][2]*big.Rat{
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

// Within adds a bound where the schema has none, unless the schema's other bound is outside of it.
func (n *Numbers) Within(r [2]*big.Rat) {
	lo, hi := n.Lo, n.Hi
	if lo == nil && (hi == nil || hi.At.Cmp(r[0]) >= 0) {
		n.AtLeast(Bound{At: r[0]})
	}
	if hi == nil && (lo == nil || lo.At.Cmp(r[1]) <= 0) {
		n.AtMost(Bound{At: r[1]})
	}
}

// free matches numbers without limits. Their exponents keep them within a double: 9.99e307,
// 9999999999999999999e288 and 1.69e308 are below the maximum, 1.797e308.
func (x *Store) free(minus, fraction ID) ID {
	digit := x.Bytes('0', '9')
	var e, sign ByteSet
	e.Add('e')
	e.Add('E')
	sign.Add('+')
	sign.Add('-')
	exponent := func(hundreds ID) ID { // with at most three digits
		return x.Concat(x.Set(e), x.Opt(x.Set(sign)), x.Or(x.Repeat(digit, 1, 2), hundreds))
	}
	three := x.Concat(x.Bytes('0', '2'), digit, digit)
	less := x.Or(x.Concat(x.Bytes('0', '1'), digit, digit), x.Concat(x.Literal("2"), x.Bytes('0', '8'), digit))
	long := x.Concat(x.Bytes('1', '9'), x.Repeat(digit, 0, maxWhole-1), fraction, x.Opt(exponent(less)))
	short := x.Concat(digit, fraction, x.Opt(exponent(x.Or(three, x.Concat(x.Literal("30"), x.Bytes('0', '7'))))))
	top := x.Concat(x.Literal("1"), x.Opt(x.Concat(x.Literal("."), x.Bytes('0', '6'), x.Repeat(digit, 0, maxFraction-1))),
		x.Set(e), x.Opt(x.Set(sign)), x.Literal("308"))
	return x.Concat(minus, x.Or(long, short, top))
}

// Number matches the numbers of n. With limits or steps they have no exponent.
func (x *Store) Number(n *Numbers) (ID, string) {
	digit := x.Bytes('0', '9')
	wholes, fractions := maxWhole, maxFraction
	if len(n.Steps) > 0 {
		wholes-- // every number of this many digits fits an int64
	}
	for _, b := range [...]*Bound{n.Lo, n.Hi} {
		if b == nil {
			continue
		}
		if _, scale, ok := decimal(b.At); ok {
			fractions = max(fractions, scale)
			wholes = max(wholes, len(new(big.Int).Quo(b.At.Num(), b.At.Denom()).String()))
		}
	}
	whole := x.Or(x.Literal("0"), x.Concat(x.Bytes('1', '9'), x.Repeat(digit, 0, wholes-1)))
	minus := x.Opt(x.Literal("-"))
	fraction := x.Opt(x.Concat(x.Literal("."), x.Repeat(digit, 1, fractions)))
	shape := x.Concat(minus, whole)
	if !n.Integer {
		if n.Lo == nil && n.Hi == nil && len(n.Steps) == 0 {
			return x.free(minus, fraction), ""
		}
		shape = x.Concat(shape, fraction)
	}
	parts := []ID{shape}
	for _, s := range n.Steps {
		of, scale, ok := decimal(s)
		if !ok || s.Sign() <= 0 || !of.IsInt64() || scale > 18 || of.Int64() > maxSearch/int64(2*scale+4) {
			return Empty, "multipleOf"
		}
		parts = append(parts, x.multiple(of.Uint64(), scale))
	}
	for i, b := range [...]*Bound{n.Lo, n.Hi} {
		if b == nil {
			continue
		}
		_, scale, ok := decimal(b.At)
		if !ok || scale > 100 {
			return Empty, [...]string{"minimum", "maximum"}[i]
		}
		size := strings.TrimPrefix(b.At.FloatString(scale), "-")
		if len(size) > 400 {
			return Empty, [...]string{"minimum", "maximum"}[i]
		}
		negative, not := b.At.Sign() < 0, x.Literal("-")
		switch {
		case i == 0 && !negative && b.At.Sign() > 0, i == 0 && !negative && b.Open:
			parts = append(parts, x.above(size, b.Open))
		case i == 0 && !negative: // zero, which has two spellings
			parts = append(parts, x.Or(x.above("0", false), x.Concat(not, x.below("0", false))))
		case i == 0:
			parts = append(parts, x.Or(x.above("0", false), x.Concat(not, x.below(size, b.Open))))
		case !negative && (b.At.Sign() > 0 || !b.Open):
			parts = append(parts, x.Or(x.Concat(not, x.above("0", false)), x.below(size, b.Open)))
		case !negative:
			parts = append(parts, x.Concat(not, x.above("0", true)))
		default:
			parts = append(parts, x.Concat(not, x.above(size, b.Open)))
		}
	}
	return x.And(parts...), ""
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
func (x *Store) above(size string, open bool) ID {
	digit := x.Bytes('0', '9')
	digits := x.Star(digit)
	tail := x.Opt(x.Concat(x.Literal("."), digit, digits))
	whole, part, _ := strings.Cut(size, ".")
	part = strings.TrimRight(part, "0")
	list := []ID{x.Concat(x.Bytes('1', '9'), x.Repeat(digit, len(whole), -1), tail)}
	for i := range len(whole) {
		if whole[i] < '9' {
			list = append(list, x.Concat(x.Literal(whole[:i]), x.Bytes(whole[i]+1, '9'), x.Repeat(digit, len(whole)-i-1, len(whole)-i-1), tail))
		}
	}
	if part == "" {
		if open {
			tail = x.Concat(x.Literal("."), digits, x.Bytes('1', '9'), digits)
		}
		return x.Or(append(list, x.Concat(x.Literal(whole), tail))...)
	}
	var after []ID
	for i := range len(part) {
		if part[i] < '9' {
			after = append(after, x.Concat(x.Literal(part[:i]), x.Bytes(part[i]+1, '9'), digits))
		}
	}
	same := digits
	if open {
		same = x.Concat(digits, x.Bytes('1', '9'), digits)
	}
	after = append(after, x.Concat(x.Literal(part), same))
	return x.Or(append(list, x.Concat(x.Literal(whole+"."), x.Or(after...)))...)
}

// below matches decimals from zero to size, or less than it if open.
func (x *Store) below(size string, open bool) ID {
	digit := x.Bytes('0', '9')
	digits := x.Star(digit)
	tail := x.Opt(x.Concat(x.Literal("."), digit, digits))
	whole, part, _ := strings.Cut(size, ".")
	part = strings.TrimRight(part, "0")
	var list []ID
	if len(whole) > 1 {
		list = append(list, x.Concat(x.Literal("0"), tail), x.Concat(x.Bytes('1', '9'), x.Repeat(digit, 0, len(whole)-2), tail))
	}
	for i := range len(whole) {
		least := byte('0')
		if i == 0 && len(whole) > 1 {
			least = '1'
		}
		if whole[i] > least {
			list = append(list, x.Concat(x.Literal(whole[:i]), x.Bytes(least, whole[i]-1), x.Repeat(digit, len(whole)-i-1, len(whole)-i-1), tail))
		}
	}
	zeros := x.Star(x.Literal("0"))
	if part == "" {
		if !open {
			list = append(list, x.Concat(x.Literal(whole), x.Opt(x.Concat(x.Literal(".0"), zeros))))
		}
		return x.Or(list...)
	}
	list = append(list, x.Literal(whole))
	for i := range len(part) {
		if i > 0 {
			list = append(list, x.Literal(whole+"."+part[:i]))
		}
		if part[i] > '0' {
			list = append(list, x.Concat(x.Literal(whole+"."+part[:i]), x.Bytes('0', part[i]-1), digits))
		}
	}
	if !open {
		list = append(list, x.Concat(x.Literal(whole+"."+part), zeros))
	}
	return x.Or(list...)
}
