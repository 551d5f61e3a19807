package python

import (
	"math"
	"math/big"
	"strconv"
)

// Value is one of the types in the package comment, or one of the types below. Compare
// values with Equal, never with ==.
type Value any

// ListKind distinguishes Python's sequence types as far as templates can.
type ListKind uint8

const (
	KindList ListKind = iota
	KindTuple
	KindRange
	KindView // dict views: iterable and sized, but not indexable
	KindIter // generators: read once, always true, no length
)

// List is any sequence of values. Templates cannot change it.
type List struct {
	Items []Value
	Kind  ListKind
	Name  string // Python's type name of a view or iterator
}

// NewList returns a Python list.
func NewList(items ...Value) *List { return &List{Items: items} }

// Tuple returns a Python tuple.
func Tuple(items ...Value) *List { return &List{Items: items, Kind: KindTuple} }

// Generator returns a sequence that is read once.
func Generator(items []Value) *List { return &List{Items: items, Kind: KindIter, Name: "generator"} }

func (l *List) Len() int { return len(l.Items) }

// With returns a list with one more item; l must not be used afterwards.
func (l *List) With(v Value) *List {
	l.Items = append(l.Items, v)
	return l
}

// At returns the i-th item.
func (l *List) At(i int) Value { return l.Items[i] }

// Sized reports whether the value has a length, and Indexable whether it has numbered items.
func (l *List) Sized() bool     { return l.Kind != KindIter }
func (l *List) Indexable() bool { return l.Kind <= KindRange }

// Undefined is the value of a missing name or key. It is empty when printed or iterated, and every
// other operation fails.
type Undefined struct{ Message string }

// UndefinedName returns the value of a name that is not defined.
func UndefinedName(name string) *Undefined { return &Undefined{"'" + name + "' is undefined"} }

// Namespace is the result of namespace(), the only value that a template can change.
type Namespace struct{ Attrs *Dict }

// Object is a value that only a rendering has: a function, loop, joiner. It is a pointer.
type Object interface {
	TypeName() string // as in Python
	Repr() string
}

// TypeName is Python's name of a value's type.
func TypeName(v Value) string {
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
		switch v.Kind {
		case KindList:
			return "list"
		case KindTuple:
			return "tuple"
		case KindRange:
			return "range"
		}
		return v.Name
	case *Undefined:
		return "Undefined"
	case *Namespace:
		return "Namespace"
	case Object:
		return v.TypeName()
	}
	return "object"
}

// Truth is Python's bool().
func Truth(v Value) bool {
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
		return v.Text != ""
	case *List:
		return v.Kind == KindIter || len(v.Items) > 0
	case *Dict:
		return v.Len() > 0
	}
	return true
}

// Number treats bools like Python: as the integers 0 and 1.
func Number(v Value) (i int64, f float64, isInt, ok bool) {
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

// Integer returns an integer as an int64 where it fits.
func Integer(b *big.Int) Value {
	if b.IsInt64() {
		return b.Int64()
	}
	return b
}

// WholeOf returns a finite float without its fraction, as an integer.
func WholeOf(f float64) Value {
	b, _ := big.NewFloat(f).Int(nil)
	return Integer(b)
}

// Equal is Python's ==. The meter bounds the depth.
func (m *Meter) Equal(a, b Value) bool {
	m.Enter()
	defer m.Leave()
	if x, f, xi, ok := Number(a); ok {
		y, g, yi, ok := Number(b)
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
		m.Scan(a)
		return ok && a.Text == c.Text
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
		if a.Kind != c.Kind || len(a.Items) != len(c.Items) || a.Kind == KindIter {
			return false
		}
		for i := range a.Items {
			if !m.Equal(a.Items[i], c.Items[i]) {
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
		for _, e := range a.Entries {
			w, ok := c.Lookup(m.Key(e.Key))
			if !ok || !m.Equal(e.Value, w) {
				return false
			}
		}
		return true
	case *Namespace, Object: // identity
		return a == b
	}
	return false
}

// FormatFloat is Python's repr of a float.
func FormatFloat(f float64) string {
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
