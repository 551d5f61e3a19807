package jinja

import (
	"fmt"
	"strings"

	"github.com/shoal-llm/shoal/internal/text/jinja/python"
)

func filterCenter(in *interp, v python.Value, a *args) python.Value {
	width := a.bind(in, "center", "width?")[0]
	if !given(width) {
		width = int64(80)
	}
	return strMethods["center"](in, in.Str(v), &args{pos: []python.Value{width}})
}

func filterTruncate(in *interp, v python.Value, a *args) python.Value {
	p := a.bind(in, "truncate", "length?", "killwords?", "end?", "leeway?")
	s, end := in.wantStr("truncate", v), python.Trusted("...")
	if given(p[2]) {
		end = in.wantStr("truncate", p[2])
	}
	length, leeway := in.wantInt("truncate", p[0], 255), 5
	if orNone(p[3]) != nil {
		leeway = in.wantInt("truncate", p[3], 5)
	}
	room := length - end.Runes()
	switch {
	case room < 0:
		in.Fail("expected length >= %d, got %d", end.Runes(), length)
	case leeway < 0:
		in.Fail("expected leeway >= 0, got %d", leeway)
	case s.Runes() <= length+leeway:
		return s
	}
	s = s.Slice(0, s.Offset(room))
	if at := strings.LastIndexByte(s.Text, ' '); at >= 0 && !optBool(p[1]) {
		s = s.Slice(0, at)
	}
	return in.Made(python.JoinStr([]python.Str{s, end}, python.Str{}))
}

func filterWordCount(in *interp, v python.Value, a *args) python.Value {
	a.bind(in, "wordcount")
	n, inside := int64(0), false
	for _, r := range in.Str(v).Text {
		word := isWord(r)
		if word && !inside {
			n++
		}
		inside = word
	}
	return n
}

// filterURLEncode quotes text for a URL, or pairs for a query.
func filterURLEncode(in *interp, v python.Value, a *args) python.Value {
	a.bind(in, "urlencode")
	var pairs []python.Value
	switch x := v.(type) {
	case *python.Dict:
		pairs = x.Items()
	case *python.List:
		pairs = in.iterate(v)
	default:
		return in.quoteURL(in.Str(v), "/")
	}
	var out []python.Str
	for _, pair := range pairs {
		two := in.iterate(pair)
		if len(two) != 2 {
			in.Fail("urlencode needs pairs, got %d values", len(two))
		}
		k, x := in.quoteURL(in.Str(two[0]), "+"), in.quoteURL(in.Str(two[1]), "+")
		out = append(out, python.JoinStr([]python.Str{k, x}, python.Trusted("=")))
	}
	return in.Made(python.JoinStr(out, python.Trusted("&")))
}

// quoteURL escapes all characters except letters, digits and _.-~. also "/" keeps slashes, also "+"
// encodes spaces as "+".
func (in *interp) quoteURL(s python.Str, also string) python.Str {
	in.Charge(3 * len(s.Text))
	var b python.Builder
	python.EscapeInto(&b, s, func(r rune, _ int) string {
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
	return in.Made(b.Str())
}
