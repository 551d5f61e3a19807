package jinja

import (
	"cmp"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// strFormat implements str.format: fields in braces with attributes, items, conversions, and format
// specs for numbers and strings.
func strFormat(in *interp, s Str, a *args) Value {
	f := &fields{args: a}
	return in.made(f.fill(in, s, 0))
}

type fields struct {
	args   *args
	next   int
	byHand bool // fields have explicit numbers
}

func (f *fields) fill(in *interp, s Str, depth int) Str {
	if depth > 1 {
		in.fail("Max string recursion exceeded")
	}
	var b builder
	for i := 0; i < len(s.s); {
		at := strings.IndexAny(s.s[i:], "{}")
		if at < 0 {
			b.add(s.slice(i, len(s.s)))
			break
		}
		b.add(s.slice(i, i+at))
		i += at
		if i+1 < len(s.s) && s.s[i+1] == s.s[i] {
			b.add(s.slice(i, i+1))
			i += 2
			continue
		}
		if s.s[i] == '}' {
			in.fail("Single '}' encountered in format string")
		}
		end, open := i+1, 1
		for ; end < len(s.s) && open > 0; end++ {
			switch s.s[end] {
			case '{':
				open++
			case '}':
				open--
			}
		}
		if open > 0 {
			in.fail("expected '}' before end of string")
		}
		b.add(f.field(in, s.slice(i+1, end-1), depth))
		i = end
	}
	return b.str()
}

// field formats the text between braces: name!conversion:spec.
func (f *fields) field(in *interp, s Str, depth int) Str {
	in.step(1)
	name, spec, conversion := s, Str{}, ""
	depthOf := 0
	for i, c := range s.s {
		if c == '[' {
			depthOf++
		} else if c == ']' {
			depthOf--
		}
		if (c == '!' || c == ':') && depthOf <= 0 {
			name = s.slice(0, i)
			rest := s.slice(i+1, len(s.s))
			if c == '!' {
				var found bool
				conversion, _, found = strings.Cut(rest.s, ":")
				if found {
					spec = rest.slice(len(conversion)+1, len(rest.s))
				}
			} else {
				spec = rest
			}
			break
		}
	}
	v := f.value(in, name.s)
	switch conversion {
	case "":
		if strings.Contains(s.s, "!") && len(name.s) < len(s.s) && s.s[len(name.s)] == '!' {
			in.fail("unmatched '{' in format spec")
		}
	case "s":
		v = in.str(v)
	case "r", "a":
		v = in.repr(v)
	default:
		in.fail("Unknown conversion specifier %s", oneLine(conversion))
	}
	if spec.s != "" {
		spec = f.fill(in, spec, depth+1)
	}
	return in.formatted(v, spec.s)
}

// value looks up name, 0, name.attribute or name[item].
func (f *fields) value(in *interp, path string) Value {
	end := strings.IndexAny(path, ".[")
	if end < 0 {
		end = len(path)
	}
	first, rest := path[:end], path[end:]
	var v Value
	switch n, err := strconv.Atoi(first); {
	case first == "" || err == nil && isDigit(first[0]):
		if first == "" {
			n = f.next
			f.next++
		}
		if byHand := first != ""; byHand && f.next > 0 || !byHand && f.byHand {
			in.fail("cannot switch between manual field specification and automatic field numbering")
		} else if byHand {
			f.byHand = true
		}
		if n >= len(f.args.pos) {
			in.fail("Replacement index %d out of range for positional args tuple", n)
		}
		v = f.args.pos[n]
	default:
		i := f.args.find(first)
		if i < 0 {
			in.fail("format: no value for '%s'", oneLine(first))
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
			in.fail("Missing ']' in format string")
		}
		var key Value = Trusted(rest[1:end])
		if n, err := strconv.ParseInt(rest[1:end], 10, 64); err == nil && isDigit(rest[1]) {
			key = n
		}
		v = in.getitem(v, key)
		rest = rest[end+1:]
	}
	return v
}

// formatted implements format(v, spec): [[fill]align][sign][#][0][width][,_][.precision][type].
func (in *interp) formatted(v Value, spec string) Str {
	if spec == "" {
		return in.str(v)
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
	s, text := v.(Str)
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
			in.fail("Format specifier missing precision")
		}
		precision, at = in.digitsAt(spec, 0)
		spec = spec[at:]
	}
	if precision > maxPrecision {
		in.limit("digits of a formatted number", maxPrecision)
	}
	kind := take("bcdeEfFgGnosxX%")
	if spec != "" {
		in.fail("Invalid format specifier")
	}
	in.defined(v)
	var digits string
	switch {
	case text:
		if kind != "" && kind != "s" || sign != "" || comma != "" || alternate || align == "=" {
			in.fail("Invalid format specifier for object of type 'str'")
		}
		if precision >= 0 && precision < s.runes() {
			s = s.slice(0, s.offset(precision))
		}
	case kind == "c" && (sign != "" || alternate), comma != "" && strings.Contains("nsc", cmp.Or(kind, " ")), comma == "," && strings.Contains("boxX", cmp.Or(kind, " ")):
		in.fail("Invalid format specifier for a number")
	default:
		zeros := 0
		if align == "=" && fill == "0" {
			zeros = width
		}
		digits, s = in.formattedNumber(v, strings.Trim(sign, "-"), kind, precision, alternate, comma, zeros)
	}
	n := max(width-s.runes(), 0)
	pad := func(n int) Str { return in.fill(n, Trusted(fill)) }
	switch {
	case align == "<", align == "" && text:
		return joinStr([]Str{s, pad(n)}, Str{})
	case align == "^":
		return joinStr([]Str{pad(n / 2), s, pad(n - n/2)}, Str{})
	case align == "=":
		at := len(s.s) - len(digits)
		return joinStr([]Str{s.slice(0, at), pad(n), s.slice(at, len(s.s))}, Str{})
	}
	return joinStr([]Str{pad(n), s}, Str{})
}

// formattedNumber returns the sign and prefix of a number and its digits. sign is printed for a
// number that is not negative. Grouped digits get zeros to fill the width.
func (in *interp) formattedNumber(v Value, sign, kind string, precision int, alternate bool, comma string, width int) (digits string, whole Str) {
	long, _ := v.(*big.Int)
	i, f, isInt, ok := number(v)
	if !ok && long == nil {
		in.fail("unsupported format string passed to %s.__format__", typeName(v))
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
			in.fail("Precision not allowed in integer format specifier")
		}
		if kind == "c" {
			if i < 0 || i > utf8.MaxRune {
				in.fail("%%c arg not in range(0x110000)")
			}
			return "", Trusted(string(rune(i)))
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
		in.fail("Unknown format code '%s' for object of type '%s'", kind, typeName(v))
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
		in.charge(4 * max(width, 0))
		digits = grouped(digits, comma, size, width-len(prefix))
	}
	return digits, Trusted(prefix + digits)
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
		s := formatFloat(f)
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
