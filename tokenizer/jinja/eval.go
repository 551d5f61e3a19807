package jinja

import (
	"strings"
)

func (in *interp) eval(e expr, sc *scope) Value {
	in.enter()
	defer in.leave()
	in.line = e.at()
	switch e := e.(type) {
	case *constExpr:
		return e.value
	case *nameExpr:
		if v, ok := sc.get(e.name); ok {
			return v
		}
		if v, ok := globals[e.name]; ok {
			return v
		}
		return undefinedName(e.name)
	case *listExpr:
		l := &List{kind: e.kind}
		in.charge(16 * len(e.items))
		for _, x := range e.items {
			l.items = append(l.items, in.eval(x, sc))
		}
		return l
	case *dictExpr:
		d := NewDict()
		in.charge(64 * len(e.keys))
		for i := range e.keys {
			k := in.eval(e.keys[i], sc)
			d.put(in.key(k), k, in.eval(e.values[i], sc))
		}
		return d
	case *attrExpr:
		v := in.eval(e.of, sc)
		in.line = e.at()
		return in.getattr(v, e.name)
	case *indexExpr:
		v := in.eval(e.of, sc)
		if s, ok := e.index.(*sliceExpr); ok {
			return in.slice(v, s, sc)
		}
		i := in.eval(e.index, sc)
		in.line = e.at()
		return in.getitem(v, i)
	case *callExpr:
		fn := in.eval(e.fn, sc)
		a := in.args(&e.args, sc)
		in.line = e.at()
		return in.call(fn, a)
	case *filterExpr:
		v := in.eval(e.of, sc)
		a := in.args(&e.args, sc)
		in.line = e.at()
		return in.filter(e.name, v, a)
	case *testExpr:
		v := in.eval(e.of, sc)
		a := in.args(&e.args, sc)
		in.line = e.at()
		return in.test(e.name, v, a)
	case *unaryExpr:
		v := in.eval(e.of, sc)
		in.line = e.at()
		return in.unary(e.op, v)
	case *binaryExpr:
		return in.binary(e, sc)
	case *concatExpr:
		var b builder
		for _, x := range e.items {
			b.add(in.made(in.str(in.eval(x, sc))))
		}
		return b.str()
	case *compareExpr:
		return in.comparison(e, sc)
	case *condExpr:
		if truth(in.eval(e.test, sc)) {
			return in.eval(e.yes, sc)
		}
		if e.no == nil {
			return &Undefined{"the inline if-expression evaluated to false and no else section was defined"}
		}
		return in.eval(e.no, sc)
	case *sliceExpr:
		in.fail("a slice is only possible as an index")
	}
	panic("jinja: unknown expression") // a broken invariant of the parser
}

func (in *interp) comparison(e *compareExpr, sc *scope) Value {
	left := in.eval(e.first, sc)
	for i, op := range e.ops {
		right := in.eval(e.rest[i], sc)
		in.line = e.at()
		if !in.compare(op, left, right) {
			return false
		}
		left = right
	}
	return true
}

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

// order compares what Python orders: numbers, strings, and sequences of these.
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
