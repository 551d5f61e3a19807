package python

import (
	"iter"
	"maps"
	"math"
	"math/big"
	"slices"
)

// Dict is a dictionary in insertion order, like Python's.
type Dict struct {
	Entries []Entry
	index   map[DictKey]int
}

// Entry is a key and its value.
type Entry struct{ Key, Value Value }

// DictKey identifies equal keys: 1, 1.0 and True are the same key.
type DictKey struct {
	kind byte // n: number, s: string, 0: None, t: another hashable value
	i    int64
	s    string
}

// NewDict returns an empty dict.
func NewDict() *Dict { return &Dict{} }

func (d *Dict) Len() int { return len(d.Entries) }

// Set adds or replaces the value of a string key.
func (d *Dict) Set(key string, v Value) { d.Put(DictKey{kind: 's', s: key}, Trusted(key), v) }

// Get returns the value of a string key.
func (d *Dict) Get(key string) (Value, bool) { return d.Lookup(DictKey{kind: 's', s: key}) }

// Strings iterates over the entries with string keys, in order.
func (d *Dict) Strings() iter.Seq2[string, Value] {
	return func(yield func(string, Value) bool) {
		for _, e := range d.Entries {
			if k, ok := e.Key.(Str); ok && !yield(k.Text, e.Value) {
				return
			}
		}
	}
}

// Put adds or replaces the value of a key, whose DictKey is k.
func (d *Dict) Put(k DictKey, key, v Value) {
	if i, ok := d.index[k]; ok {
		d.Entries[i].Value = v
		return
	}
	if d.index == nil {
		d.index = make(map[DictKey]int)
	}
	d.index[k] = len(d.Entries)
	d.Entries = append(d.Entries, Entry{key, v})
}

// Lookup returns the value of a key.
func (d *Dict) Lookup(k DictKey) (Value, bool) {
	i, ok := d.index[k]
	if !ok {
		return nil, false
	}
	return d.Entries[i].Value, true
}

// Clone returns a shallow copy.
func (d *Dict) Clone() *Dict {
	c := &Dict{Entries: append([]Entry(nil), d.Entries...), index: make(map[DictKey]int, len(d.index))}
	maps.Copy(c.index, d.index)
	return c
}

func (d *Dict) Keys() []Value   { return d.each(func(e Entry) Value { return e.Key }) }
func (d *Dict) Values() []Value { return d.each(func(e Entry) Value { return e.Value }) }
func (d *Dict) Items() []Value  { return d.each(func(e Entry) Value { return Tuple(e.Key, e.Value) }) }

func (d *Dict) each(f func(Entry) Value) []Value {
	r := make([]Value, len(d.Entries))
	for i, e := range d.Entries {
		r[i] = f(e)
	}
	return r
}

// Key returns the key of a value, or fails like Python for lists and dicts.
func (m *Meter) Key(v Value) DictKey {
	m.Enter()
	defer m.Leave()
	if i, f, isInt, ok := Number(v); ok {
		if isInt {
			return DictKey{kind: 'n', i: i}
		}
		if f == math.Trunc(f) && math.Abs(f) < 1<<62 {
			return DictKey{kind: 'n', i: int64(f)}
		}
		return DictKey{kind: 't', s: FormatFloat(f)}
	}
	switch v := v.(type) {
	case nil:
		return DictKey{}
	case Str:
		m.Scan(v)
		return DictKey{kind: 's', s: v.Text}
	case *big.Int:
		return DictKey{kind: 't', s: v.String()}
	case *List:
		if v.Kind == KindTuple {
			for _, x := range v.Items {
				m.Key(x)
			}
			return DictKey{kind: 't', s: m.Repr(v).Text}
		}
	case *Undefined:
		return DictKey{kind: 'u'}
	}
	m.Fail("unhashable type: '%s'", TypeName(v))
	return DictKey{}
}

// Hashable reports whether Key accepts v.
func (m *Meter) Hashable(v Value) bool {
	m.Enter()
	defer m.Leave()
	switch v := v.(type) {
	case nil, bool, int64, float64, *big.Int, Str, *Undefined:
		return true
	case *List:
		return v.Kind == KindTuple && !slices.ContainsFunc(v.Items, func(x Value) bool { return !m.Hashable(x) })
	}
	return false
}
