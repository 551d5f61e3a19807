package jinja

import (
	"math"
	"math/bits"
)

func (in *interp) unary(op string, v Value) Value {
	if op == "not" {
		return !truth(v)
	}
	in.defined(v)
	i, f, isInt, ok := number(v)
	switch {
	case !ok:
		in.fail("bad operand type for unary %s: '%s'", op, typeName(v))
	case isInt && op == "-":
		return in.checked(-i, i == math.MinInt64)
	case isInt:
		return i
	case op == "-":
		return -f
	}
	return f
}

func (in *interp) arithmetic(op string, a, b Value) Value {
	in.defined(a)
	in.defined(b)
	if x, f, xi, ok := number(a); ok {
		if y, g, yi, ok := number(b); ok {
			if xi && yi && op != "/" {
				return in.integers(op, x, y)
			}
			return in.floats(op, f, g)
		}
	}
	switch op {
	case "+":
		if r, ok := in.plus(a, b); ok {
			return r
		}
	case "*":
		if r, ok := in.repeat(a, b); ok {
			return r
		}
		if r, ok := in.repeat(b, a); ok {
			return r
		}
	case "%":
		if s, ok := a.(Str); ok {
			return in.percent(s, b)
		}
	}
	in.fail("unsupported operand type(s) for %s: '%s' and '%s'", op, typeName(a), typeName(b))
	return nil
}

func (in *interp) plus(a, b Value) (Value, bool) {
	switch a := a.(type) {
	case Str:
		if b, ok := b.(Str); ok {
			in.charge(len(a.s) + len(b.s))
			return joinStr([]Str{a, b}, Str{}), true
		}
	case *List:
		b, ok := b.(*List)
		if ok && a.kind == b.kind && a.kind <= kindTuple {
			in.charge(16 * (len(a.items) + len(b.items)))
			items := append(append([]Value(nil), a.items...), b.items...)
			return &List{items: items, kind: a.kind}, true
		}
	}
	return nil, false
}

// repeat evaluates sequence * count.
func (in *interp) repeat(a, b Value) (Value, bool) {
	n, _, isInt, ok := number(b)
	if !ok || !isInt {
		return nil, false
	}
	n = max(n, 0)
	size := 0
	switch a := a.(type) {
	case Str:
		size = len(a.s) + 16*len(a.lit)
	case *List:
		size = 16 * len(a.items)
		if a.kind > kindTuple {
			return nil, false
		}
	default:
		return nil, false
	}
	if hi, lo := bits.Mul64(uint64(size), uint64(n)); hi != 0 || lo > math.MaxInt32 {
		in.charge(math.MaxInt)
	} else {
		in.charge(int(lo))
	}
	if s, ok := a.(Str); ok {
		var b builder
		if s.s != "" {
			for range n {
				b.add(s)
			}
		}
		return b.str(), true
	}
	l := a.(*List)
	r := &List{kind: l.kind}
	if len(l.items) > 0 {
		for range n {
			r.items = append(r.items, l.items...)
		}
	}
	return r, true
}

// checked fails if the integer exceeds 64 bits, where Python's would grow.
func (in *interp) checked(v int64, overflow bool) int64 {
	if overflow {
		in.limit("integer overflow: bits of an integer", 64)
	}
	return v
}

func (in *interp) integers(op string, x, y int64) Value {
	switch op {
	case "+":
		s := x + y
		return in.checked(s, (s > x) != (y > 0) && y != 0)
	case "-":
		d := x - y
		return in.checked(d, (d < x) != (y > 0) && y != 0)
	case "*":
		return in.product(x, y)
	case "//", "%":
		if y == 0 {
			in.fail("integer division or modulo by zero")
		}
		q, r := x/y, x%y
		if r != 0 && (r < 0) != (y < 0) {
			q, r = q-1, r+y
		}
		if op == "%" {
			return r
		}
		return in.checked(q, x == math.MinInt64 && y == -1)
	}
	if y < 0 { // **
		return in.floats(op, float64(x), float64(y))
	}
	r := int64(1)
	for ; y > 0; y >>= 1 {
		if y&1 != 0 {
			r = in.product(r, x)
		}
		if y > 1 {
			x = in.product(x, x)
		}
	}
	return r
}

func (in *interp) product(x, y int64) int64 {
	p := x * y
	return in.checked(p, x != 0 && (p/x != y || (x == -1 && y == math.MinInt64)))
}

func (in *interp) floats(op string, f, g float64) Value {
	switch op {
	case "+":
		return f + g
	case "-":
		return f - g
	case "*":
		return f * g
	case "**":
		if f == 0 && g < 0 {
			in.fail("0.0 cannot be raised to a negative power")
		}
		return math.Pow(f, g)
	}
	if g == 0 {
		in.fail("division by zero")
	}
	switch op {
	case "/":
		return f / g
	case "//":
		return math.Floor(f / g)
	}
	m := math.Mod(f, g)
	if m != 0 && (m < 0) != (g < 0) {
		m += g
	}
	return m
}
