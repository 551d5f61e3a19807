package jinja

import (
	"math/big"
	"strings"

	"github.com/shoal-llm/shoal/internal/text/jinja/python"
)

// tests is filled by init. A literal would be an initialization cycle, because the tests "filter"
// and "test" read the tables.
var tests map[string]func(in *interp, v python.Value, a *args) bool

// compareTests maps "x is gt 3" and its other spellings to operators.
var compareTests = map[string]string{
	"eq": "==", "equalto": "==", "==": "==", "ne": "!=", "!=": "!=", "lt": "<", "lessthan": "<", "<": "<",
	"le": "<=", "<=": "<=", "gt": ">", "greaterthan": ">", ">": ">", "ge": ">=", ">=": ">=",
}

func init() {
	tests = map[string]func(in *interp, v python.Value, a *args) bool{
		"defined":   func(in *interp, v python.Value, a *args) bool { _, u := v.(*python.Undefined); return !u },
		"undefined": func(in *interp, v python.Value, a *args) bool { _, u := v.(*python.Undefined); return u },
		"none":      func(in *interp, v python.Value, a *args) bool { return v == nil },
		"boolean":   func(in *interp, v python.Value, a *args) bool { _, b := v.(bool); return b },
		"true":      func(in *interp, v python.Value, a *args) bool { b, ok := v.(bool); return ok && b },
		"false":     func(in *interp, v python.Value, a *args) bool { b, ok := v.(bool); return ok && !b },
		"integer": func(in *interp, v python.Value, a *args) bool {
			_, i := v.(int64)
			_, b := v.(*big.Int)
			return i || b
		},
		"float": func(in *interp, v python.Value, a *args) bool { _, f := v.(float64); return f },
		"number": func(in *interp, v python.Value, a *args) bool {
			_, big := v.(*big.Int)
			_, _, _, ok := python.Number(v)
			return ok || big
		},
		"string":   func(in *interp, v python.Value, a *args) bool { _, s := v.(python.Str); return s },
		"mapping":  func(in *interp, v python.Value, a *args) bool { _, d := v.(*python.Dict); return d },
		"iterable": isIterable,
		"sequence": isSequence,
		"callable": func(in *interp, v python.Value, a *args) bool {
			switch v.(type) {
			case *callable, *loopObject, *joiner, *python.Undefined: // Undefined has a __call__, which fails
				return true
			}
			return false
		},
		"escaped": func(in *interp, v python.Value, a *args) bool { return false },
		"even":    func(in *interp, v python.Value, a *args) bool { return in.modulo(v, 2) == 0 },
		"odd":     func(in *interp, v python.Value, a *args) bool { return in.modulo(v, 2) == 1 },
		"divisibleby": func(in *interp, v python.Value, a *args) bool {
			return in.modulo(v, in.wantInt("divisibleby", a.bind(in, "divisibleby", "num")[0], 0)) == 0
		},
		"lower":  func(in *interp, v python.Value, a *args) bool { return isCased(in.Str(v).Text, false) },
		"upper":  func(in *interp, v python.Value, a *args) bool { return isCased(in.Str(v).Text, true) },
		"in":     func(in *interp, v python.Value, a *args) bool { return in.contains(a.bind(in, "in", "seq")[0], v) },
		"sameas": isSameAs,
		"filter": func(in *interp, v python.Value, a *args) bool {
			s, ok := v.(python.Str)
			return ok && filters[s.Text] != nil
		},
		"test": func(in *interp, v python.Value, a *args) bool {
			s, ok := v.(python.Str)
			return ok && (tests[s.Text] != nil || compareTests[s.Text] != "")
		},
	}
}

func (in *interp) test(name string, v python.Value, a *args) python.Value {
	in.Step(1)
	if s, ok := v.(python.Str); ok {
		in.Scan(s)
	}
	if op, ok := compareTests[name]; ok {
		return in.compare(op, v, a.bind(in, name, "other")[0])
	}
	t, ok := tests[name]
	if !ok {
		in.Fail("No test named '%s'", name)
	}
	switch name {
	case "divisibleby", "in", "sameas":
	default:
		a.bind(in, "the test "+name)
	}
	return t(in, v, a)
}

func isIterable(in *interp, v python.Value, a *args) bool {
	switch v.(type) {
	case python.Str, *python.List, *python.Dict, *python.Undefined:
		return true
	}
	return false
}

// isSequence: Jinja requires len() and an index operator.
func isSequence(in *interp, v python.Value, a *args) bool {
	switch v := v.(type) {
	case python.Str, *python.Dict, *python.Undefined:
		return true
	case *python.List:
		return v.Indexable()
	}
	return false
}

func isSameAs(in *interp, v python.Value, a *args) bool {
	w := a.bind(in, "sameas", "other")[0]
	switch x := v.(type) {
	case *python.List:
		y, ok := w.(*python.List)
		return ok && x == y
	case *python.Dict:
		y, ok := w.(*python.Dict)
		return ok && x == y
	}
	return python.TypeName(v) == python.TypeName(w) && in.Equal(v, w)
}

func (in *interp) modulo(v python.Value, n int) int64 {
	if b, ok := v.(*big.Int); ok && n > 0 {
		return new(big.Int).Mod(b, big.NewInt(int64(n))).Int64()
	}
	i, f, isInt, ok := python.Number(v)
	if !ok {
		in.defined(v)
		in.Fail("unsupported operand type(s) for %%: '%s' and 'int'", python.TypeName(v))
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
