package python

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Str is Python's str(): the printed form of a value.
func (m *Meter) Str(v Value) Str {
	switch v := v.(type) {
	case Str:
		return v
	case *Undefined:
		return Str{}
	}
	return m.Repr(v)
}

// Repr is Python's repr().
func (m *Meter) Repr(v Value) Str {
	var b Builder
	m.writeRepr(&b, v)
	return m.Made(b.Str())
}

func (m *Meter) writeRepr(b *Builder, v Value) {
	m.Enter()
	defer m.Leave()
	m.RoomFor(b)
	switch v := v.(type) {
	case nil:
		b.Raw("None")
	case bool:
		if v {
			b.Raw("True")
		} else {
			b.Raw("False")
		}
	case int64:
		b.Raw(strconv.FormatInt(v, 10))
	case *big.Int:
		b.Raw(v.String())
	case float64:
		b.Raw(FormatFloat(v))
	case Str:
		reprStr(b, v)
	case *Undefined:
		b.Raw("Undefined")
	case *List:
		m.reprList(b, v)
	case *Dict:
		m.reprDict(b, v)
	case *Namespace:
		b.Raw("<Namespace ")
		m.reprDict(b, v.Attrs)
		b.Raw(">")
	case Object:
		b.Raw(v.Repr())
	default:
		b.Raw("<" + TypeName(v) + ">")
	}
}

// RoomFor stops printing beyond the memory limit. A small value that contains itself many times can
// print large.
func (m *Meter) RoomFor(b *Builder) {
	if b.Len() > m.Limits.Bytes-m.bytes {
		m.Exceed("too many bytes of intermediate values", m.Limits.Bytes)
	}
}

func (m *Meter) reprDict(b *Builder, d *Dict) {
	b.Raw("{")
	for i, e := range d.Entries {
		if i > 0 {
			b.Raw(", ")
		}
		m.writeRepr(b, e.Key)
		b.Raw(": ")
		m.writeRepr(b, e.Value)
	}
	b.Raw("}")
}

func (m *Meter) reprList(b *Builder, l *List) {
	open, close := "[", "]"
	switch l.Kind {
	case KindTuple:
		open, close = "(", ")"
		if len(l.Items) == 1 {
			close = ",)"
		}
	case KindRange:
		b.Raw(l.Name) // a range prints as its text
		return
	case KindView:
		open, close = l.Name+"([", "])"
	case KindIter:
		b.Raw("<" + l.Name + " object>")
		return
	}
	b.Raw(open)
	for i, x := range l.Items {
		if i > 0 {
			b.Raw(", ")
		}
		m.writeRepr(b, x)
	}
	b.Raw(close)
}

func reprStr(b *Builder, s Str) {
	quote := "'"
	if strings.Contains(s.Text, "'") && !strings.Contains(s.Text, `"`) {
		quote = `"`
	}
	b.Raw(quote)
	EscapeInto(b, s, func(r rune, size int) string {
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
	b.Raw(quote)
}

// EscapeInto writes s with some code points replaced. escape returns "" for code points to keep. A
// replacement is marked if the original was.
func EscapeInto(b *Builder, s Str, escape func(r rune, size int) string) {
	from := 0
	for i := 0; i < len(s.Text); {
		r, n := utf8.DecodeRuneInString(s.Text[i:])
		if e := escape(r, n); e != "" {
			b.Add(s.Slice(from, i))
			b.Add(s.Slice(i, i+n).Like(e))
			from = i + n
		}
		i += n
	}
	b.Add(s.Slice(from, len(s.Text)))
}
