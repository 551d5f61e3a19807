package jinja

import (
	"math"
	"math/big"
	"strconv"
	"strings"

	"github.com/shoal-llm/shoal/internal/text/jinja/python"
)

type filterFunc func(in *interp, v python.Value, a *args) python.Value

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

func (in *interp) filter(name string, v python.Value, a *args) python.Value {
	f, ok := filters[name]
	if !ok {
		in.Fail("No filter named '%s'", name)
	}
	in.Step(1)
	if s, ok := v.(python.Str); ok {
		in.Scan(s)
	}
	return f(in, v, a)
}

// onStr returns a filter that prints its operand and calls a method of str.
func onStr(method string) filterFunc {
	return func(in *interp, v python.Value, a *args) python.Value {
		return strMethods[method](in, in.Str(v), a)
	}
}

func filterAbs(in *interp, v python.Value, a *args) python.Value {
	a.bind(in, "abs")
	if b, ok := v.(*big.Int); ok {
		return python.Integer(new(big.Int).Abs(b))
	}
	i, f, isInt, ok := python.Number(v)
	switch {
	case !ok:
		in.defined(v)
		in.Fail("bad operand type for abs(): '%s'", python.TypeName(v))
	case !isInt:
		return math.Abs(f)
	case i < 0:
		return in.checked(-i, i == math.MinInt64)
	}
	return i
}

func filterAttr(in *interp, v python.Value, a *args) python.Value {
	name := in.wantStr("attr", a.bind(in, "attr", "name")[0])
	if r, ok := in.attribute(v, name.Text); ok {
		return r
	}
	return missing(v, "attribute", name.Text)
}

func filterDefault(in *interp, v python.Value, a *args) python.Value {
	p := a.bind(in, "default", "default_value?", "boolean?")
	_, undef := v.(*python.Undefined)
	if undef || (optBool(p[1]) && !python.Truth(v)) {
		if !given(p[0]) {
			return python.Str{}
		}
		return p[0]
	}
	return v
}

func filterEscape(in *interp, v python.Value, a *args) python.Value {
	a.bind(in, "escape")
	var b python.Builder
	python.EscapeInto(&b, in.Str(v), func(r rune, _ int) string {
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
	return in.Made(b.Str())
}

func filterFloat(in *interp, v python.Value, a *args) python.Value {
	p := a.bind(in, "float", "default?")
	switch x := v.(type) {
	case python.Str:
		if f, err := strconv.ParseFloat(pyNumber(x.Text), 64); err == nil || math.IsInf(f, 0) {
			return f
		}
	case *big.Int:
		f, _ := new(big.Float).SetInt(x).Float64()
		return f
	default:
		if _, f, _, ok := python.Number(v); ok {
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
	s = strings.TrimFunc(s, python.IsSpace)
	if strings.ContainsAny(s, "xX") || strings.Contains(s, "__") || strings.HasPrefix(s, "_") || strings.HasSuffix(s, "_") {
		return ""
	}
	return strings.ReplaceAll(s, "_", "")
}

func filterInt(in *interp, v python.Value, a *args) python.Value {
	p := a.bind(in, "int", "default?", "base?")
	switch x := v.(type) {
	case python.Str:
		s, base := strings.ToLower(strings.TrimFunc(x.Text, python.IsSpace)), in.wantInt("int", p[1], 10)
		if base < 2 || base > 36 {
			in.Fail("int() base must be >= 2 and <= 36")
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
		if b, ok := new(big.Int).SetString(s, base); ok && len(s) <= python.MaxIntDigits {
			return b
		}
		if f, err := strconv.ParseFloat(pyNumber(x.Text), 64); err == nil && !math.IsInf(f, 0) && !math.IsNaN(f) {
			return python.WholeOf(f)
		}
	case *big.Int:
		return x
	default:
		i, f, isInt, ok := python.Number(v)
		if ok && isInt {
			return i
		}
		if ok && !math.IsInf(f, 0) && !math.IsNaN(f) {
			return python.WholeOf(f)
		}
		in.defined(v)
	}
	if !given(p[0]) {
		return int64(0)
	}
	return p[0]
}

func filterRound(in *interp, v python.Value, a *args) python.Value {
	p := a.bind(in, "round", "precision?", "method?")
	digits, method := in.wantInt("round", p[0], 0), "common"
	if given(p[1]) {
		method = in.wantStr("round", p[1]).Text
	}
	if b, ok := v.(*big.Int); ok && method == "common" && digits >= 0 {
		return b
	}
	i, f, isInt, ok := python.Number(v)
	switch {
	case !ok:
		in.defined(v)
		in.Fail("round needs a number, not '%s'", python.TypeName(v))
	case digits < -300 || digits > 300:
		in.Fail("round to %d digits", digits)
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
		whole := math.Floor(f * scale)
		if method == "ceil" {
			whole = math.Ceil(f * scale)
		}
		return (whole + 0) / scale // Python's are integers, which have no negative zero
	}
	in.Fail("round: the method must be common, ceil or floor")
	return nil
}

func filterString(in *interp, v python.Value, a *args) python.Value {
	a.bind(in, "string")
	return in.Str(v)
}

func filterLength(in *interp, v python.Value, a *args) python.Value {
	a.bind(in, "length")
	switch v := v.(type) {
	case python.Str:
		return int64(v.Runes())
	case *python.Dict:
		return int64(v.Len())
	case *python.Undefined:
		return int64(0)
	case *python.List:
		if v.Sized() {
			return int64(len(v.Items))
		}
	}
	in.Fail("object of type '%s' has no len()", python.TypeName(v))
	return nil
}

func filterItems(in *interp, v python.Value, a *args) python.Value {
	a.bind(in, "items")
	switch v := v.(type) {
	case *python.Undefined:
		return python.Generator(nil)
	case *python.Dict:
		in.Charge(64 * v.Len())
		return python.Generator(v.Items())
	}
	in.Fail("Can only get item pairs from a mapping.")
	return nil
}

func filterReverse(in *interp, v python.Value, a *args) python.Value {
	a.bind(in, "reverse")
	if s, ok := v.(python.Str); ok {
		in.Charge(40 * len(s.Text))
		chars := s.Chars()
		for i, j := 0, len(chars)-1; i < j; i, j = i+1, j-1 {
			chars[i], chars[j] = chars[j], chars[i]
		}
		return python.JoinStr(chars, python.Str{})
	}
	items := in.iterate(v)
	in.Charge(16 * len(items))
	r := python.Generator(make([]python.Value, len(items)))
	r.Name = "list_reverseiterator"
	for i, x := range items {
		r.Items[len(items)-1-i] = x
	}
	return r
}
