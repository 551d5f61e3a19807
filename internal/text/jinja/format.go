package jinja

import (
	"fmt"
	"math"
	"math/big"
	"strings"
	"unicode/utf8"
)

const (
	maxPrecision = 1000    // maximum digits after the point
	maxWidth     = 1000000 // the limit of package fmt
)

// percent evaluates "text" % value: a tuple fills the directives in order, a dict by name.
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
		var d directive
		for ; i < len(s.s) && strings.IndexByte("-+ #0", s.s[i]) >= 0; i++ {
			d.flags += s.s[i : i+1]
		}
		d.width, i = in.digitsAt(s.s, i)
		d.precision = -1
		if i < len(s.s) && s.s[i] == '.' {
			d.precision, i = in.digitsAt(s.s, i+1)
		}
		if i >= len(s.s) {
			in.fail("incomplete format")
		}
		d.kind = s.s[i]
		i++
		if d.kind == '%' {
			b.raw("%")
			continue
		}
		if !named {
			value = next()
		}
		b.add(d.of(in, value))
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
		if n = n*10 + int(s[i]-'0'); n > maxWidth {
			in.limit("width of a format", maxWidth)
		}
	}
	return n, i
}

// directive is %[flags][width][.precision]kind.
type directive struct {
	flags            string
	width, precision int // precision -1: unset
	kind             byte
}

func (d directive) of(in *interp, v Value) Str {
	switch d.kind {
	case 's':
		return d.text(in, in.str(v))
	case 'c':
		d.precision = -1 // Python ignores it
		return d.text(in, in.char(v))
	case 'r', 'a':
		return d.text(in, in.repr(v))
	}
	in.charge(4 * d.width)
	if d.precision > maxPrecision {
		in.limit("digits of a formatted number", maxPrecision)
	}
	i, f, isInt, ok := number(v)
	if _, long := v.(*big.Int); !ok && (!long || strings.IndexByte("diu", d.kind) < 0) {
		in.defined(v)
		in.fail("%%%c format: a number is required, not %s", d.kind, typeName(v))
	}
	var x any = i
	switch d.kind {
	case 'd', 'i', 'u':
		d.kind = 'd'
		if !ok {
			x = v
		} else if !isInt {
			if math.IsNaN(f) || math.Abs(f) >= 1<<63 {
				in.fail("cannot convert float %s to integer", formatFloat(f))
			}
			x = int64(f)
		}
	case 'x', 'X', 'o':
		if !isInt {
			in.fail("%%%c format: an integer is required, not float", d.kind)
		}
	case 'f', 'F', 'e', 'E', 'g', 'G':
		x = f
		if d.precision < 0 {
			d.precision = 6
		}
	default:
		in.fail("unsupported format character '%c'", d.kind)
	}
	precision := ""
	if d.precision >= 0 {
		precision = fmt.Sprintf(".%d", d.precision)
	}
	return Trusted(fmt.Sprintf(fmt.Sprintf("%%%s%d%s%c", d.flags, d.width, precision, d.kind), x))
}

// char returns the output of %c: a code point, or a string of one.
func (in *interp) char(v Value) Str {
	if s, ok := v.(Str); ok && s.runes() == 1 {
		return s
	}
	in.defined(v)
	i, _, isInt, ok := number(v)
	if _, long := v.(*big.Int); long || ok && isInt && (i < 0 || i > utf8.MaxRune) {
		in.fail("%%c arg not in range(0x110000)")
	} else if !ok || !isInt {
		in.fail("%%c requires int or char")
	} else if !utf8.ValidRune(rune(i)) {
		in.fail("%%c of the surrogate 0x%x is no text", i)
	}
	return Trusted(string(rune(i)))
}

// text returns at most precision code points of t, padded to width.
func (d directive) text(in *interp, t Str) Str {
	if d.precision >= 0 && d.precision < t.runes() {
		t = t.slice(0, t.offset(d.precision))
	}
	n := max(0, d.width-t.runes())
	in.charge(4 * n)
	pad := Trusted(strings.Repeat(" ", n))
	if strings.Contains(d.flags, "-") {
		return joinStr([]Str{t, pad}, Str{})
	}
	return joinStr([]Str{pad, t}, Str{})
}
