package jinja

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// str is Python's str(): the printed form of a value.
func (in *interp) str(v Value) Str {
	switch v := v.(type) {
	case Str:
		return v
	case *Undefined:
		return Str{}
	}
	return in.repr(v)
}

func (in *interp) repr(v Value) Str {
	var b builder
	in.writeRepr(&b, v)
	return in.made(b.str())
}

func (in *interp) writeRepr(b *builder, v Value) {
	in.enter()
	defer in.leave()
	in.roomFor(b)
	switch v := v.(type) {
	case nil:
		b.raw("None")
	case bool:
		if v {
			b.raw("True")
		} else {
			b.raw("False")
		}
	case int64:
		b.raw(strconv.FormatInt(v, 10))
	case *big.Int:
		b.raw(v.String())
	case float64:
		b.raw(formatFloat(v))
	case Str:
		reprStr(b, v)
	case *Undefined:
		b.raw("Undefined")
	case *List:
		in.reprList(b, v)
	case *Dict:
		in.reprDict(b, v)
	case *Namespace:
		b.raw("<Namespace ")
		in.reprDict(b, v.attrs)
		b.raw(">")
	case *loopObject:
		b.raw(fmt.Sprintf("<LoopContext %d/%d>", v.i+1, len(v.items)))
	case *callable:
		b.raw("<Macro '" + v.name + "'>")
	default:
		b.raw("<" + typeName(v) + ">")
	}
}

// roomFor stops printing beyond the memory limit. A small value that contains itself many times can
// print large.
func (in *interp) roomFor(b *builder) {
	if b.len() > in.lim.Bytes-in.bytes {
		in.limit("too many bytes of intermediate values", in.lim.Bytes)
	}
}

func (in *interp) reprDict(b *builder, d *Dict) {
	b.raw("{")
	for i, e := range d.entries {
		if i > 0 {
			b.raw(", ")
		}
		in.writeRepr(b, e.key)
		b.raw(": ")
		in.writeRepr(b, e.value)
	}
	b.raw("}")
}

func (in *interp) reprList(b *builder, l *List) {
	open, close := "[", "]"
	switch l.kind {
	case kindTuple:
		open, close = "(", ")"
		if len(l.items) == 1 {
			close = ",)"
		}
	case kindRange:
		b.raw(l.name) // a range prints as its text
		return
	case kindView:
		open, close = l.name+"([", "])"
	case kindIter:
		b.raw("<" + l.name + " object>")
		return
	}
	b.raw(open)
	for i, x := range l.items {
		if i > 0 {
			b.raw(", ")
		}
		in.writeRepr(b, x)
	}
	b.raw(close)
}

func reprStr(b *builder, s Str) {
	quote := "'"
	if strings.Contains(s.s, "'") && !strings.Contains(s.s, `"`) {
		quote = `"`
	}
	b.raw(quote)
	escapeInto(b, s, func(r rune, size int) string {
		switch {
		case r == '\n':
			return `\n`
		case r == '\r':
			return `\r`
		case r == '\t':
			return `\t`
		case r == '\\':
			return `\\`
		case r < utf8.RuneSelf && string(r) == quote:
			return `\` + quote
		case unicode.IsPrint(r):
			return ""
		case r < 0x100:
			return fmt.Sprintf(`\x%02x`, r)
		case r < 0x10000:
			return fmt.Sprintf(`\u%04x`, r)
		}
		return fmt.Sprintf(`\U%08x`, r)
	})
	b.raw(quote)
}

// escapeInto writes s with some code points replaced. escape returns "" for code points to keep. A
// replacement is marked if the original was.
func escapeInto(b *builder, s Str, escape func(r rune, size int) string) {
	from := 0
	for i := 0; i < len(s.s); {
		r, n := utf8.DecodeRuneInString(s.s[i:])
		if e := escape(r, n); e != "" {
			b.add(s.slice(from, i))
			b.add(s.slice(i, i+n).like(e))
			from = i + n
		}
		i += n
	}
	b.add(s.slice(from, len(s.s)))
}
