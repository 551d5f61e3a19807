package jinja

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

const maxPrecision = 1000 // digits after the point in a format

// percent is "text" % value: a tuple fills the directives in order, a dict by name.
func (in *interp) percent(s Str, v Value) Str {
	list, isTuple := v.(*List)
	isTuple = isTuple && list.kind == kindTuple
	dict, _ := v.(*Dict)
	used := 0
	next := func() Value {
		if isTuple {
			if used >= len(list.items) {
				in.fail("not enough arguments for format string")
			}
			used++
			return list.items[used-1]
		}
		if used++; used > 1 {
			in.fail("not enough arguments for format string")
		}
		return v
	}
	var b builder
	for i := 0; i < len(s.s); {
		j := strings.IndexByte(s.s[i:], '%')
		if j < 0 {
			b.add(s.slice(i, len(s.s)))
			break
		}
		b.add(s.slice(i, i+j))
		i += j + 1
		var value Value
		named := false
		if i < len(s.s) && s.s[i] == '(' {
			end := strings.IndexByte(s.s[i:], ')')
			if end < 0 {
				in.fail("incomplete format key")
			}
			if dict == nil {
				in.fail("format requires a mapping")
			}
			key := s.s[i+1 : i+end]
			got, ok := dict.Get(key)
			if !ok {
				in.fail("format: no value for '%s'", oneLine(key))
			}
			value, named = got, true
			i += end + 1
		}
		f := formatSpec{fill: ' ', precision: -1}
		for ; i < len(s.s) && strings.IndexByte("-+ #0", s.s[i]) >= 0; i++ {
			switch s.s[i] {
			case '-':
				f.align = '<'
			case '+', ' ':
				f.sign = s.s[i]
			case '0':
				f.zero = true
			}
		}
		f.width, i = in.digitsAt(s.s, i)
		if i < len(s.s) && s.s[i] == '.' {
			f.precision, i = in.digitsAt(s.s, i+1)
		}
		if i >= len(s.s) {
			in.fail("incomplete format")
		}
		c := s.s[i]
		i++
		if c == '%' {
			b.raw("%")
			continue
		}
		if !named {
			value = next()
		}
		b.add(in.directive(f, c, value))
	}
	if (isTuple && used < len(list.items)) || (!isTuple && dict == nil && used == 0 && !isListLike(v)) {
		in.fail("not all arguments converted during string formatting")
	}
	return in.made(b.str())
}

func isListLike(v Value) bool { _, ok := v.(*List); return ok }

func (in *interp) digitsAt(s string, i int) (int, int) {
	n := 0
	for ; i < len(s) && isDigit(s[i]); i++ {
		if n = n*10 + int(s[i]-'0'); n > 1<<30 {
			in.limit("a format is too wide", 1<<30)
		}
	}
	return n, i
}

func (in *interp) directive(f formatSpec, c byte, v Value) Str {
	switch c {
	case 's', 'r', 'a':
		t := in.str(v)
		if c != 's' {
			t = in.repr(v)
		}
		if f.align == 0 {
			f.align = '>'
		}
		f.zero = false
		return f.text(in, t)
	case 'd', 'i', 'u', 'x', 'X', 'o':
		if c == 'i' || c == 'u' {
			c = 'd'
		}
		if x, ok := v.(float64); ok && c == 'd' {
			if math.IsNaN(x) || math.Abs(x) >= 1<<63 {
				in.fail("cannot convert float %s to integer", formatFloat(x))
			}
			v = int64(x)
		}
	case 'f', 'F', 'e', 'E', 'g', 'G':
	case 'c':
		return f.text(in, in.str(v))
	default:
		in.fail("unsupported format character '%c'", c)
	}
	f.kind = c
	return f.number(in, v)
}

// formatSpec is Python's format mini-language.
type formatSpec struct {
	fill             rune
	align            byte // < > ^ = or 0
	sign             byte // + space or 0
	zero, comma      bool
	width, precision int // precision -1: unset
	kind             byte
}

func (in *interp) parseSpec(s string) formatSpec {
	f := formatSpec{fill: ' ', precision: -1}
	if r, n := utf8.DecodeRuneInString(s); n < len(s) && n > 0 && strings.IndexByte("<>^=", s[n]) >= 0 {
		f.fill, f.align = r, s[n]
		s = s[n+1:]
	} else if s != "" && strings.IndexByte("<>^=", s[0]) >= 0 {
		f.align = s[0]
		s = s[1:]
	}
	if s != "" && strings.IndexByte("+- ", s[0]) >= 0 {
		if s[0] != '-' {
			f.sign = s[0]
		}
		s = s[1:]
	}
	if strings.HasPrefix(s, "0") {
		f.zero = true
		s = s[1:]
	}
	i := 0
	f.width, i = in.digitsAt(s, 0)
	s = s[i:]
	if strings.HasPrefix(s, ",") {
		f.comma = true
		s = s[1:]
	}
	if strings.HasPrefix(s, ".") {
		f.precision, i = in.digitsAt(s, 1)
		s = s[i:]
	}
	if len(s) == 1 {
		f.kind = s[0]
	} else if s != "" {
		in.fail("Invalid format specifier")
	}
	return f
}

func (f formatSpec) apply(in *interp, v Value) Str {
	if _, _, _, ok := number(v); ok && f.kind != 's' {
		if _, b := v.(bool); !b || f.kind != 0 {
			return f.number(in, v)
		}
	}
	if f.kind != 0 && f.kind != 's' {
		in.fail("Unknown format code '%c' for object of type '%s'", f.kind, typeName(v))
	}
	return f.text(in, in.str(v))
}

func (f formatSpec) text(in *interp, t Str) Str {
	if f.precision >= 0 && f.precision < t.runes() {
		t = t.slice(0, t.offset(f.precision))
	}
	return f.padded(in, t, '<')
}

func (f formatSpec) padded(in *interp, t Str, otherwise byte) Str {
	align := f.align
	if align == 0 {
		align = otherwise
	}
	switch align {
	case '<':
		return in.pad(t, f.width, f.fill, padRight)
	case '^':
		n := max(f.width-t.runes(), 0)
		t = in.pad(t, t.runes()+n/2, f.fill, padLeft)
		return in.pad(t, f.width, f.fill, padRight)
	}
	return in.pad(t, f.width, f.fill, padLeft)
}

func (f formatSpec) number(in *interp, v Value) Str {
	digits := f.digits(in, v)
	sign := ""
	if strings.HasPrefix(digits, "-") {
		sign, digits = "-", digits[1:]
	} else if f.sign != 0 {
		sign = string(rune(f.sign))
	}
	if f.comma {
		digits = commas(digits)
	}
	if f.align == '=' || (f.zero && f.align == 0) {
		fill := f.fill
		if f.zero {
			fill = '0'
		}
		return in.pad(Trusted(digits), f.width-len(sign), fill, padLeft).prefixed(sign)
	}
	return f.padded(in, Trusted(sign+digits), '>')
}

func (t Str) prefixed(s string) Str { return joinStr([]Str{Trusted(s), t}, Str{}) }

func (f formatSpec) digits(in *interp, v Value) string {
	if b, ok := v.(*big.Int); ok && (f.kind == 0 || f.kind == 'd') {
		return b.String()
	}
	i, x, isInt, ok := number(v)
	if !ok {
		in.defined(v)
		in.fail("%%%c format: a number is required, not %s", f.kind, typeName(v))
	}
	precision := f.precision
	if precision > maxPrecision {
		in.limit("digits of a formatted number", maxPrecision)
	}
	switch f.kind {
	case 'd', 'x', 'X', 'o', 'b':
		if !isInt {
			in.fail("Unknown format code '%c' for object of type 'float'", f.kind)
		}
		s := strconv.FormatInt(i, map[byte]int{'d': 10, 'x': 16, 'X': 16, 'o': 8, 'b': 2}[f.kind])
		if f.kind == 'X' {
			s = strings.ToUpper(s)
		}
		return s
	case 0:
		if isInt {
			return strconv.FormatInt(i, 10)
		}
		if precision < 0 {
			return formatFloat(x)
		}
		return general(x, precision, 'g')
	case 'f', 'F', 'e', 'E', '%':
		if precision < 0 {
			precision = 6
		}
		if f.kind == '%' {
			return strconv.FormatFloat(x*100, 'f', precision, 64) + "%"
		}
		return strconv.FormatFloat(x, map[byte]byte{'f': 'f', 'F': 'f', 'e': 'e', 'E': 'E'}[f.kind], precision, 64)
	case 'g', 'G':
		if precision < 0 {
			precision = 6
		}
		return general(x, precision, f.kind)
	}
	in.fail("Unknown format code '%c' for object of type '%s'", f.kind, typeName(v))
	return ""
}

// general is C's %g: significant digits, no trailing zeros.
func general(x float64, precision int, kind byte) string {
	return strconv.FormatFloat(x, kind, max(precision, 1), 64)
}

func commas(s string) string {
	whole, frac, dot := strings.Cut(s, ".")
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if dot {
		return whole + "." + frac
	}
	return whole
}
