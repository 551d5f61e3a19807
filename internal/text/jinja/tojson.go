package jinja

import (
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
)

// toJSON is the filter with which transformers replaces Jinja's own: json.dumps without HTML
// escaping, so that prompts match the training data.
func toJSON(in *interp, v Value, a *args) Value {
	p := a.bind(in, "tojson", "ensure_ascii?", "indent?", "separators?", "sort_keys?")
	w := jsonWriter{in: in, ascii: optBool(p[0], false), sort: optBool(p[3], false), item: ", ", colon: ": "}
	switch x := orNone(p[1]).(type) {
	case nil:
	case Str:
		w.pretty, w.indent = true, x
	default:
		n := max(in.wantInt("tojson indent", x, 0), 0)
		in.charge(n)
		w.pretty, w.indent = true, Trusted(strings.Repeat(" ", n))
	}
	if w.pretty {
		w.item = ","
	}
	if x := orNone(p[2]); x != nil {
		l := in.iterate(x)
		if len(l) != 2 {
			in.fail("tojson separators are two strings, not %d", len(l))
		}
		w.item, w.colon = in.wantStr("tojson separators", l[0]).s, in.wantStr("tojson separators", l[1]).s
	}
	w.value(v, 0)
	return in.made(w.b.str())
}

type jsonWriter struct {
	in          *interp
	b           builder
	item, colon string
	indent      Str
	pretty      bool
	ascii, sort bool
}

func (w *jsonWriter) newline(depth int) {
	if w.pretty {
		w.in.charge(depth * len(w.indent.s))
		w.b.raw("\n")
		for range depth {
			w.b.add(w.indent)
		}
	}
}

func (w *jsonWriter) value(v Value, depth int) {
	w.in.enter()
	defer w.in.leave()
	w.in.roomFor(&w.b)
	switch v := v.(type) {
	case nil:
		w.b.raw("null")
	case bool:
		w.b.raw(strconv.FormatBool(v))
	case int64:
		w.b.raw(strconv.FormatInt(v, 10))
	case *big.Int:
		w.b.raw(v.String())
	case float64:
		w.b.raw(jsonFloat(v))
	case Str:
		w.text(v)
	case *List:
		if v.kind > kindTuple {
			w.in.fail("Object of type %s is not JSON serializable", typeName(v))
		}
		w.list(v, depth)
	case *Dict:
		w.dict(v, depth)
	default:
		w.in.fail("Object of type %s is not JSON serializable", typeName(v))
	}
}

func jsonFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	}
	return formatFloat(f)
}

func (w *jsonWriter) list(l *List, depth int) {
	if len(l.items) == 0 {
		w.b.raw("[]")
		return
	}
	w.b.raw("[")
	for i, x := range l.items {
		if i > 0 {
			w.b.raw(w.item)
		}
		w.newline(depth + 1)
		w.value(x, depth+1)
	}
	w.newline(depth)
	w.b.raw("]")
}

func (w *jsonWriter) dict(d *Dict, depth int) {
	if d.Len() == 0 {
		w.b.raw("{}")
		return
	}
	entries := d.entries
	if w.sort {
		entries = slices.Clone(entries)
		slices.SortStableFunc(entries, func(a, b entry) int {
			c, ok := w.in.order(a.key, b.key)
			if !ok {
				w.in.fail("'<' not supported between instances of '%s' and '%s'", typeName(a.key), typeName(b.key))
			}
			return int(c)
		})
	}
	w.b.raw("{")
	for i, e := range entries {
		if i > 0 {
			w.b.raw(w.item)
		}
		w.newline(depth + 1)
		w.key(e.key)
		w.b.raw(w.colon)
		w.value(e.value, depth+1)
	}
	w.newline(depth)
	w.b.raw("}")
}

func (w *jsonWriter) key(k Value) {
	switch x := k.(type) {
	case Str:
		w.text(x)
	case nil, bool, int64, *big.Int, float64:
		w.b.raw(`"`)
		w.value(x, 0)
		w.b.raw(`"`)
	default:
		w.in.fail("keys must be str, int, float, bool or None, not %s", typeName(k))
	}
}

func (w *jsonWriter) text(s Str) {
	w.b.raw(`"`)
	escapeInto(&w.b, s, func(r rune, size int) string {
		switch r {
		case '"':
			return `\"`
		case '\\':
			return `\\`
		case '\n':
			return `\n`
		case '\r':
			return `\r`
		case '\t':
			return `\t`
		case '\f':
			return `\f`
		case '\b':
			return `\b`
		}
		switch {
		case r < 0x20 || (w.ascii && r >= 0x7f && r < 0x10000):
			return fmt.Sprintf(`\u%04x`, r)
		case w.ascii && r >= 0x10000:
			r -= 0x10000
			return fmt.Sprintf(`\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		}
		return ""
	})
	w.b.raw(`"`)
}
