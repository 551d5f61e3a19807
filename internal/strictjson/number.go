package strictjson

import (
	"bytes"
	"strconv"
)

// Int parses a JSON number whose value is a 64-bit integer: 5, 5.0, 50e-1. The value is exact, even
// above 2^53.
func Int(number []byte) (int64, bool) {
	if x, err := strconv.ParseInt(string(number), 10, 64); err == nil && number[0] != '+' {
		return x, true
	}
	d, ok := parseDecimal(number)
	if !ok || d.exponent < 0 || d.exponent > 19 || len(d.digits)+int(d.exponent) > 19 {
		return 0, false
	}
	text := make([]byte, 0, 20)
	if d.negative {
		text = append(text, '-')
	}
	text = append(text, d.digits...)
	for range d.exponent {
		text = append(text, '0')
	}
	x, err := strconv.ParseInt(string(text), 10, 64)
	return x, err == nil
}

// decimal is the value of a JSON number: digits times ten to the exponent. The digits have no
// leading or trailing zeros, except that zero is "0".
type decimal struct {
	negative bool
	digits   []byte
	exponent int64
}

// parseDecimal returns false for anything but a JSON number, and for exponents of more than 15
// digits.
func parseDecimal(number []byte) (d decimal, ok bool) {
	rest := number
	rest, d.negative = bytes.CutPrefix(rest, []byte{'-'})
	mantissa, power := rest, []byte(nil)
	if i := bytes.IndexAny(rest, "eE"); i >= 0 {
		mantissa, power = rest[:i], bytes.TrimPrefix(rest[i+1:], []byte{'+'})
		if len(power) > 16 {
			return d, false
		}
		x, err := strconv.ParseInt(string(power), 10, 64)
		if err != nil {
			return d, false
		}
		d.exponent = x
	}
	whole, fraction, _ := bytes.Cut(mantissa, []byte{'.'})
	if len(whole) == 0 {
		return d, false
	}
	d.digits = append(append(make([]byte, 0, len(mantissa)), whole...), fraction...)
	for _, c := range d.digits {
		if c < '0' || c > '9' {
			return d, false
		}
	}
	d.exponent -= int64(len(fraction))
	d.digits = bytes.TrimLeft(d.digits, "0")
	before := len(d.digits)
	d.digits = bytes.TrimRight(d.digits, "0")
	d.exponent += int64(before - len(d.digits))
	if len(d.digits) == 0 {
		d = decimal{digits: []byte{'0'}}
	}
	return d, true
}

// canonicalNumber returns one spelling for all spellings of a value. A number with an absurd
// exponent keeps its own.
func canonicalNumber(number string) []byte {
	d, ok := parseDecimal([]byte(number))
	if !ok {
		return []byte(number)
	}
	var out []byte
	if d.negative {
		out = append(out, '-')
	}
	out = append(out, d.digits...)
	if d.exponent != 0 {
		out = strconv.AppendInt(append(out, 'e'), d.exponent, 10)
	}
	return out
}
