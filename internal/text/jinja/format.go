package jinja

import (
	"fmt"
	"math"
	"math/big"
	"strings"
	"unicode/utf8"

	"github.com/shoal-llm/shoal/internal/text/jinja/python"
)

const (
	maxPrecision = 1000    // maximum digits after the point
	maxWidth     = 1000000 // the limit of package fmt
)

// percent evaluates "text" % value: a tuple fills the directives in order, a dict by name.
func (in *interp) percent(s python.Str, v python.Value) python.Str {
	list, isTuple := v.(*python.List)
	isTuple = isTuple && list.Kind == python.KindTuple
	dict, _ := v.(*python.Dict)
	used := 0
	next := func() python.Value {
		if isTuple {
			if used >= len(list.Items) {
				in.Fail("not enough arguments for format string")
			}
			used++
			return list.Items[used-1]
		}
		if used++; used > 1 {
			in.Fail("not enough arguments for format string")
		}
		return v
	}
	var b python.Builder
	for i := 0; i < len(s.Text); {
		j := strings.IndexByte(s.Text[i:], '%')
		if j < 0 {
			b.Add(s.Slice(i, len(s.Text)))
			break
		}
		b.Add(s.Slice(i, i+j))
		i += j + 1
		var value python.Value
		named := false
		if i < len(s.Text) && s.Text[i] == '(' {
			end := strings.IndexByte(s.Text[i:], ')')
			if end < 0 {
				in.Fail("incomplete format key")
			}
			if dict == nil {
				in.Fail("format requires a mapping")
			}
			key := s.Text[i+1 : i+end]
			got, ok := dict.Get(key)
			if !ok {
				in.Fail("format: no value for '%s'", oneLine(key))
			}
			value, named = got, true
			i += end + 1
		}
		var d directive
		for ; i < len(s.Text) && strings.IndexByte("-+ #0", s.Text[i]) >= 0; i++ {
			d.flags += s.Text[i : i+1]
		}
		d.width, i = in.digitsAt(s.Text, i)
		d.precision = -1
		if i < len(s.Text) && s.Text[i] == '.' {
			d.precision, i = in.digitsAt(s.Text, i+1)
		}
		if i >= len(s.Text) {
			in.Fail("incomplete format")
		}
		d.kind = s.Text[i]
		i++
		if d.kind == '%' {
			b.Raw("%")
			continue
		}
		if !named {
			value = next()
		}
		b.Add(d.of(in, value))
	}
	if (isTuple && used < len(list.Items)) || (!isTuple && dict == nil && used == 0 && !isListLike(v)) {
		in.Fail("not all arguments converted during string formatting")
	}
	return in.Made(b.Str())
}

func isListLike(v python.Value) bool { _, ok := v.(*python.List); return ok }

func (in *interp) digitsAt(s string, i int) (int, int) {
	n := 0
	for ; i < len(s) && isDigit(s[i]); i++ {
		if n = n*10 + int(s[i]-'0'); n > maxWidth {
			in.Exceed("width of a format", maxWidth)
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

func (d directive) of(in *interp, v python.Value) python.Str {
	switch d.kind {
	case 's':
		return d.text(in, in.Str(v))
	case 'c':
		d.precision = -1 // Python ignores it
		return d.text(in, in.char(v))
	case 'r', 'a':
		return d.text(in, in.Repr(v))
	}
	in.Charge(4 * d.width)
	if d.precision > maxPrecision {
		in.Exceed("digits of a formatted number", maxPrecision)
	}
	i, f, isInt, ok := python.Number(v)
	if _, long := v.(*big.Int); !ok && (!long || strings.IndexByte("diu", d.kind) < 0) {
		in.defined(v)
		in.Fail("%%%c format: a number is required, not %s", d.kind, python.TypeName(v))
	}
	var x any = i
	switch d.kind {
	case 'd', 'i', 'u':
		d.kind = 'd'
		if !ok {
			x = v
		} else if !isInt {
			if math.IsNaN(f) || math.Abs(f) >= 1<<63 {
				in.Fail("cannot convert float %s to integer", python.FormatFloat(f))
			}
			x = int64(f)
		}
	case 'x', 'X', 'o':
		if !isInt {
			in.Fail("%%%c format: an integer is required, not float", d.kind)
		}
	case 'f', 'F', 'e', 'E', 'g', 'G':
		x = f
		if d.precision < 0 {
			d.precision = 6
		}
	default:
		in.Fail("unsupported format character '%c'", d.kind)
	}
	precision := ""
	if d.precision >= 0 {
		precision = fmt.Sprintf(".%d", d.precision)
	}
	return python.Trusted(fmt.Sprintf(fmt.Sprintf("%%%s%d%s%c", d.flags, d.width, precision, d.kind), x))
}

// char returns the output of %c: a code point, or a string of one.
func (in *interp) char(v python.Value) python.Str {
	if s, ok := v.(python.Str); ok && s.Runes() == 1 {
		return s
	}
	in.defined(v)
	i, _, isInt, ok := python.Number(v)
	if _, long := v.(*big.Int); long || ok && isInt && (i < 0 || i > utf8.MaxRune) {
		in.Fail("%%c arg not in range(0x110000)")
	} else if !ok || !isInt {
		in.Fail("%%c requires int or char")
	} else if !utf8.ValidRune(rune(i)) {
		in.Fail("%%c of the surrogate 0x%x is no text", i)
	}
	return python.Trusted(string(rune(i)))
}

// text returns at most precision code points of t, padded to width.
func (d directive) text(in *interp, t python.Str) python.Str {
	if d.precision >= 0 && d.precision < t.Runes() {
		t = t.Slice(0, t.Offset(d.precision))
	}
	n := max(0, d.width-t.Runes())
	in.Charge(4 * n)
	pad := python.Trusted(strings.Repeat(" ", n))
	if strings.Contains(d.flags, "-") {
		return python.JoinStr([]python.Str{t, pad}, python.Str{})
	}
	return python.JoinStr([]python.Str{pad, t}, python.Str{})
}
