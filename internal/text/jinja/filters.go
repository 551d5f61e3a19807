package jinja

import (
	"math"
	"math/big"
	"strconv"
	"strings"
)

type filterFunc func(in *interp, v Value, a *args) Value

// filters is filled by init because some filters (map, select) look up others.
var filters map[string]filterFunc

func init() {
	filters = map[string]filterFunc{
		"abs": filterAbs, "attr": filterAttr, "capitalize": onStr("capitalize"),
		"batch": filterBatch, "center": filterCenter, "groupby": filterGroupBy, "slice": filterSlice,
		"truncate": filterTruncate, "urlencode": filterURLEncode, "wordcount": filterWordCount,
		"count": filterLength, "d": filterDefault, "default": filterDefault,
		"dictsort": filterDictsort, "e": filterEscape, "escape": filterEscape, "first": filterFirst,
		"float": filterFloat, "forceescape": filterEscape, "format": filterFormat,
		"indent": filterIndent, "int": filterInt, "items": filterItems, "join": filterJoin,
		"last": filterLast, "length": filterLength, "list": filterList, "lower": onStr("lower"),
		"map": filterMap, "max": extreme("max", greater), "min": extreme("min", less), "reject": selecting("reject", false, false),
		"rejectattr": selecting("rejectattr", true, false), "replace": filterReplace, "reverse": filterReverse,
		"round": filterRound, "safe": filterString, "select": selecting("select", false, true), "selectattr": selecting("selectattr", true, true),
		"sort": filterSort, "string": filterString, "sum": filterSum,
		"title": filterTitle, "tojson": toJSON, "trim": filterTrim,
		"unique": filterUnique, "upper": onStr("upper"),
	}
}

func (in *interp) filter(name string, v Value, a *args) Value {
	f, ok := filters[name]
	if !ok {
		in.fail("No filter named '%s'", name)
	}
	in.step(1)
	if s, ok := v.(Str); ok {
		in.scan(s)
	}
	return f(in, v, a)
}

// onStr returns a filter that prints its operand and calls a method of str.
func onStr(method string) filterFunc {
	return func(in *interp, v Value, a *args) Value {
		return strMethods[method](in, in.str(v), a)
	}
}

func filterAbs(in *interp, v Value, a *args) Value {
	a.bind(in, "abs")
	i, f, isInt, ok := number(v)
	switch {
	case !ok:
		in.defined(v)
		in.fail("bad operand type for abs(): '%s'", typeName(v))
	case !isInt:
		return math.Abs(f)
	case i < 0:
		return in.checked(-i, i == math.MinInt64)
	}
	return i
}

func filterAttr(in *interp, v Value, a *args) Value {
	name := in.wantStr("attr", a.bind(in, "attr", "name")[0])
	if r, ok := in.attribute(v, name.s); ok {
		return r
	}
	return missing(v, "attribute", name.s)
}

func filterDefault(in *interp, v Value, a *args) Value {
	p := a.bind(in, "default", "default_value?", "boolean?")
	_, undef := v.(*Undefined)
	if undef || (optBool(p[1], false) && !truth(v)) {
		if !given(p[0]) {
			return Str{}
		}
		return p[0]
	}
	return v
}

func filterEscape(in *interp, v Value, a *args) Value {
	a.bind(in, "escape")
	var b builder
	escapeInto(&b, in.str(v), func(r rune, _ int) string {
		switch r {
		case '&':
			return "&amp;"
		case '<':
			return "&lt;"
		case '>':
			return "&gt;"
		case '\'':
			return "&#39;"
		case '"':
			return "&#34;"
		}
		return ""
	})
	return in.made(b.str())
}

func filterFloat(in *interp, v Value, a *args) Value {
	p := a.bind(in, "float", "default?")
	switch x := v.(type) {
	case Str:
		if f, err := strconv.ParseFloat(pyNumber(x.s), 64); err == nil || math.IsInf(f, 0) {
			return f
		}
	case *big.Int:
		f, _ := new(big.Float).SetInt(x).Float64()
		return f
	default:
		if _, f, _, ok := number(v); ok {
			return f
		}
		in.defined(v)
	}
	if !given(p[0]) {
		return 0.0
	}
	return p[0]
}

// pyNumber converts a number in Python's syntax for Go's parsers: trimmed, with "_" between digits,
// and without hexadecimal floats.
func pyNumber(s string) string {
	s = strings.TrimFunc(s, isSpace)
	if strings.ContainsAny(s, "xX") || strings.Contains(s, "__") || strings.HasPrefix(s, "_") || strings.HasSuffix(s, "_") {
		return ""
	}
	return strings.ReplaceAll(s, "_", "")
}

func filterInt(in *interp, v Value, a *args) Value {
	p := a.bind(in, "int", "default?", "base?")
	switch x := v.(type) {
	case Str:
		s, base := strings.ToLower(strings.TrimFunc(x.s, isSpace)), in.wantInt("int", p[1], 10)
		if base < 2 || base > 36 {
			in.fail("int() base must be >= 2 and <= 36")
		}
		for prefix, b := range map[string]int{"0x": 16, "0o": 8, "0b": 2} {
			if base == b {
				s = strings.TrimPrefix(s, prefix)
			}
		}
		if base == 10 {
			s = pyNumber(s)
		}
		if i, err := strconv.ParseInt(s, base, 64); err == nil {
			return i
		}
		if b, ok := new(big.Int).SetString(s, base); ok && len(s) <= maxIntDigits {
			return b
		}
		if f, err := strconv.ParseFloat(pyNumber(x.s), 64); err == nil && math.Abs(f) < 1<<63 {
			return int64(f)
		}
	case *big.Int:
		return x
	default:
		i, f, isInt, ok := number(v)
		if ok && isInt {
			return i
		}
		if ok && math.Abs(f) < 1<<63 {
			return int64(f)
		}
		in.defined(v)
	}
	if !given(p[0]) {
		return int64(0)
	}
	return p[0]
}

func filterRound(in *interp, v Value, a *args) Value {
	p := a.bind(in, "round", "precision?", "method?")
	digits, method := in.wantInt("round", p[0], 0), "common"
	if given(p[1]) {
		method = in.wantStr("round", p[1]).s
	}
	i, f, isInt, ok := number(v)
	switch {
	case !ok:
		in.defined(v)
		in.fail("round needs a number, not '%s'", typeName(v))
	case digits < -300 || digits > 300:
		in.fail("round to %d digits", digits)
	case method == "common" && isInt && digits >= 0:
		return i
	case method == "common":
		if digits >= 0 {
			r, _ := strconv.ParseFloat(strconv.FormatFloat(f, 'f', digits, 64), 64)
			return r
		}
		scale := math.Pow(10, float64(-digits))
		if r := math.RoundToEven(f/scale) * scale; !isInt {
			return r
		} else if math.Abs(r) < 1<<63 {
			return int64(r)
		}
	case method == "ceil" || method == "floor":
		scale := math.Pow(10, float64(digits))
		if method == "ceil" {
			return math.Ceil(f*scale) / scale
		}
		return math.Floor(f*scale) / scale
	}
	in.fail("round: the method must be common, ceil or floor")
	return nil
}

func filterString(in *interp, v Value, a *args) Value {
	a.bind(in, "string")
	return in.str(v)
}

func filterLength(in *interp, v Value, a *args) Value {
	a.bind(in, "length")
	switch v := v.(type) {
	case Str:
		return int64(v.runes())
	case *Dict:
		return int64(v.Len())
	case *Undefined:
		return int64(0)
	case *List:
		if v.sized() {
			return int64(len(v.items))
		}
	}
	in.fail("object of type '%s' has no len()", typeName(v))
	return nil
}

func filterItems(in *interp, v Value, a *args) Value {
	a.bind(in, "items")
	switch v := v.(type) {
	case *Undefined:
		return generator(nil)
	case *Dict:
		in.charge(64 * v.Len())
		return generator(v.items())
	}
	in.fail("Can only get item pairs from a mapping.")
	return nil
}

func filterReverse(in *interp, v Value, a *args) Value {
	a.bind(in, "reverse")
	if s, ok := v.(Str); ok {
		in.charge(40 * len(s.s))
		chars := s.chars()
		for i, j := 0, len(chars)-1; i < j; i, j = i+1, j-1 {
			chars[i], chars[j] = chars[j], chars[i]
		}
		return joinStr(chars, Str{})
	}
	items := in.iterate(v)
	in.charge(16 * len(items))
	r := generator(make([]Value, len(items)))
	r.name = "list_reverseiterator"
	for i, x := range items {
		r.items[len(items)-1-i] = x
	}
	return r
}
