package jinja

import (
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-llm/shoal/internal/text/jinja/python"
)

// toJSON implements the filter tojson as transformers defines it: json.dumps without HTML
// escaping, so that prompts match the training data.
func toJSON(in *interp, v python.Value, a *args) python.Value {
	p := a.bind(in, "tojson", "ensure_ascii?", "indent?", "separators?", "sort_keys?")
	w := jsonWriter{in: in, ascii: optBool(p[0]), sort: optBool(p[3]), item: ", ", colon: ": "}
	switch x := orNone(p[1]).(type) {
	case nil:
	case python.Str:
		w.pretty, w.indent = true, x
	default:
		n := max(in.wantInt("tojson indent", x, 0), 0)
		in.Charge(n)
		w.pretty, w.indent = true, python.Trusted(strings.Repeat(" ", n))
	}
	if w.pretty {
		w.item = ","
	}
	if x := orNone(p[2]); x != nil {
		l := in.iterate(x)
		if len(l) != 2 {
			in.Fail("tojson separators are two strings, not %d", len(l))
		}
		w.item, w.colon = in.wantStr("tojson separators", l[0]).Text, in.wantStr("tojson separators", l[1]).Text
	}
	w.value(v, 0)
	return in.Made(w.b.Str())
}

type jsonWriter struct {
	in          *interp
	b           python.Builder
	item, colon string
	indent      python.Str
	pretty      bool
	ascii, sort bool
}

func (w *jsonWriter) newline(depth int) {
	if w.pretty {
		w.in.Charge(depth * len(w.indent.Text))
		w.b.Raw("\n")
		for range depth {
			w.b.Add(w.indent)
		}
	}
}

func (w *jsonWriter) value(v python.Value, depth int) {
	w.in.Enter()
	defer w.in.Leave()
	w.in.RoomFor(&w.b)
	switch v := v.(type) {
	case nil:
		w.b.Raw("null")
	case bool:
		w.b.Raw(strconv.FormatBool(v))
	case int64:
		w.b.Raw(strconv.FormatInt(v, 10))
	case *big.Int:
		w.b.Raw(v.String())
	case float64:
		w.b.Raw(jsonFloat(v))
	case python.Str:
		w.text(v)
	case *python.List:
		if v.Kind > python.KindTuple {
			w.in.Fail("Object of type %s is not JSON serializable", python.TypeName(v))
		}
		w.list(v, depth)
	case *python.Dict:
		w.dict(v, depth)
	default:
		w.in.Fail("Object of type %s is not JSON serializable", python.TypeName(v))
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
	return python.FormatFloat(f)
}

func (w *jsonWriter) list(l *python.List, depth int) {
	if len(l.Items) == 0 {
		w.b.Raw("[]")
		return
	}
	w.b.Raw("[")
	for i, x := range l.Items {
		if i > 0 {
			w.b.Raw(w.item)
		}
		w.newline(depth + 1)
		w.value(x, depth+1)
	}
	w.newline(depth)
	w.b.Raw("]")
}

func (w *jsonWriter) dict(d *python.Dict, depth int) {
	if d.Len() == 0 {
		w.b.Raw("{}")
		return
	}
	entries := d.Entries
	if w.sort {
		entries = slices.Clone(entries)
		slices.SortStableFunc(entries, func(a, b python.Entry) int {
			c, ok := w.in.order(a.Key, b.Key)
			if !ok {
				w.in.Fail("'<' not supported between instances of '%s' and '%s'", python.TypeName(a.Key), python.TypeName(b.Key))
			}
			return int(c)
		})
	}
	w.b.Raw("{")
	for i, e := range entries {
		if i > 0 {
			w.b.Raw(w.item)
		}
		w.newline(depth + 1)
		w.key(e.Key)
		w.b.Raw(w.colon)
		w.value(e.Value, depth+1)
	}
	w.newline(depth)
	w.b.Raw("}")
}

func (w *jsonWriter) key(k python.Value) {
	switch x := k.(type) {
	case python.Str:
		w.text(x)
	case nil, bool, int64, *big.Int, float64:
		w.b.Raw(`"`)
		w.value(x, 0)
		w.b.Raw(`"`)
	default:
		w.in.Fail("keys must be str, int, float, bool or None, not %s", python.TypeName(k))
	}
}

func (w *jsonWriter) text(s python.Str) {
	w.b.Raw(`"`)
	python.EscapeInto(&w.b, s, func(r rune, size int) string {
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
	w.b.Raw(`"`)
}
