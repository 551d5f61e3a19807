package jinja

import (
	"math"
	"math/big"
	"strconv"
)

// Value is one of the types in the package comment, or one of the engine's own types below. Compare
// values with equal, never with ==.
type Value any

// listKind distinguishes Python's sequence types as far as a template can see them.
type listKind uint8

const (
	kindList listKind = iota
	kindTuple
	kindRange
	kindView // dict views: iterable and sized, but not indexable
	kindIter // generators: read once, always true, no length
)

// List is any sequence of values. Templates cannot change it.
type List struct {
	items []Value
	kind  listKind
	name  string // Python's type name of a view or iterator
}

// NewList returns a Python list.
func NewList(items ...Value) *List { return &List{items: items} }

func tuple(items ...Value) *List { return &List{items: items, kind: kindTuple} }

func generator(items []Value) *List { return &List{items: items, kind: kindIter, name: "generator"} }

func (l *List) Len() int { return len(l.items) }

// With returns a list with one more item; l must not be used afterwards.
func (l *List) With(v Value) *List {
	l.items = append(l.items, v)
	return l
}

func (l *List) At(i int) Value { return l.items[i] }

func (l *List) sized() bool     { return l.kind != kindIter }
func (l *List) indexable() bool { return l.kind <= kindRange }

// Undefined is the value of a missing name or key. It is empty when printed or iterated, and every
// other operation fails.
type Undefined struct{ message string }

func undefinedName(name string) *Undefined { return &Undefined{"'" + name + "' is undefined"} }

// Namespace is the result of namespace(), the only value that a template can change.
type Namespace struct{ attrs *Dict }

// callable is a function, a macro or a bound method.
type callable struct {
	name string
	call func(in *interp, a *args) Value

	macro bool
}

// object is a value with computed attributes: loop, joiner.
type object interface {
	attr(in *interp, name string) (Value, bool)
	typeName() string
}

func typeName(v Value) string {
	switch v := v.(type) {
	case nil:
		return "NoneType"
	case bool:
		return "bool"
	case int64, *big.Int:
		return "int"
	case float64:
		return "float"
	case Str:
		return "str"
	case *Dict:
		return "dict"
	case *List:
		switch v.kind {
		case kindList:
			return "list"
		case kindTuple:
			return "tuple"
		case kindRange:
			return "range"
		}
		return v.name
	case *Undefined:
		return "Undefined"
	case *Namespace:
		return "Namespace"
	case object:
		return v.typeName()
	}
	return "function"
}

func truth(v Value) bool {
	switch v := v.(type) {
	case nil, *Undefined:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case float64:
		return v != 0
	case Str:
		return v.s != ""
	case *List:
		return v.kind == kindIter || len(v.items) > 0
	case *Dict:
		return v.Len() > 0
	}
	return true
}

// number treats bools like Python: as the integers 0 and 1.
func number(v Value) (i int64, f float64, isInt, ok bool) {
	switch v := v.(type) {
	case bool:
		if v {
			return 1, 1, true, true
		}
		return 0, 0, true, true
	case int64:
		return v, float64(v), true, true
	case float64:
		return 0, v, false, true
	}
	return 0, 0, false, false
}

// equal is Python's ==. The interpreter bounds the depth.
func (in *interp) equal(a, b Value) bool {
	in.enter()
	defer in.leave()
	if x, f, xi, ok := number(a); ok {
		y, g, yi, ok := number(b)
		if xi && yi {
			return ok && x == y
		}
		return ok && f == g
	}
	switch a := a.(type) {
	case nil:
		return b == nil
	case *big.Int:
		c, ok := b.(*big.Int)
		return ok && a.Cmp(c) == 0
	case Str:
		c, ok := b.(Str)
		in.scan(a)
		return ok && a.s == c.s
	case *Undefined:
		_, ok := b.(*Undefined)
		return ok
	case *List:
		c, ok := b.(*List)
		if !ok {
			return false
		}
		if a == c {
			return true
		}
		if a.kind != c.kind || len(a.items) != len(c.items) || a.kind == kindIter {
			return false
		}
		for i := range a.items {
			if !in.equal(a.items[i], c.items[i]) {
				return false
			}
		}
		return true
	case *Dict:
		c, ok := b.(*Dict)
		if !ok || a.Len() != c.Len() {
			return ok && a == c
		}
		if a == c {
			return true
		}
		for _, e := range a.entries {
			w, ok := c.lookup(in.key(e.key))
			if !ok || !in.equal(e.value, w) {
				return false
			}
		}
		return true
	case *Namespace, *callable, *loopObject: // identity
		return a == b
	}
	return false
}

// formatFloat is Python's repr of a float.
func formatFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	for _, c := range s {
		if c == '.' {
			return s
		}
	}
	return s + ".0"
}
