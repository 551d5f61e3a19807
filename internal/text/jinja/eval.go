package jinja

import (
	"math"
	"math/big"
	"strings"

	"github.com/shoal-llm/shoal/internal/text/jinja/python"
)

func (in *interp) compare(op string, a, b python.Value) bool {
	switch op {
	case "==":
		return in.Equal(a, b)
	case "!=":
		return !in.Equal(a, b)
	case "in":
		return in.contains(b, a)
	case "notin":
		return !in.contains(b, a)
	}
	c, ok := in.order(a, b)
	if !ok {
		in.defined(a)
		in.defined(b)
		in.Fail("'%s' not supported between instances of '%s' and '%s'", op, python.TypeName(a), python.TypeName(b))
	}
	switch op {
	case "<":
		return c == less
	case "<=":
		return c == less || c == same
	case ">":
		return c == greater
	}
	return c == greater || c == same
}

type ordering int8

const (
	less ordering = iota - 1
	same
	greater
	unordered // NaN
)

// order compares values that Python orders: numbers, strings, and sequences of these.
func (in *interp) order(a, b python.Value) (ordering, bool) {
	in.Enter()
	defer in.Leave()
	if c, ok := orderBig(a, b); ok {
		return c, true
	}
	if x, f, xi, ok := python.Number(a); ok {
		y, g, yi, ok := python.Number(b)
		switch {
		case !ok:
			return 0, false
		case xi && yi:
			return sign(x < y, x == y, x > y), true
		}
		return sign(f < g, f == g, f > g), true
	}
	switch a := a.(type) {
	case python.Str:
		if b, ok := b.(python.Str); ok {
			in.Scan(a)
			return ordering(strings.Compare(a.Text, b.Text)), true
		}
	case *python.List:
		b, ok := b.(*python.List)
		if !ok || a.Kind != b.Kind || a.Kind > python.KindTuple {
			return 0, false
		}
		for i := range min(len(a.Items), len(b.Items)) {
			if !in.Equal(a.Items[i], b.Items[i]) {
				c, ok := in.order(a.Items[i], b.Items[i])
				if !ok { // the error is about the items
					in.defined(a.Items[i])
					in.defined(b.Items[i])
				}
				return c, ok
			}
		}
		x, y := len(a.Items), len(b.Items)
		return sign(x < y, x == y, x > y), true
	}
	return 0, false
}

// orderBig compares two numbers of which at least one is beyond 64 bits.
func orderBig(a, b python.Value) (ordering, bool) {
	x, isBig := a.(*big.Int)
	if !isBig {
		if _, isBig = b.(*big.Int); !isBig {
			return 0, false
		}
		c, ok := orderBig(b, a)
		if ok && c != unordered {
			c = -c
		}
		return c, ok
	}
	if y, ok := b.(*big.Int); ok {
		return ordering(x.Cmp(y)), true
	}
	i, f, isInt, ok := python.Number(b)
	switch {
	case !ok:
		return 0, false
	case isInt:
		return ordering(x.Cmp(big.NewInt(i))), true
	case math.IsNaN(f):
		return unordered, true
	}
	return ordering(new(big.Float).SetInt(x).Cmp(big.NewFloat(f))), true
}

func sign(lt, eq, gt bool) ordering {
	switch {
	case lt:
		return less
	case eq:
		return same
	case gt:
		return greater
	}
	return unordered
}

func (in *interp) contains(container, v python.Value) bool {
	switch c := container.(type) {
	case python.Str:
		s, ok := v.(python.Str)
		if !ok {
			in.defined(v)
			in.Fail("'in <string>' requires string as left operand, not %s", python.TypeName(v))
		}
		in.Scan(c)
		return strings.Contains(c.Text, s.Text)
	case *python.Dict:
		_, ok := c.Lookup(in.Key(v))
		return ok
	case *python.List:
		for _, x := range in.iterate(c) {
			if in.Equal(x, v) {
				return true
			}
		}
		return false
	case *python.Undefined:
		return false
	}
	in.Fail("argument of type '%s' is not iterable", python.TypeName(container))
	return false
}

// defined fails with the message of an undefined value.
func (in *interp) defined(v python.Value) {
	if u, ok := v.(*python.Undefined); ok {
		in.Fail("%s", u.Message)
	}
}
