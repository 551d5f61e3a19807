package jinja

import (
	"fmt"
	"strings"
)

func filterCenter(in *interp, v Value, a *args) Value {
	width := a.bind(in, "center", "width?")[0]
	if !given(width) {
		width = int64(80)
	}
	return strMethods["center"](in, in.str(v), &args{pos: []Value{width}})
}

func filterTruncate(in *interp, v Value, a *args) Value {
	p := a.bind(in, "truncate", "length?", "killwords?", "end?", "leeway?")
	s, end := in.wantStr("truncate", v), Trusted("...")
	if given(p[2]) {
		end = in.wantStr("truncate", p[2])
	}
	length, leeway := in.wantInt("truncate", p[0], 255), 5
	if orNone(p[3]) != nil {
		leeway = in.wantInt("truncate", p[3], 5)
	}
	room := length - end.runes()
	switch {
	case room < 0:
		in.fail("expected length >= %d, got %d", end.runes(), length)
	case leeway < 0:
		in.fail("expected leeway >= 0, got %d", leeway)
	case s.runes() <= length+leeway:
		return s
	}
	s = s.slice(0, s.offset(room))
	if at := strings.LastIndexByte(s.s, ' '); at >= 0 && !optBool(p[1], false) {
		s = s.slice(0, at)
	}
	return in.made(joinStr([]Str{s, end}, Str{}))
}

func filterWordCount(in *interp, v Value, a *args) Value {
	a.bind(in, "wordcount")
	n, inside := int64(0), false
	for _, r := range in.str(v).s {
		word := isWord(r)
		if word && !inside {
			n++
		}
		inside = word
	}
	return n
}

// filterURLEncode quotes text for a URL, or pairs for a query.
func filterURLEncode(in *interp, v Value, a *args) Value {
	a.bind(in, "urlencode")
	var pairs []Value
	switch x := v.(type) {
	case *Dict:
		pairs = x.items()
	case *List:
		pairs = in.iterate(v)
	default:
		return in.quoteURL(in.str(v), "/")
	}
	var out []Str
	for _, pair := range pairs {
		two := in.iterate(pair)
		if len(two) != 2 {
			in.fail("urlencode needs pairs, got %d values", len(two))
		}
		k, x := in.quoteURL(in.str(two[0]), "+"), in.quoteURL(in.str(two[1]), "+")
		out = append(out, joinStr([]Str{k, x}, Trusted("=")))
	}
	return in.made(joinStr(out, Trusted("&")))
}

// quoteURL escapes all characters except letters, digits and _.-~. also "/" keeps slashes, also "+"
// encodes spaces as "+".
func (in *interp) quoteURL(s Str, also string) Str {
	in.charge(3 * len(s.s))
	var b builder
	escapeInto(&b, s, func(r rune, _ int) string {
		switch {
		case r < 0x80 && (isDigit(byte(r)) || r|0x20 >= 'a' && r|0x20 <= 'z' || strings.ContainsRune("_.-~", r)), r == '/' && also == "/":
			return ""
		case r == ' ' && also == "+":
			return "+"
		}
		var out strings.Builder
		for _, c := range []byte(string(r)) {
			fmt.Fprintf(&out, "%%%02X", c)
		}
		return out.String()
	})
	return in.made(b.str())
}
