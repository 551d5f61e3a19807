package jinja

import (
	"math"
	"math/big"
	"math/bits"

	"github.com/shoal-llm/shoal/internal/text/jinja/python"
)

func (in *interp) unary(op string, v python.Value) python.Value {
	if op == "not" {
		return !python.Truth(v)
	}
	if b, ok := v.(*big.Int); ok {
		if op == "-" {
			return python.Integer(new(big.Int).Neg(b))
		}
		return b
	}
	in.defined(v)
	i, f, isInt, ok := python.Number(v)
	switch {
	case !ok:
		in.Fail("bad operand type for unary %s: '%s'", op, python.TypeName(v))
	case isInt && op == "-":
		return in.checked(-i, i == math.MinInt64)
	case isInt:
		return i
	case op == "-":
		return -f
	}
	return f
}

func (in *interp) arithmetic(op string, a, b python.Value) python.Value {
	in.defined(a)
	in.defined(b)
	if x, f, xi, ok := python.Number(a); ok {
		if y, g, yi, ok := python.Number(b); ok {
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
		if s, ok := a.(python.Str); ok {
			return in.percent(s, b)
		}
	}
	in.Fail("unsupported operand type(s) for %s: '%s' and '%s'", op, python.TypeName(a), python.TypeName(b))
	return nil
}

func (in *interp) plus(a, b python.Value) (python.Value, bool) {
	switch a := a.(type) {
	case python.Str:
		if b, ok := b.(python.Str); ok {
			in.Charge(len(a.Text) + len(b.Text))
			return python.JoinStr([]python.Str{a, b}, python.Str{}), true
		}
	case *python.List:
		b, ok := b.(*python.List)
		if ok && a.Kind == b.Kind && a.Kind <= python.KindTuple {
			in.Charge(16 * (len(a.Items) + len(b.Items)))
			items := append(append([]python.Value(nil), a.Items...), b.Items...)
			return &python.List{Items: items, Kind: a.Kind}, true
		}
	}
	return nil, false
}

// repeat evaluates sequence * count.
func (in *interp) repeat(a, b python.Value) (python.Value, bool) {
	n, _, isInt, ok := python.Number(b)
	if !ok || !isInt {
		return nil, false
	}
	n = max(n, 0)
	size := 0
	switch a := a.(type) {
	case python.Str:
		size = len(a.Text) + 16*len(a.Marks)
	case *python.List:
		size = 16 * len(a.Items)
		if a.Kind > python.KindTuple {
			return nil, false
		}
	default:
		return nil, false
	}
	if hi, lo := bits.Mul64(uint64(size), uint64(n)); hi != 0 || lo > math.MaxInt32 {
		in.Charge(math.MaxInt)
	} else {
		in.Charge(int(lo))
	}
	if s, ok := a.(python.Str); ok {
		var b python.Builder
		if s.Text != "" {
			for range n {
				b.Add(s)
			}
		}
		return b.Str(), true
	}
	l := a.(*python.List)
	r := &python.List{Kind: l.Kind}
	if len(l.Items) > 0 {
		for range n {
			r.Items = append(r.Items, l.Items...)
		}
	}
	return r, true
}

// checked fails if the integer exceeds 64 bits, where Python's would grow.
func (in *interp) checked(v int64, overflow bool) int64 {
	if overflow {
		in.Exceed("integer overflow: bits of an integer", 64)
	}
	return v
}

func (in *interp) integers(op string, x, y int64) python.Value {
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
			in.Fail("integer division or modulo by zero")
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

func (in *interp) floats(op string, f, g float64) python.Value {
	switch op {
	case "+":
		return f + g
	case "-":
		return f - g
	case "*":
		return f * g
	case "**":
		if f == 0 && g < 0 {
			in.Fail("0.0 cannot be raised to a negative power")
		}
		return math.Pow(f, g)
	}
	if g == 0 {
		in.Fail("division by zero")
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
