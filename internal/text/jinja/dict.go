package jinja

import (
	"iter"
	"maps"
	"math"
	"math/big"
	"slices"
)

// Dict is a dictionary in insertion order, like Python's.
type Dict struct {
	entries []entry
	index   map[dictKey]int
}

type entry struct{ key, value Value }

// dictKey identifies equal keys: 1, 1.0 and True are the same key.
type dictKey struct {
	kind byte // n: number, s: string, 0: None, t: another hashable value
	i    int64
	s    string
}

// NewDict returns an empty dict.
func NewDict() *Dict { return &Dict{} }

func (d *Dict) Len() int { return len(d.entries) }

// Set adds or replaces the value of a string key.
func (d *Dict) Set(key string, v Value) { d.put(dictKey{kind: 's', s: key}, Trusted(key), v) }

func (d *Dict) Get(key string) (Value, bool) { return d.lookup(dictKey{kind: 's', s: key}) }

// Strings iterates over the entries with string keys, in order.
func (d *Dict) Strings() iter.Seq2[string, Value] {
	return func(yield func(string, Value) bool) {
		for _, e := range d.entries {
			if k, ok := e.key.(Str); ok && !yield(k.s, e.value) {
				return
			}
		}
	}
}

func (d *Dict) put(k dictKey, key, v Value) {
	if i, ok := d.index[k]; ok {
		d.entries[i].value = v
		return
	}
	if d.index == nil {
		d.index = make(map[dictKey]int)
	}
	d.index[k] = len(d.entries)
	d.entries = append(d.entries, entry{key, v})
}

func (d *Dict) lookup(k dictKey) (Value, bool) {
	i, ok := d.index[k]
	if !ok {
		return nil, false
	}
	return d.entries[i].value, true
}

func (d *Dict) clone() *Dict {
	c := &Dict{entries: append([]entry(nil), d.entries...), index: make(map[dictKey]int, len(d.index))}
	maps.Copy(c.index, d.index)
	return c
}

func (d *Dict) keys() []Value   { return d.each(func(e entry) Value { return e.key }) }
func (d *Dict) values() []Value { return d.each(func(e entry) Value { return e.value }) }
func (d *Dict) items() []Value  { return d.each(func(e entry) Value { return tuple(e.key, e.value) }) }

func (d *Dict) each(f func(entry) Value) []Value {
	r := make([]Value, len(d.entries))
	for i, e := range d.entries {
		r[i] = f(e)
	}
	return r
}

// key returns the key of a value, or fails like Python for lists and dicts.
func (in *interp) key(v Value) dictKey {
	in.enter()
	defer in.leave()
	if i, f, isInt, ok := number(v); ok {
		if isInt {
			return dictKey{kind: 'n', i: i}
		}
		if f == math.Trunc(f) && math.Abs(f) < 1<<62 {
			return dictKey{kind: 'n', i: int64(f)}
		}
		return dictKey{kind: 't', s: formatFloat(f)}
	}
	switch v := v.(type) {
	case nil:
		return dictKey{}
	case Str:
		in.scan(v)
		return dictKey{kind: 's', s: v.s}
	case *big.Int:
		return dictKey{kind: 't', s: v.String()}
	case *List:
		if v.kind == kindTuple {
			for _, x := range v.items {
				in.key(x)
			}
			return dictKey{kind: 't', s: in.repr(v).s}
		}
	case *Undefined:
		return dictKey{kind: 'u'}
	}
	in.fail("unhashable type: '%s'", typeName(v))
	return dictKey{}
}

// hashable reports whether key accepts v.
func (in *interp) hashable(v Value) bool {
	in.enter()
	defer in.leave()
	switch v := v.(type) {
	case nil, bool, int64, float64, *big.Int, Str, *Undefined:
		return true
	case *List:
		return v.kind == kindTuple && !slices.ContainsFunc(v.items, func(x Value) bool { return !in.hashable(x) })
	}
	return false
}
