package jinja

import (
	"cmp"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/shoal-llm/shoal/internal/text/jinja/python"
)

// strFormat implements str.format: fields in braces with attributes, items, conversions, and format
// specs for numbers and strings.
func strFormat(in *interp, s python.Str, a *args) python.Value {
	f := &fields{args: a}
	return in.Made(f.fill(in, s, 0))
}

type fields struct {
	args   *args
	next   int
	byHand bool // fields have explicit numbers
}

func (f *fields) fill(in *interp, s python.Str, depth int) python.Str {
	if depth > 1 {
		in.Fail("Max string recursion exceeded")
	}
	var b python.Builder
	for i := 0; i < len(s.Text); {
		at := strings.IndexAny(s.Text[i:], "{}")
		if at < 0 {
			b.Add(s.Slice(i, len(s.Text)))
			break
		}
		b.Add(s.Slice(i, i+at))
		i += at
		if i+1 < len(s.Text) && s.Text[i+1] == s.Text[i] {
			b.Add(s.Slice(i, i+1))
			i += 2
			continue
		}
		if s.Text[i] == '}' {
			in.Fail("Single '}' encountered in format string")
		}
		end, open := i+1, 1
		for ; end < len(s.Text) && open > 0; end++ {
			switch s.Text[end] {
			case '{':
				open++
			case '}':
				open--
			}
		}
		if open > 0 {
			in.Fail("expected '}' before end of string")
		}
		b.Add(f.field(in, s.Slice(i+1, end-1), depth))
		i = end
	}
	return b.Str()
}

// field formats the text between braces: name!conversion:spec.
func (f *fields) field(in *interp, s python.Str, depth int) python.Str {
	in.Step(1)
	name, spec, conversion := s, python.Str{}, ""
	depthOf := 0
	for i, c := range s.Text {
		if c == '[' {
			depthOf++
		} else if c == ']' {
			depthOf--
		}
		if (c == '!' || c == ':') && depthOf <= 0 {
			name = s.Slice(0, i)
			rest := s.Slice(i+1, len(s.Text))
			if c == '!' {
				var found bool
				conversion, _, found = strings.Cut(rest.Text, ":")
				if found {
					spec = rest.Slice(len(conversion)+1, len(rest.Text))
				}
			} else {
				spec = rest
			}
			break
		}
	}
	v := f.value(in, name.Text)
	switch conversion {
	case "":
		if strings.Contains(s.Text, "!") && len(name.Text) < len(s.Text) && s.Text[len(name.Text)] == '!' {
			in.Fail("unmatched '{' in format spec")
		}
	case "s":
		v = in.Str(v)
	case "r", "a":
		v = in.Repr(v)
	default:
		in.Fail("Unknown conversion specifier %s", oneLine(conversion))
	}
	if spec.Text != "" {
		spec = f.fill(in, spec, depth+1)
	}
	return in.formatted(v, spec.Text)
}

// value looks up name, 0, name.attribute or name[item].
func (f *fields) value(in *interp, path string) python.Value {
	end := strings.IndexAny(path, ".[")
	if end < 0 {
		end = len(path)
	}
	first, rest := path[:end], path[end:]
	var v python.Value
	switch n, err := strconv.Atoi(first); {
	case first == "" || err == nil && isDigit(first[0]):
		if first == "" {
			n = f.next
			f.next++
		}
		if byHand := first != ""; byHand && f.next > 0 || !byHand && f.byHand {
			in.Fail("cannot switch between manual field specification and automatic field numbering")
		} else if byHand {
			f.byHand = true
		}
		if n >= len(f.args.pos) {
			in.Fail("Replacement index %d out of range for positional args tuple", n)
		}
		v = f.args.pos[n]
	default:
		i := f.args.find(first)
		if i < 0 {
			in.Fail("format: no value for '%s'", oneLine(first))
		}
		v = f.args.named[i].value
	}
	for rest != "" {
		if rest[0] == '.' {
			end := strings.IndexAny(rest[1:], ".[") + 1
			if end == 0 {
				end = len(rest)
			}
			v = in.getattr(v, rest[1:end])
			rest = rest[end:]
			continue
		}
		end := strings.IndexByte(rest, ']')
		if end < 2 || rest[0] != '[' {
			in.Fail("Missing ']' in format string")
		}
		var key python.Value = python.Trusted(rest[1:end])
		if n, err := strconv.ParseInt(rest[1:end], 10, 64); err == nil && isDigit(rest[1]) {
			key = n
		}
		v = in.getitem(v, key)
		rest = rest[end+1:]
	}
	return v
}

// formatted implements format(v, spec): [[fill]align][sign][#][0][width][,_][.precision][type].
func (in *interp) formatted(v python.Value, spec string) python.Str {
	if spec == "" {
		return in.Str(v)
	}
	fill, align, sign := "", "", ""
	if r, n := utf8.DecodeRuneInString(spec); n < len(spec) && strings.IndexByte("<>=^", spec[n]) >= 0 {
		fill, align, spec = string(r), spec[n:n+1], spec[n+1:]
	} else if strings.IndexByte("<>=^", spec[0]) >= 0 {
		align, spec = spec[:1], spec[1:]
	}
	take := func(set string) string {
		if spec != "" && strings.IndexByte(set, spec[0]) >= 0 {
			c := spec[:1]
			spec = spec[1:]
			return c
		}
		return ""
	}
	sign = take("+- ")
	alternate := take("#") != ""
	s, text := v.(python.Str)
	if take("0") != "" {
		fill = cmp.Or(fill, "0")
		if align == "" && !text {
			align = "="
		}
	}
	fill = cmp.Or(fill, " ")
	width, at := in.digitsAt(spec, 0)
	spec = spec[at:]
	comma := take(",_")
	precision := -1
	if take(".") != "" {
		if spec == "" || !isDigit(spec[0]) {
			in.Fail("Format specifier missing precision")
		}
		precision, at = in.digitsAt(spec, 0)
		spec = spec[at:]
	}
	if precision > maxPrecision {
		in.Exceed("digits of a formatted number", maxPrecision)
	}
	kind := take("bcdeEfFgGnosxX%")
	if spec != "" {
		in.Fail("Invalid format specifier")
	}
	in.defined(v)
	var digits string
	switch {
	case text:
		if kind != "" && kind != "s" || sign != "" || comma != "" || alternate || align == "=" {
			in.Fail("Invalid format specifier for object of type 'str'")
		}
		if precision >= 0 && precision < s.Runes() {
			s = s.Slice(0, s.Offset(precision))
		}
	case kind == "c" && (sign != "" || alternate), comma != "" && strings.Contains("nsc", cmp.Or(kind, " ")),
		comma == "," && strings.Contains("boxX", cmp.Or(kind, " ")):
		in.Fail("Invalid format specifier for a number")
	default:
		zeros := 0
		if align == "=" && fill == "0" {
			zeros = width
		}
		digits, s = in.formattedNumber(v, strings.Trim(sign, "-"), kind, precision, alternate, comma, zeros)
	}
	n := max(width-s.Runes(), 0)
	pad := func(n int) python.Str { return in.fill(n, python.Trusted(fill)) }
	switch {
	case align == "<", align == "" && text:
		return python.JoinStr([]python.Str{s, pad(n)}, python.Str{})
	case align == "^":
		return python.JoinStr([]python.Str{pad(n / 2), s, pad(n - n/2)}, python.Str{})
	case align == "=":
		at := len(s.Text) - len(digits)
		return python.JoinStr([]python.Str{s.Slice(0, at), pad(n), s.Slice(at, len(s.Text))}, python.Str{})
	}
	return python.JoinStr([]python.Str{pad(n), s}, python.Str{})
}

// formattedNumber returns the sign and prefix of a number and its digits. sign is printed for a
// number that is not negative. Grouped digits get zeros to fill the width.
func (in *interp) formattedNumber(v python.Value, sign, kind string, precision int, alternate bool, comma string,
	width int) (digits string, whole python.Str) {
	long, _ := v.(*big.Int)
	i, f, isInt, ok := python.Number(v)
	if !ok && long == nil {
		in.Fail("unsupported format string passed to %s.__format__", python.TypeName(v))
	}
	isInt = isInt || long != nil
	if long == nil && isInt {
		long = big.NewInt(i)
	} else if long != nil {
		f, _ = new(big.Float).SetInt(long).Float64()
	}
	prefix := sign
	switch {
	case isInt && strings.Contains("dnboxXc", kind):
		if precision >= 0 {
			in.Fail("Precision not allowed in integer format specifier")
		}
		if kind == "c" {
			if i < 0 || i > utf8.MaxRune {
				in.Fail("%%c arg not in range(0x110000)")
			}
			return "", python.Trusted(string(rune(i)))
		}
		base := map[string]int{"b": 2, "o": 8, "x": 16, "X": 16}[kind]
		if base == 0 {
			base = 10
		} else if alternate {
			prefix += "0" + kind
		}
		digits = new(big.Int).Abs(long).Text(base)
		if kind == "X" {
			digits = strings.ToUpper(digits)
		}
		if long.Sign() < 0 {
			prefix = "-" + strings.TrimPrefix(prefix, sign)
		}
	case strings.Contains("boxXcsd", kind) && kind != "":
		in.Fail("Unknown format code '%s' for object of type '%s'", kind, python.TypeName(v))
	default:
		a := math.Abs(f)
		if math.Signbit(f) && !math.IsNaN(f) {
			prefix = "-"
		}
		digits = formattedFloat(a, kind, precision, alternate)
	}
	if comma != "" {
		size := 3
		if strings.Contains("boxX", cmp.Or(kind, " ")) {
			size = 4
		}
		in.Charge(4 * max(width, 0))
		digits = grouped(digits, comma, size, width-len(prefix))
	}
	return digits, python.Trusted(prefix + digits)
}

// formattedFloat formats a number that is not negative.
func formattedFloat(f float64, kind string, precision int, alternate bool) string {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		s := strings.ToLower(strings.TrimPrefix(fmt.Sprint(f), "+"))
		if kind == "%" {
			s += "%"
		}
		if kind == "F" || kind == "E" || kind == "G" {
			s = strings.ToUpper(s)
		}
		return s
	}
	bare := kind == ""
	pointed := func(mantissa, exponent string) string {
		if alternate && !strings.Contains(mantissa, ".") {
			mantissa += "."
		}
		return mantissa + exponent
	}
	if bare && precision < 0 {
		s := python.FormatFloat(f)
		if at := strings.IndexByte(s, 'e'); at >= 0 {
			return pointed(s[:at], s[at:])
		}
		return s
	}
	if precision < 0 {
		precision = 6
	}
	flag, percent := "", ""
	if alternate {
		flag = "#"
	}
	switch kind {
	case "", "n":
		kind = "g"
	case "%":
		f, kind, percent = f*100, "f", "%"
	}
	if (kind == "g" || kind == "G") && precision == 0 {
		precision = 1
	}
	if bare { // at least one digit after the point, so the exponent form starts one digit earlier
		s := strconv.FormatFloat(f, 'e', precision-1, 64)
		mantissa, exponent, _ := strings.Cut(s, "e")
		if n, err := strconv.Atoi(exponent); err == nil && n == precision-1 {
			if strings.Contains(mantissa, ".") && !alternate {
				mantissa = strings.TrimRight(strings.TrimRight(mantissa, "0"), ".")
			}
			return pointed(mantissa, "e"+exponent)
		}
	}
	s := fmt.Sprintf("%"+flag+"."+strconv.Itoa(precision)+kind, f)
	if bare && !strings.ContainsAny(s, ".e") {
		s += ".0"
	}
	return s + percent
}

// grouped inserts a mark between groups of digits before the point, and zero-pads them to a width.
func grouped(digits, mark string, size, width int) string {
	end := strings.IndexFunc(digits, func(r rune) bool { return !(r >= '0' && r <= '9' || size == 4 && r|0x20 >= 'a' && r|0x20 <= 'f') })
	if end < 0 {
		end = len(digits)
	}
	n := end
	for n+(n-1)/size+len(digits)-end < width {
		n++
	}
	digits = strings.Repeat("0", n-end) + digits
	var b strings.Builder
	for i := range n {
		if i > 0 && (n-i)%size == 0 {
			b.WriteString(mark)
		}
		b.WriteByte(digits[i])
	}
	return b.String() + digits[n:]
}
