package jinja

import (
	"math/big"
	"strings"
)

// tests is filled by init. A literal would be an initialization cycle, because the tests "filter"
// and "test" read the tables.
var tests map[string]func(in *interp, v Value, a *args) bool

// compareTests maps "x is gt 3" and its other spellings to operators.
var compareTests = map[string]string{
	"eq": "==", "equalto": "==", "==": "==", "ne": "!=", "!=": "!=", "lt": "<", "lessthan": "<", "<": "<",
	"le": "<=", "<=": "<=", "gt": ">", "greaterthan": ">", ">": ">", "ge": ">=", ">=": ">=",
}

func init() {
	tests = map[string]func(in *interp, v Value, a *args) bool{
		"defined":   func(in *interp, v Value, a *args) bool { _, u := v.(*Undefined); return !u },
		"undefined": func(in *interp, v Value, a *args) bool { _, u := v.(*Undefined); return u },
		"none":      func(in *interp, v Value, a *args) bool { return v == nil },
		"boolean":   func(in *interp, v Value, a *args) bool { _, b := v.(bool); return b },
		"true":      func(in *interp, v Value, a *args) bool { b, ok := v.(bool); return ok && b },
		"false":     func(in *interp, v Value, a *args) bool { b, ok := v.(bool); return ok && !b },
		"integer": func(in *interp, v Value, a *args) bool {
			_, i := v.(int64)
			_, b := v.(*big.Int)
			return i || b
		},
		"float": func(in *interp, v Value, a *args) bool { _, f := v.(float64); return f },
		"number": func(in *interp, v Value, a *args) bool {
			_, big := v.(*big.Int)
			_, _, _, ok := number(v)
			return ok || big
		},
		"string":   func(in *interp, v Value, a *args) bool { _, s := v.(Str); return s },
		"mapping":  func(in *interp, v Value, a *args) bool { _, d := v.(*Dict); return d },
		"iterable": isIterable,
		"sequence": isSequence,
		"callable": func(in *interp, v Value, a *args) bool {
			switch v.(type) {
			case *callable, *loopObject, *joiner, *Undefined: // Undefined has a __call__, which fails
				return true
			}
			return false
		},
		"escaped": func(in *interp, v Value, a *args) bool { return false },
		"even":    func(in *interp, v Value, a *args) bool { return in.modulo(v, 2) == 0 },
		"odd":     func(in *interp, v Value, a *args) bool { return in.modulo(v, 2) == 1 },
		"divisibleby": func(in *interp, v Value, a *args) bool {
			return in.modulo(v, in.wantInt("divisibleby", a.bind(in, "divisibleby", "num")[0], 0)) == 0
		},
		"lower":  func(in *interp, v Value, a *args) bool { return isCased(in.str(v).s, false) },
		"upper":  func(in *interp, v Value, a *args) bool { return isCased(in.str(v).s, true) },
		"in":     func(in *interp, v Value, a *args) bool { return in.contains(a.bind(in, "in", "seq")[0], v) },
		"sameas": isSameAs,
		"filter": func(in *interp, v Value, a *args) bool { s, ok := v.(Str); return ok && filters[s.s] != nil },
		"test": func(in *interp, v Value, a *args) bool {
			s, ok := v.(Str)
			return ok && (tests[s.s] != nil || compareTests[s.s] != "")
		},
	}
}

func (in *interp) test(name string, v Value, a *args) Value {
	in.step(1)
	if s, ok := v.(Str); ok {
		in.scan(s)
	}
	if op, ok := compareTests[name]; ok {
		return in.compare(op, v, a.bind(in, name, "other")[0])
	}
	t, ok := tests[name]
	if !ok {
		in.fail("No test named '%s'", name)
	}
	switch name {
	case "divisibleby", "in", "sameas":
	default:
		a.bind(in, "the test "+name)
	}
	return t(in, v, a)
}

func isIterable(in *interp, v Value, a *args) bool {
	switch v.(type) {
	case Str, *List, *Dict, *Undefined:
		return true
	}
	return false
}

// isSequence: Jinja requires len() and an index operator.
func isSequence(in *interp, v Value, a *args) bool {
	switch v := v.(type) {
	case Str, *Dict, *Undefined:
		return true
	case *List:
		return v.indexable()
	}
	return false
}

func isSameAs(in *interp, v Value, a *args) bool {
	w := a.bind(in, "sameas", "other")[0]
	switch x := v.(type) {
	case *List:
		y, ok := w.(*List)
		return ok && x == y
	case *Dict:
		y, ok := w.(*Dict)
		return ok && x == y
	}
	return typeName(v) == typeName(w) && in.equal(v, w)
}

func (in *interp) modulo(v Value, n int) int64 {
	i, f, isInt, ok := number(v)
	if !ok {
		in.defined(v)
		in.fail("unsupported operand type(s) for %%: '%s' and 'int'", typeName(v))
	}
	if isInt {
		return in.integers("%", i, int64(n)).(int64)
	}
	if m := in.floats("%", f, float64(n)).(float64); m == float64(int64(m)) {
		return int64(m)
	}
	return -1
}

// isCased implements str.isupper and str.islower.
func isCased(s string, upper bool) bool {
	up, low := strings.ToUpper(s), strings.ToLower(s)
	if upper {
		return s == up && s != low
	}
	return s == low && s != up
}
