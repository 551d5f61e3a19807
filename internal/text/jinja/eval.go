package jinja

import "strings"

func (in *interp) compare(op string, a, b Value) bool {
	switch op {
	case "==":
		return in.equal(a, b)
	case "!=":
		return !in.equal(a, b)
	case "in":
		return in.contains(b, a)
	case "notin":
		return !in.contains(b, a)
	}
	c, ok := in.order(a, b)
	if !ok {
		in.defined(a)
		in.defined(b)
		in.fail("'%s' not supported between instances of '%s' and '%s'", op, typeName(a), typeName(b))
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
func (in *interp) order(a, b Value) (ordering, bool) {
	in.enter()
	defer in.leave()
	if x, f, xi, ok := number(a); ok {
		y, g, yi, ok := number(b)
		switch {
		case !ok:
			return 0, false
		case xi && yi:
			return sign(x < y, x == y, x > y), true
		}
		return sign(f < g, f == g, f > g), true
	}
	switch a := a.(type) {
	case Str:
		if b, ok := b.(Str); ok {
			in.scan(a)
			return ordering(strings.Compare(a.s, b.s)), true
		}
	case *List:
		b, ok := b.(*List)
		if !ok || a.kind != b.kind || a.kind > kindTuple {
			return 0, false
		}
		for i := range min(len(a.items), len(b.items)) {
			if !in.equal(a.items[i], b.items[i]) {
				return in.order(a.items[i], b.items[i])
			}
		}
		x, y := len(a.items), len(b.items)
		return sign(x < y, x == y, x > y), true
	}
	return 0, false
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

func (in *interp) contains(container, v Value) bool {
	switch c := container.(type) {
	case Str:
		s, ok := v.(Str)
		if !ok {
			in.defined(v)
			in.fail("'in <string>' requires string as left operand, not %s", typeName(v))
		}
		in.scan(c)
		return strings.Contains(c.s, s.s)
	case *Dict:
		_, ok := c.lookup(in.key(v))
		return ok
	case *List:
		for _, x := range in.iterate(c) {
			if in.equal(x, v) {
				return true
			}
		}
		return false
	case *Undefined:
		return false
	}
	in.fail("argument of type '%s' is not iterable", typeName(container))
	return false
}

// defined fails with the message of an undefined value.
func (in *interp) defined(v Value) {
	if u, ok := v.(*Undefined); ok {
		in.fail("%s", u.message)
	}
}
